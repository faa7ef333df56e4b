"""The whole master in memory: the oracle of the tests, and the upper bound of what a join can do.

Idea: all needed columns as one Arrow table in code order; a batch is looked up by binary search.
Budget: the table, beside pieces of output; a master that does not fit is refused with the bytes it would need.
It shares no cache, window or page code with the other joins, which is why they are compared with it.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np
import pyarrow as pa

from semistream.budget import Budget
from semistream.joins.contract import Join, JoinSettings, Prediction, Scenario
from semistream.joins.groups import product_of_groups
from semistream.joins.output import MOST_BYTES, MOST_ROWS, Indices, Output, matching, pieces, status_column
from semistream.joins.sizes import projected
from semistream.joins.threads import piece_rows, side_by_side
from semistream.joins.window import MOST_TEXT
from semistream.keys import Mask
from semistream.lookup.bind import LookupPlan
from semistream.rows import text_sizes, varies
from semistream.stats import Stats
from semistream.stores.contract import Store, StoreFacts
from semistream.stores.fetching import to_batch

Hold = Callable[[Callable[[], pa.Table]], pa.Table]
_CODE = "\0code"  # no column of a master is called so
_LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
_OUTPUT_PART = 8  # of the budget, beside the table, at most


class WholeJoin(Join):
    """The whole master in memory, looked up by binary search."""

    name = "whole"
    idea = "the whole master in memory"

    def __init__(
        self,
        store: Store,
        plan: LookupPlan,
        budget: Budget,
        settings: JoinSettings | None = None,
        *,
        hold: Hold | None = None,
    ) -> None:
        """``hold`` may keep the table elsewhere, for several joins; it calls what loads it when it has none."""
        super().__init__(store, plan, budget, settings)
        self.table = hold(self._load) if hold else self._load()
        nothing = pa.RecordBatch.from_pylist([], self.table.schema)
        self._rows = (*self.table.combine_chunks().to_batches(), nothing)[0]  # itself: to combine a column copies it
        self._texts = [column for column in self._rows.columns if varies(column.type)]
        self.codes = self._rows.column(_CODE).to_numpy()
        self.budget.require("table", self.table.nbytes)
        self._most_bytes = min(MOST_BYTES, budget.total // _OUTPUT_PART)
        self.stats.cached_rows = self.table.num_rows
        self.stats.cached_bytes = self.table.nbytes
        self.stats.peak_bytes = self.budget.peak

    def _load(self) -> pa.Table:
        columns = list(dict.fromkeys([*self.plan.columns, *self.plan.needed]))
        # In one array a column of text has an end, unless its offsets have 64 bits.
        kinds = _LARGE if self.least_bytes(self.facts, self.plan) > MOST_TEXT else {}
        fields = [self.store.schema.field(name) for name in columns] + [pa.field(_CODE, pa.uint64())]
        schema = pa.schema([field.with_type(kinds.get(field.type, field.type)) for field in fields])
        reader, batches = self.store.reader(), []
        for codes, rows in reader.rows():
            stored = to_batch(self.store, codes, rows, columns)
            batches.append(pa.record_batch([*stored.columns, pa.array(codes)], schema=pa.schema(fields)).cast(schema))
        self.stats.count_reads(reader.counters)
        table = pa.Table.from_batches(batches, schema)
        ordered = table.column(_CODE).to_numpy()
        if (ordered[1:] < ordered[:-1]).any():  # several levels, each in order
            table = table.take(pa.array(np.argsort(ordered, kind="stable")))
        return table.combine_chunks()

    def _run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            most = piece_rows(batch.num_rows, MOST_ROWS, self.plan.threads)
            cut = iter(list(pieces(batch, most, self.plan.stream, self._most_bytes)))
            if self.plan.threads == 1 or most >= batch.num_rows:
                yield from self._join_pieces(cut, self.stats)
                continue
            counts = [Stats() for _ in range(self.plan.threads)]
            try:
                yield from side_by_side([self._join_pieces(cut, stats) for stats in counts])
            finally:
                for stats in counts:
                    stats.move_to(self.stats)

    def _join_pieces(self, cut: Iterator[pa.RecordBatch], stats: Stats) -> Iterator[pa.RecordBatch]:
        output = Output(self.plan, self.facts.layout, stats, (MOST_ROWS, self._most_bytes))
        output.unmatched_sample = self.unmatched_sample
        for piece in cut:
            yield from self._join_piece(piece, output)

    def _join_piece(self, stream: pa.RecordBatch, output: Output) -> Iterator[pa.RecordBatch]:
        codes, valid = self.plan.codec.encode([stream.column(name) for name in self.plan.stream_keys])
        # In order of their codes, searches of neighbours meet in the processor's cache.
        order = np.argsort(codes)
        first, last = np.empty(len(codes), np.int64), np.empty(len(codes), np.int64)
        first[order] = np.searchsorted(self.codes, codes[order], "left")
        last[order] = np.searchsorted(self.codes, codes[order], "right")
        last[~valid] = first[~valid]
        output.stats.rows_in += stream.num_rows
        output.stats.hits += stream.num_rows
        matched = np.zeros(stream.num_rows, np.bool_)
        yield from self._pairs(stream, first, last, matched, output)
        yield from output.settled(stream, matched)

    def _pairs(
        self, stream: pa.RecordBatch, first: Indices, last: Indices, matched: Mask, output: Output
    ) -> Iterator[pa.RecordBatch]:
        """Every stream row beside the rows [first, last) of the table, a bounded number of pairs at a time."""
        plan, everyone = self.plan, np.arange(stream.num_rows)
        for pairs in product_of_groups(everyone, everyone + 1, first, last, MOST_ROWS):
            for some in output.runs(stream, pairs[0], text_sizes(self._texts, pairs[1])):
                left, right = pairs[0][some], pairs[1][some]
                if plan.compares or plan.multiple != "all":
                    same = matching(plan, stream, left, matched[left], partial(self._taken, right))
                    left, right = left[same], right[same]
                matched[left] = True
                if output.wants_rows and len(left):
                    added = [self._taken(right, name) for name in plan.columns]
                    if plan.status is not None:
                        added.append(status_column(np.ones(len(left), np.bool_)))
                    output.stats.rows_out += len(left)
                    beside = stream.take(pa.array(left)).columns
                    yield pa.RecordBatch.from_arrays([*beside, *added], schema=plan.output)

    def _taken(self, rows: Indices, name: str) -> pa.Array:
        return self._rows.column(name).take(pa.array(rows)).cast(self.store.schema.field(name).type)

    @classmethod
    def least_bytes(cls, facts: StoreFacts, plan: LookupPlan) -> int:
        target = projected(facts, plan)
        text = 0.0 if target.fixed else facts.text_bytes
        decoded = 8 * sum(plan.is_code(name) for name in plan.columns)
        return int(1.1 * facts.rows * (8 + target.head + decoded + text)) + 4096 * (1 + len(plan.columns))

    @classmethod
    def model(cls, scenario: Scenario) -> Prediction:
        parts = {"table": cls.least_bytes(scenario.facts, scenario.plan)}
        return Prediction(1.0, math.inf, 1.0, parts, "no reads after loading")
