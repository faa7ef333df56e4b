"""MESHJOIN's loop, which its kin share: the scan of R goes round and round, the stream passes by in packets.

A step takes up to w tuples as a packet, reads the next chunk of R and joins it with all that wait. A packet has met
all of R once it has seen as many chunks as there are; then it expires, by its slots and never by key, so that newer
tuples of the same key stay. At the end of the stream, empty packets let the last ones meet the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.budget import Budget
from semistream.contracts import Join, JoinPlan, Prediction
from semistream.errors import InvariantError
from semistream.joins._costs import PROBE_SECONDS, TUPLE_SECONDS
from semistream.joins._meeting import Meeting, groups_of
from semistream.joins._output import MOST_ROWS, Output, pieces
from semistream.joins._partitions import Partitions
from semistream.joins._queue_join import Mask, output_row_bytes
from semistream.joins._stream_table import Entries, Slots, StreamTable, slot_bytes
from semistream.keys import Codes

_BUFFER_SHARE = 0.02
_MOST_BUFFER = 1 << 20
_OUTPUT_SHARE = 0.05
_MOST_OUTPUT = 4 << 20
_NOBODY: Slots = np.empty(0, np.int32)


class Source:
    """The stream, taken tuple by tuple as a join has room: small batches are put together, large ones cut."""

    def __init__(self, batches: Iterable[pa.RecordBatch], plan: JoinPlan, output: Output) -> None:
        self._pieces = (p for batch in batches for p in pieces(batch, output.most_rows, plan.stream))
        self._plan, self._output = plan, output
        self._left: pa.RecordBatch | None = None
        self._without_key: list[pa.RecordBatch] = []
        self.ended = False

    def take(self, count: int) -> Iterator[tuple[pa.RecordBatch, Codes]]:
        """Up to ``count`` tuples with a key, in one or several batches; those without one are settled at once."""
        while count > 0:
            if self._left is None or self._left.num_rows == 0:
                self._left = next(self._pieces, None)
                if self._left is None:
                    self.ended = True
                    return
            batch = self._left.slice(0, count)
            self._left = self._left.slice(batch.num_rows)
            self._output.stats.rows_in += batch.num_rows
            codes, valid = self._plan.codec.encode([batch.column(name) for name in self._plan.stream_keys])
            if not valid.all():
                self._without_key.append(batch.filter(pa.array(~valid)))
                batch, codes = batch.filter(pa.array(valid)), codes[valid]
            if batch.num_rows:
                count -= batch.num_rows
                yield batch, codes

    def settle_without_key(self) -> Iterator[pa.RecordBatch]:
        """Give out tuples that cannot match."""
        while self._without_key:
            batch = self._without_key.pop()
            yield from self._output.settled(batch, np.zeros(batch.num_rows, np.bool_))


class ScanJoin(Join):
    """The loop; see the module."""

    def __init__(self, store: Any, plan: JoinPlan, budget: Budget) -> None:
        super().__init__(store, plan, budget)
        budget.require("index", store.index_bytes)
        page = store.largest_page
        spare = max(0, budget.total - self.least_bytes(store, plan))
        budget.require("buffer", page + int(min(_MOST_BUFFER, spare * _BUFFER_SHARE)) // page * page)
        row = output_row_bytes(store, plan)
        budget.require("output", row + int(min(_MOST_OUTPUT, spare * _OUTPUT_SHARE)))
        self._most_rows = max(1, min(MOST_ROWS, budget.parts["output"] // row))
        size = slot_bytes(plan.stream)
        budget.require("stream table", size)
        self._reserve(spare)
        capacity = 1 + budget.free // size
        budget.grant("stream table", (capacity - 1) * size)
        self.table = StreamTable(plan.stream, capacity)
        self.output = Output(plan, store.layout, self.stats, self._most_rows)
        self.meeting = Meeting(self.table, self.output)
        self.partitions = self._cut()
        self.w = max(1, capacity // max(1, len(self.partitions)))
        self.queue: deque[Slots] = deque()
        self._packet: list[Slots] = []
        self.iteration = 0
        self.at = 0  # the chunk that is read next
        self.stats.peak_bytes = budget.peak

    def _reserve(self, spare: int) -> None:
        """Take what else the algorithm needs from the budget, before the stream table gets the rest."""

    def _cut(self) -> Partitions:
        """R in chunks, one a step."""
        return Partitions(self.store, self.budget.parts["buffer"])

    # -- the flow --------------------------------------------------------------------------------------------------

    def join(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """See `Join.join`."""
        source = Source(batches, self.plan, self.output)
        try:
            while not (source.ended and self.table.tuples == 0):
                self.iteration += 1
                if len(self.queue) == max(1, len(self.partitions)):  # an empty R is met at once
                    yield from self._expire(self.queue.popleft())
                yield from self._arrive(source, min(self.w, self.table.free))
                self.queue.append(np.concatenate(self._packet) if self._packet else _NOBODY)
                yield from self._scan()
        finally:
            if self.table.tuples:  # the stream was abandoned: its rows must not turn up in the next one
                self.stats.rows_in -= self.table.tuples
                self.table = self.meeting.table = StreamTable(self.plan.stream, self.table.capacity)
            self.queue.clear()

    def _arrive(self, source: Source, wanted: int) -> Iterator[pa.RecordBatch]:
        """Fill the next packet, as far as the stream goes; what can be answered at once takes no place in it."""
        self._packet = []
        while wanted > 0 and not source.ended:
            for stream, codes in source.take(wanted):
                waiting = np.ones(stream.num_rows, np.bool_)
                yield from self._answer(stream, codes, waiting)
                some = np.flatnonzero(waiting)
                self.stats.misses += len(some)
                self.stats.hits += stream.num_rows - len(some)
                if len(some):
                    rows = stream if len(some) == stream.num_rows else stream.take(pa.array(some))
                    self._packet.append(self.table.add(rows, codes[some], self.iteration))
                    wanted -= len(some)
            yield from source.settle_without_key()

    def _answer(self, stream: pa.RecordBatch, codes: Codes, waiting: Mask) -> Iterator[pa.RecordBatch]:
        """Give out what need not wait for the scan, and clear ``waiting`` for it."""
        del stream, codes, waiting
        yield from ()

    def _scan(self) -> Iterator[pa.RecordBatch]:
        """Read the next chunk and join it with all that wait; nobody waiting, nothing is read."""
        number, self.at = self.at, (self.at + 1) % max(1, len(self.partitions))
        if self.table.tuples == 0 or len(self.partitions) == 0:
            return
        for codes, rows in self._load(number):
            yield from self._met(codes, rows)
        counters, stats = self.partitions.reader.counters, self.stats
        stats.pages_read, stats.bytes_read, stats.read_requests = counters.pages, counters.bytes, counters.requests

    def _load(self, number: int) -> Iterator[tuple[Codes, Any]]:
        """The rows of a chunk, by one read."""
        self.stats.sweeps += 1
        yield from self.partitions.load(number)

    def _met(self, codes: Codes, rows: Any) -> Iterator[pa.RecordBatch]:
        distinct, first, last = groups_of(codes)
        entries = self.table.lookup(distinct)
        hit = np.flatnonzero(entries >= 0)
        met = distinct[hit], entries[hit], first[hit], last[hit], rows
        yield from self.meeting.meet(met[1], met[0], *met[2:])
        self._brought(*met)

    def _brought(self, codes: Codes, entries: Entries, first: Any, last: Any, rows: Any) -> None:
        """Groups of rows that tuples met."""

    def _expire(self, slots: Slots) -> Iterator[pa.RecordBatch]:
        """A packet has met all of R."""
        if len(slots):
            yield from self.meeting.settle(slots, self.iteration)
            self.table.expire(slots)

    # -- what every join has -----------------------------------------------------------------------------------------

    @property
    def unmatched_sample(self) -> list[object]:
        """A few keys that found no match."""
        return self.output.unmatched_sample

    def check(self) -> None:
        """Accounting, the table's links, nobody left, and every tuple out after exactly as many steps as R has
        chunks.
        """
        super().check()
        self.table.check(self.name)
        if self.table.tuples:
            raise InvariantError(f"{self.name}: {self.table.tuples} tuples still wait after the end of the input")
        if self.meeting.waits.longest > max(1, len(self.partitions)):
            raise InvariantError(
                f"{self.name}: a tuple waited {self.meeting.waits.longest} steps, R has {len(self.partitions)} chunks"
            )

    @classmethod
    def least_bytes(cls, store: Any, plan: JoinPlan) -> int:
        """See `Join.least_bytes`."""
        return int(store.index_bytes + store.largest_page + output_row_bytes(store, plan) + slot_bytes(plan.stream))

    @classmethod
    def predict(cls, store: Any, plan: JoinPlan, memory_bytes: int, skew: float) -> Prediction:
        """MESHJOIN's cost model: μ = w/c_loop, insensitive to the stream's skew."""
        del skew
        spare = max(0, memory_bytes - cls.least_bytes(store, plan))
        buffer = store.largest_page + int(min(_MOST_BUFFER, spare * _BUFFER_SHARE))
        rest = max(0, memory_bytes - store.index_bytes - buffer)
        chunks = max(1, -(-store.pages * store.page_bytes // buffer))
        w = max(1.0, rest / slot_bytes(plan.stream) / chunks)
        rows = buffer / max(1.0, store.row_bytes)
        loop = store.device.seconds(1, buffer) + rows * PROBE_SECONDS + w * TUPLE_SECONDS
        parts = {"index": store.index_bytes, "disk buffer": buffer, "stream table": rest}
        return Prediction(w / loop, 0.0, parts, f"{w:.1f} tuples a read, whatever the skew")
