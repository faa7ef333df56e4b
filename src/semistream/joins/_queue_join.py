"""HYBRIDJOIN's loop, which its successors share: fill the stream table, then load the partition of the oldest key.

A subclass may answer tuples before they wait (`_answer`), and look at what a partition brought (`_brought`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.budget import Budget
from semistream.contracts import Join, JoinPlan
from semistream.errors import InvariantError, MemoryBudgetError
from semistream.joins._meeting import Meeting, groups_of
from semistream.joins._output import MOST_ROWS, Output, pieces
from semistream.joins._partitions import Partitions
from semistream.joins._stream_table import Entries, Slots, StreamTable, slot_bytes, text_bytes
from semistream.joins._window import stream_row_bytes
from semistream.keys import Codes
from semistream.rows import Addresses

Mask = npt.NDArray[np.bool_]
_BUFFER_SHARE = 0.02  # of the budget
_MOST_BUFFER = 1 << 20
_OUTPUT_SHARE = 0.05
_MOST_OUTPUT = 4 << 20


def output_row_bytes(store: Any, plan: JoinPlan) -> int:
    """What a row of output takes while it is made."""
    return int(2 * stream_row_bytes(plan.stream) + store.row_bytes + 64)


class QueueJoin(Join):
    """The loop; see the module."""

    buffer_share = _BUFFER_SHARE

    def __init__(self, store: Any, plan: JoinPlan, budget: Budget) -> None:
        super().__init__(store, plan, budget)
        budget.require("index", store.index_bytes)
        page = store.largest_page
        spare = max(0, budget.total - self.least_bytes(store, plan))
        budget.require("buffer", page + int(min(_MOST_BUFFER, spare * self.buffer_share)) // page * page)
        row = output_row_bytes(store, plan)
        budget.require("output", row + int(min(_MOST_OUTPUT, spare * _OUTPUT_SHARE)))
        self.partitions = Partitions(store, budget.parts["buffer"])
        self._most_rows = max(1, min(MOST_ROWS, budget.parts["output"] // row))
        self._slot_bytes = slot_bytes(plan.stream)
        budget.require("stream table", self._slot_bytes)
        self._reserve(spare)
        capacity = 1 + budget.free // self._slot_bytes
        budget.grant("stream table", (capacity - 1) * self._slot_bytes)
        self.table = StreamTable(plan.stream, capacity)
        self.output = Output(plan, store.layout, self.stats, self._most_rows)
        self.meeting = Meeting(self.table, self.output)
        self.iteration = 0
        self.fruitless = 0  # iterations whose key had no match
        self.stats.peak_bytes = budget.peak

    def _reserve(self, spare: int) -> None:
        """Take what else the algorithm needs from the budget, before the stream table gets the rest."""

    @property
    def room(self) -> int:
        """Tuples that may still wait."""
        return self.table.free

    # -- the flow --------------------------------------------------------------------------------------------------

    def join(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """See `Join.join`."""
        try:
            for batch in batches:
                for piece in pieces(batch, self.output.most_rows, self.plan.stream):
                    yield from self._arrive(piece)
            while self.table.tuples:
                yield from self._disk_phase()
        finally:
            if self.table.tuples:  # the stream was abandoned: its rows must not turn up in the next one
                self.stats.rows_in -= self.table.tuples
                self.table = StreamTable(self.plan.stream, self.table.capacity)
                self.meeting.table = self.table

    def _arrive(self, stream: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Stream phase: what cannot be answered at once waits; when no slot is free, the disk phase makes room."""
        codes, valid = self.plan.codec.encode([stream.column(name) for name in self.plan.stream_keys])
        self.stats.rows_in += stream.num_rows
        if not valid.all():
            yield from self.output.settled(stream.filter(pa.array(~valid)), np.zeros(int((~valid).sum()), np.bool_))
            stream, codes = stream.filter(pa.array(valid)), codes[valid]
        while stream.num_rows:
            while self.room <= 0 or self._text_is_full():
                yield from self._disk_phase()
            count = min(stream.num_rows, self.room)
            waiting = np.ones(count, np.bool_)
            yield from self._answer(stream.slice(0, count), codes[:count], waiting)
            self.stats.misses += int(waiting.sum())
            self.stats.hits += count - int(waiting.sum())
            if waiting.any():
                some = np.flatnonzero(waiting)
                rows = stream.slice(0, count) if len(some) == count else stream.take(pa.array(some))
                self._added(self.table.add(rows, codes[some], self.iteration))
            stream, codes = stream.slice(count), codes[count:]

    def _text_is_full(self) -> bool:
        """Text longer than it was taken for must not pass the budget either."""
        text = self.table.text_bytes
        full = text > text_bytes(self.plan.stream) * self.table.capacity
        if full and self.table.tuples <= 1:
            raise MemoryBudgetError(
                f"a row of the stream takes {text:,} bytes while it waits, which is more than "
                f"memory={self.budget.total:,} has room for; give at least {self.budget.total + 3 * text:,}"
            )
        return full

    def _answer(self, stream: pa.RecordBatch, codes: Codes, waiting: Mask) -> Iterator[pa.RecordBatch]:
        """Give out what needs no disk, and clear ``waiting`` for it."""
        del stream, codes, waiting
        yield from ()

    def _added(self, slots: Slots) -> None:
        """Tuples wait in these slots now."""

    def _disk_phase(self) -> Iterator[pa.RecordBatch]:
        """Load the partition of the oldest key; all that wait for one of its keys leave."""
        self.iteration += 1
        oldest = self.table.oldest()
        assert oldest is not None
        leaving = [self.table.lookup(np.array([oldest], np.uint64))]  # matched or not: no other partition has this key
        number = self.partitions.of(oldest)
        if number is not None:
            self.stats.sweeps += 1
            whole = self.partitions.in_one_piece(number)
            for codes, rows in self.partitions.load(number):
                distinct, first, last = groups_of(codes)
                entries = self.table.lookup(distinct)
                hit = np.flatnonzero(entries >= 0)
                met = distinct[hit], entries[hit], first[hit], last[hit], rows
                yield from self.meeting.meet(met[1], met[0], *met[2:])
                if whole:
                    self._brought(*met)
                leaving.append(entries[hit])
            self._count_reads()
        gone = np.unique(np.concatenate(leaving))
        self.fruitless += not self.table.matched[self.table.slots_of(leaving[0])].any()
        yield from self.meeting.settle(self.table.slots_of(gone), self.iteration)
        self.table.remove(gone)

    def _brought(self, codes: Codes, entries: Entries, first: Any, last: Any, rows: Addresses) -> None:
        """Groups of rows that tuples waited for, before these leave."""

    def _count_reads(self) -> None:
        counters, stats = self.partitions.reader.counters, self.stats
        stats.pages_read, stats.bytes_read, stats.read_requests = counters.pages, counters.bytes, counters.requests

    # -- what every join has -----------------------------------------------------------------------------------------

    @property
    def unmatched_sample(self) -> list[object]:
        """A few keys that found no match."""
        return self.output.unmatched_sample

    def check(self) -> None:
        """Accounting, the table's links, an empty table, and every tuple out within n iterations that found a key."""
        self.check_table()
        if self.meeting.waits.longest > len(self.partitions) + self.fruitless:
            raise InvariantError(
                f"{self.name}: a tuple waited {self.meeting.waits.longest} iterations, there are only "
                f"{len(self.partitions)} partitions"
            )

    def check_table(self) -> None:
        """Accounting, the table's links, and nobody left in it."""
        super().check()
        self.table.check(self.name)
        if self.table.tuples:
            raise InvariantError(f"{self.name}: {self.table.tuples} tuples still wait after the end of the input")

    @classmethod
    def least_bytes(cls, store: Any, plan: JoinPlan) -> int:
        """See `Join.least_bytes`."""
        return int(store.index_bytes + store.largest_page + output_row_bytes(store, plan) + slot_bytes(plan.stream))
