"""The whole master in memory: the oracle of the tests, and the upper bound of what a join can do.

Idea: all needed columns as one Arrow table in code order; a batch is looked up by binary search.
Budget: the table, and nothing else; a master that does not fit is refused with the bytes it would need.
It shares no cache, window or page code with the other joins beyond reading the store once, which is why they are
compared with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa

from semistream.budget import Budget
from semistream.errors import MemoryBudgetError
from semistream.joins.contract import Join, JoinSettings, Prediction, Scenario
from semistream.joins.matching import Indices, matching
from semistream.joins.output import MOST_ROWS, pieces, status_column
from semistream.joins.threads import piece_rows, side_by_side
from semistream.keys import Mask
from semistream.lookup.bind import LookupPlan
from semistream.rows import Projection
from semistream.stats import Stats
from semistream.stores.contract import Store, StoreFacts
from semistream.stores.fetching import to_batch

Hold = Callable[[Callable[[], pa.Table]], pa.Table]
_CODE = "\0code"  # no column of a master is called so


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
        need = self.least_bytes(store.facts, plan)
        if need > budget.total:
            raise MemoryBudgetError(
                f"algorithm='whole' holds the whole master: about {need:,} bytes, the budget is {budget.total:,}; "
                "give more memory or use algorithm='sweep'"
            )
        self.table = hold(self._load) if hold else self._load()
        self.codes = self.table.column(_CODE).combine_chunks().to_numpy()
        self.budget.require("table", self.table.nbytes)
        self.stats.cached_rows = self.table.num_rows
        self.stats.cached_bytes = self.table.nbytes
        self.stats.peak_bytes = self.budget.peak

    def _load(self) -> pa.Table:
        columns = [*self.plan.columns, *(n for n in self.plan.needed if n not in self.plan.columns)]
        reader = self.store.reader()
        codes, batches = [], []
        for chunk, rows in reader.rows():
            codes.append(chunk)
            batches.append(to_batch(self.store, chunk, rows, columns))
        schema = pa.schema([self.store.schema.field(name) for name in columns])
        joined = np.concatenate(codes) if codes else np.empty(0, np.uint64)
        if columns:
            table = pa.Table.from_batches(batches, schema).append_column(_CODE, pa.array(joined))
        else:
            table = pa.table({_CODE: joined})
        self.stats.count_reads(reader.counters)
        if (joined[1:] < joined[:-1]).any():  # several levels, each in order
            table = table.take(pa.array(np.argsort(joined, kind="stable")))
        return table.combine_chunks()

    def _run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            most = piece_rows(batch.num_rows, MOST_ROWS, self.plan.threads)
            cut = iter(list(pieces(batch, most, self.plan.stream)))
            if self.plan.threads == 1 or most >= batch.num_rows:
                yield from self._join_pieces(cut, self.stats)
            else:
                yield from self._in_threads(cut)

    def _in_threads(self, cut: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Every thread takes one piece after the other."""
        counts = [Stats() for _ in range(self.plan.threads)]
        try:
            yield from side_by_side([self._join_pieces(cut, stats) for stats in counts])
        finally:
            for stats in counts:
                stats.move_to(self.stats)

    def _join_pieces(self, cut: Iterator[pa.RecordBatch], stats: Stats) -> Iterator[pa.RecordBatch]:
        for piece in cut:
            yield from self._join_piece(piece, stats)

    def _join_piece(self, stream: pa.RecordBatch, stats: Stats) -> Iterator[pa.RecordBatch]:
        plan = self.plan
        codes, valid = plan.codec.encode([stream.column(name) for name in plan.stream_keys])
        # In order of their codes, searches of neighbours meet in the processor's cache.
        order = np.argsort(codes)
        first, last = np.empty(len(codes), np.int64), np.empty(len(codes), np.int64)
        first[order] = np.searchsorted(self.codes, codes[order], "left")
        last[order] = np.searchsorted(self.codes, codes[order], "right")
        count = np.where(valid, last - first, 0)
        stats.rows_in += stream.num_rows
        stats.hits += stream.num_rows
        matched = np.zeros(stream.num_rows, np.bool_)
        ends = np.cumsum(count)
        start = 0
        while start < stream.num_rows:  # a bounded number of pairs at a time, at least one stream row
            base = int(ends[start - 1]) if start else 0
            end = max(start + 1, int(np.searchsorted(ends, base + MOST_ROWS, "right")))
            yield from self._pairs(stream, np.arange(start, end), first, count, matched, stats)
            start = end
        stats.matched += int(matched.sum())
        stats.unmatched += int((~matched).sum())
        if len(self.unmatched_sample) < 5 and not matched.all():
            missing = pa.array(np.flatnonzero(~matched)[: 5 - len(self.unmatched_sample)])
            keys = [stream.column(name).take(missing).to_pylist() for name in plan.matching_columns]
            self.unmatched_sample.extend(keys[0] if len(keys) == 1 else zip(*keys, strict=True))
        yield from self._without_match(stream, matched, stats)

    def _pairs(
        self, stream: pa.RecordBatch, some: Indices, first: Indices, count: Indices, matched: Mask, stats: Stats
    ) -> Iterator[pa.RecordBatch]:
        left = np.repeat(some, count[some])
        within = np.arange(len(left)) - np.repeat(np.cumsum(count[some]) - count[some], count[some])
        right = first[left] + within
        plan = self.plan
        if (plan.compares or plan.multiple != "all") and len(left):
            same = matching(plan, stream, left, matched[left], lambda name: self._taken(name, right))
            left, right = left[same], right[same]
        matched[left] = True
        if plan.how not in ("left", "inner"):
            return
        for start in range(0, len(left), MOST_ROWS):  # one stream row may have more matches than a batch holds
            part = slice(start, start + MOST_ROWS)
            taken = [column.take(pa.array(left[part])) for column in stream.columns]
            added = [self._taken(name, right[part]) for name in plan.columns]
            if plan.status is not None:
                added.append(status_column(np.ones(len(left[part]), np.bool_)))
            stats.rows_out += len(left[part])
            yield pa.RecordBatch.from_arrays([*taken, *added], schema=plan.output)

    def _taken(self, name: str, rows: Indices) -> pa.Array:
        return self.table.column(name).combine_chunks().take(pa.array(rows))

    def _without_match(self, stream: pa.RecordBatch, matched: Mask, stats: Stats) -> Iterator[pa.RecordBatch]:
        plan = self.plan
        wanted = {"semi": matched, "anti": ~matched, "left": ~matched}.get(plan.how)
        if wanted is None or not wanted.any():
            return
        rows = stream.filter(pa.array(wanted))
        stats.rows_out += rows.num_rows
        if plan.how == "left":
            added = []
            for name in plan.names:
                kind = plan.output.field(name).type
                added.append(pa.array([plan.defaults.get(name)] * rows.num_rows, kind))
            if plan.status is not None:
                added.append(status_column(np.zeros(rows.num_rows, np.bool_)))
            rows = pa.RecordBatch.from_arrays([*rows.columns, *added], schema=plan.output)
        yield rows

    @classmethod
    def least_bytes(cls, facts: StoreFacts, plan: LookupPlan) -> int:
        """See `Join.least_bytes`."""
        target = Projection(facts.layout, plan.needed).target
        text = facts.text_bytes if not target.fixed else 0.0
        decoded = 8 * sum(plan.is_code(name) for name in plan.columns)
        return int(1.1 * facts.rows * (8 + target.head + decoded + text)) + 4096 * (1 + len(plan.columns))

    @classmethod
    def model(cls, scenario: Scenario) -> Prediction:
        """See `Join.model`."""
        parts = {"table": cls.least_bytes(scenario.facts, scenario.plan)}
        return Prediction(1.0, math.inf, 1.0, parts, "no reads after loading")
