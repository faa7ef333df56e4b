"""A workload's rows for Spark, by number: which options there are, and how rows become partitions.

The options are all that travels to the workers; a worker makes the workload from them, once.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from semistream.errors import ArgumentError
from semistream_lab.workloads import WORKLOADS, Workload, make_workload
from semistream_lab.workloads.arrivals import Arrivals
from semistream_lab.workloads.numbered import check_range, slices
from semistream_lab.workloads.registry import option_types, parse_options, plain_name, settings

_ARROW_ROWS = 1 << 16
_PLACES = ("directory",)  # options that say where rows lie, not which


@dataclass(frozen=True)
class SourceSettings:
    """Options of every source, beside those of its workload."""

    table: Literal["stream", "master"] = "stream"
    total: int | None = None
    partitions: int = 2
    rows_per_batch: int = 1_000_000
    rows_per_second: float | None = None
    poisson: bool = False
    on_seconds: float = 0.0
    off_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("partitions", 1), ("rows_per_batch", 1), ("total", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ArgumentError(f"{name}={value} must be at least {least}")
        if self.rows_per_second is None and (self.poisson or self.on_seconds or self.off_seconds):
            raise ArgumentError("poisson, onSeconds and offSeconds need the option rowsPerSecond, the average rate")
        self.arrivals  # noqa: B018 - checks the rest

    @property
    def arrivals(self) -> Arrivals | None:
        """When rows come; None when they are all there."""
        if self.rows_per_second is None:
            return None
        return Arrivals(self.rows_per_second, self.poisson, self.on_seconds, self.off_seconds)


@lru_cache(maxsize=8)
def _workload(name: str, options: tuple[tuple[str, str], ...]) -> Workload:
    """One a process: a Python worker serves many tasks, and files are opened and sums are made once."""
    return make_workload(name, **dict(options))


@dataclass(frozen=True)
class Generated:
    """What a source reads: a workload by its options, which is all that travels to the workers."""

    workload: str
    options: tuple[tuple[str, str], ...]
    settings: SourceSettings

    @staticmethod
    def parse(workload: str, options: Mapping[str, str]) -> Generated:
        """Tell the source's options from the workload's, and check both."""
        known = {plain_name(name) for name in option_types(SourceSettings)}
        ours = {name: value for name, value in options.items() if plain_name(name) in known}
        theirs = {name: value for name, value in options.items() if plain_name(name) not in known}
        kind = WORKLOADS[workload]
        names = [*option_types(kind), *kind.aliases]
        for name in theirs:
            if plain_name(name) not in map(plain_name, names):
                listed = ", ".join([*names, *option_types(SourceSettings)])
                raise ArgumentError(f"semistream-{workload} has no option {name!r}; its options are {listed}")
        what = f"semistream-{workload}"
        made = Generated(
            workload, tuple(sorted(theirs.items())), SourceSettings(**parse_options(what, SourceSettings, ours))
        )
        if made.end is not None:
            check_range(0, made.settings.total or 0, made._whole, made.settings.table)
        return made

    @property
    def load(self) -> Workload:
        """The workload."""
        return _workload(self.workload, self.options)

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return self.load.master_schema if self.settings.table == "master" else self.load.stream_schema

    @property
    def _whole(self) -> int | None:
        return self.load.master_rows if self.settings.table == "master" else self.load.stream_rows

    @property
    def end(self) -> int | None:
        """Rows that there are; None without end."""
        return self._whole if self.settings.total is None else self.settings.total

    @cached_property
    def made_of(self) -> str:
        """The options that rows depend on, as a short text."""
        rows = {name: value for name, value in settings(self.load).items() if name not in _PLACES}
        said = json.dumps([self.workload, self.settings.table, rows], sort_keys=True)
        return f"{self.workload} {self.settings.table} {zlib.crc32(said.encode()):08x}"

    def pieces(self, start: int, end: int) -> list[InputPartition]:
        """The rows from ``start`` to ``end`` in as many partitions as asked for, none of them empty."""
        edges = [start + (end - start) * i // self.settings.partitions for i in range(self.settings.partitions + 1)]
        return [Piece(low, high - low) for low, high in itertools.pairwise(edges) if high > low]

    def read(self, piece: Any, schema: StructType) -> Iterator[pa.RecordBatch]:
        """The rows of a partition, in Spark's own Arrow types."""
        from pyspark.sql.pandas.types import to_arrow_schema

        if not isinstance(piece, Piece):  # Spark's own, for a table without rows
            return
        wanted = to_arrow_schema(schema, timezone="UTC")
        rows = self.load.master_slice if self.settings.table == "master" else self.load.stream
        for batch in slices(rows, piece.count, _ARROW_ROWS, piece.start):
            columns = [batch.column(field.name).cast(field.type) for field in wanted]
            yield pa.RecordBatch.from_arrays(columns, schema=wanted)


class Piece(InputPartition):
    """Rows ``start`` to ``start + count``."""

    def __init__(self, start: int, count: int) -> None:
        super().__init__((start, count))
        self.start = start
        self.count = count
