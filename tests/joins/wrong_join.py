"""Joins with one planted fault each: the conformance suite must catch every one of them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.errors import AccountingError, InvariantError
from semistream.joins import WholeJoin
from semistream.joins.contract import Join
from semistream.joins.output import Output

CAUGHT = (AssertionError, AccountingError, InvariantError)


class LosesDuplicates(WholeJoin):
    """Gives out only the first match of a stream row."""

    name = "loses duplicates"

    def _pairs(
        self, stream: pa.RecordBatch, first: Any, last: Any, matched: Any, output: Output
    ) -> Iterator[pa.RecordBatch]:
        for batch in super()._pairs(stream, first, last, matched, output):
            rows = batch.column("row").to_numpy()
            kept = batch.take(pa.array(np.unique(rows, return_index=True)[1]))
            self.stats.rows_out -= batch.num_rows - kept.num_rows
            yield kept


class LosesTheLastBatch(WholeJoin):
    """Stops one batch of output too early."""

    name = "loses the last batch"

    def join(self, batches: Iterable[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        made = list(super().join(batches))
        self.stats.rows_out -= made[-1].num_rows
        yield from made[:-1]


class TrustsTheHash(WholeJoin):
    """Takes a collision for a match."""

    name = "trusts the hash"

    def _pairs(
        self, stream: pa.RecordBatch, first: Any, last: Any, matched: Any, output: Output
    ) -> Iterator[pa.RecordBatch]:
        codec = self.plan.codec
        codec_same = codec.same
        codec.same = lambda left, right: np.ones(len(left[0]), np.bool_)  # type: ignore[method-assign]
        try:
            yield from super()._pairs(stream, first, last, matched, output)
        finally:
            codec.same = codec_same  # type: ignore[method-assign]


class DropsNaN(WholeJoin):
    """Compares floats as the processor does, so that NaN finds nothing."""

    name = "drops NaN"

    def _join_piece(self, stream: pa.RecordBatch, output: Output) -> Iterator[pa.RecordBatch]:
        at = stream.schema.get_field_index("s1")
        column = stream.column(at)
        hidden = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
        yield from super()._join_piece(stream.set_column(at, "s1", hidden), output)


class MatchesNull(WholeJoin):
    """Takes NULL for the empty string."""

    name = "matches NULL"

    def _join_piece(self, stream: pa.RecordBatch, output: Output) -> Iterator[pa.RecordBatch]:
        at = stream.schema.get_field_index("s0")
        yield from super()._join_piece(stream.set_column(at, "s0", pc.fill_null(stream.column(at), "")), output)


class Overruns(WholeJoin):
    """Takes more memory than it was given."""

    name = "overruns its budget"

    def join(self, batches: Iterable[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        yield from super().join(batches)
        self.stats.peak_bytes = self.budget.total + 1


class Miscounts(WholeJoin):
    """Counts one matched row twice."""

    name = "miscounts"

    def join(self, batches: Iterable[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        yield from super().join(batches)
        self.stats.matched += 1


class MiscountsBothSides(WholeJoin):
    """Counts a row that was never fed, in balance."""

    name = "counts a row that never came"

    def join(self, batches: Iterable[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        yield from super().join(batches)
        self.stats.rows_in += 1
        self.stats.unmatched += 1


ALL: Sequence[type[Join]] = (
    LosesDuplicates,
    LosesTheLastBatch,
    TrustsTheHash,
    DropsNaN,
    MatchesNull,
    Overruns,
    Miscounts,
    MiscountsBothSides,
)
