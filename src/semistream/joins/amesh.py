"""AMESHJOIN (same paper as MESHJOIN, section 3.3): MESHJOIN whose w and b change in flight.

Idea: a packet remembers where the scan stood when it came. After every page the scan looks whether it has come round
to the page before that; then the packet has met all of R, whatever w and b were meanwhile. So a tuner can follow the
arrival rate. Budget: as MESHJOIN; the live packets together never take more slots than there are, whatever the
schedule asks for. Invariants: every packet meets each page exactly once under any schedule of (w, b). Departures: the
printed listing forgets to read the w tuples and does not guard an empty queue. Theorem 3.2's condition concerns the
stream buffer, not correctness. A page is a run of pages that ends between two keys. Pages up to the next expiry are
read and joined together, which gives the same pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.budget import Budget
from semistream.contracts import JoinPlan
from semistream.errors import ArgumentError, InvariantError
from semistream.joins._partitions import Partitions
from semistream.joins._scan_join import ScanJoin, Source
from semistream.joins._stream_table import Slots, StreamTable

Schedule = Callable[[int], tuple[int, int]]


@dataclass(frozen=True)
class AmeshSettings:
    """``schedule(iteration)`` gives (w, b): tuples to take and pages to read; by default both stay as they begin."""

    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        if self.schedule is not None and not callable(self.schedule):
            raise ArgumentError(f"schedule={self.schedule!r} must be a function from the iteration to (w, b)")


class AMeshJoin(ScanJoin):
    """w and b change in flight; see the module."""

    name = "amesh"
    idea = "MESHJOIN whose packet and read sizes may change at any step"
    settings_type = AmeshSettings

    def __init__(self, store: Any, plan: JoinPlan, budget: Budget, settings: AmeshSettings | None = None) -> None:
        self.settings = settings or AmeshSettings()
        super().__init__(store, plan, budget)
        self.b = max(1, min(len(self.partitions), self.partitions.buffer_pages))
        self.w = max(1, self.table.capacity * self.b // max(1, len(self.partitions)))
        self.pages_done = 0
        self.packets: list[tuple[Slots, int]] = []  # slots, and the pages done before the packet came

    def _cut(self) -> Partitions:
        buffer = self.budget.parts["buffer"]
        return Partitions(self.store, buffer, in_buffer=max(1, buffer // self.store.page_bytes))

    def join(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """See `Join.join`."""
        source = Source(batches, self.plan, self.output)
        try:
            while not (source.ended and self.table.tuples == 0):
                self.iteration += 1
                w, b = self.settings.schedule(self.iteration) if self.settings.schedule else (self.w, self.b)
                wanted = min(max(0, w), self.table.free)
                yield from self._arrive(source, wanted)
                if self._packet:
                    self.packets.append((np.concatenate(self._packet), self.pages_done))
                yield from self._pages(max(1, b))
        finally:
            if self.table.tuples:
                self.stats.rows_in -= self.table.tuples
                self.table = self.meeting.table = StreamTable(self.plan.stream, self.table.capacity)
            self.packets.clear()

    def _pages(self, count: int) -> Iterator[pa.RecordBatch]:
        """Join the next pages; a packet leaves right after the page that completes its round."""
        whole = max(1, len(self.partitions))
        while count > 0 and self.packets:
            due = self.packets[0][1] + whole - self.pages_done  # pages until the oldest packet has met all
            run = min(count, due, whole - self.at)
            while run > 1 and not self.partitions.together(self.at, self.at + run):
                run //= 2
            if len(self.partitions):
                self.stats.sweeps += 1
                for codes, rows in self.partitions.load(self.at, self.at + run):
                    yield from self._met(codes, rows)
            self.at = (self.at + run) % whole
            self.pages_done += run
            count -= run
            counters, stats = self.partitions.reader.counters, self.stats
            stats.pages_read, stats.bytes_read, stats.read_requests = counters.pages, counters.bytes, counters.requests
            while self.packets and self.pages_done - self.packets[0][1] >= whole:
                slots, came = self.packets.pop(0)
                if self.pages_done - came != whole:
                    raise InvariantError(f"amesh: a packet met {self.pages_done - came} pages of {whole}")
                yield from self._expire(slots)

    def check(self) -> None:
        """As MESHJOIN; waits are counted in pages here, which every packet checks itself."""
        self.stats.check(self.name)
        self.table.check(self.name)
        if self.table.tuples or self.packets:
            raise InvariantError(f"{self.name}: {self.table.tuples} tuples still wait after the end of the input")
