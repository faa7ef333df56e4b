"""AMESHJOIN (same paper as MESHJOIN, section 3.3): MESHJOIN whose w and b change in flight.

Idea: a packet remembers where the scan stood when it came. After every page the scan looks whether it has come round
to the page before that; then the packet has met all of R, whatever w and b were meanwhile. So a tuner can follow the
arrival rate.
Budget: as MESHJOIN; the live packets together never take more slots than there are, whatever the schedule asks for.
Invariants: every packet meets each page exactly once under any schedule of (w, b).
Departures: the printed listing forgets to read the w tuples and does not guard an empty queue. Theorem 3.2's
condition concerns the stream buffer, not correctness. A page is a run of pages that ends between two keys. Pages up
to the next expiry are read and joined together, which gives the same pairs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from semistream.budget import Budget
from semistream.errors import ArgumentError, InvariantError
from semistream.joins.contract import JoinSettings, Prediction, Scenario
from semistream.joins.papers.multimap import Slots
from semistream.joins.papers.scan_join import ScanJoin
from semistream.joins.papers.waiting_join import Shares, Source, WaitingJoin
from semistream.lookup.bind import LookupPlan
from semistream.stores.contract import Store

Schedule = Callable[[int], tuple[int, int]]


@dataclass(frozen=True)
class AmeshSettings(JoinSettings):
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

    def __init__(self, store: Store, plan: LookupPlan, budget: Budget, settings: JoinSettings | None = None) -> None:
        super().__init__(store, plan, budget, settings)
        self.settings = AmeshSettings.of(settings)
        self.b = max(1, min(len(self.partitions), self.partitions.buffer_pages))
        self.w = max(1, self.table.capacity * self.b // self.chunks)
        self.pages_done = 0
        self.packets: deque[tuple[Slots, int]] = deque()  # slots, and the pages done before the packet came

    @classmethod
    def divide(cls, scenario: Scenario) -> Shares:
        """As MESHJOIN; every page is a chunk."""
        shares = super().divide(scenario)
        return replace(shares, in_buffer=max(1, shares.buffer // scenario.facts.page_bytes))

    def _loop(self, source: Source) -> Iterator[pa.RecordBatch]:
        while not (source.ended and self.table.tuples == 0):
            self.iteration += 1
            w, b = self.settings.schedule(self.iteration) if self.settings.schedule else (self.w, self.b)
            yield from self._arrive(source, w)
            if self._packet:
                self.packets.append((np.concatenate(self._packet), self.pages_done))
            yield from self._pages(max(1, b))

    def _start_afresh(self) -> None:
        super()._start_afresh()
        self.packets.clear()

    def _pages(self, count: int) -> Iterator[pa.RecordBatch]:
        """Join the next pages; a packet leaves right after the page that completes its round."""
        while count > 0 and self.packets:
            due = self.packets[0][1] + self.chunks - self.pages_done  # pages until the oldest packet has met all
            run = min(count, due, self.chunks - self.at)
            while run > 1 and not self.partitions.together(self.at, self.at + run):
                run //= 2
            if len(self.partitions):
                self.stats.sweeps += 1
                for codes, rows in self.partitions.load(self.at, self.at + run):
                    yield from self._meet(codes, rows, whole=False)
                self.stats.count_reads(self.partitions.reader.counters)
            self.at = (self.at + run) % self.chunks
            self.pages_done += run
            count -= run
            while self.packets and self.pages_done - self.packets[0][1] >= self.chunks:
                slots, came = self.packets.popleft()
                if self.pages_done - came != self.chunks:
                    raise InvariantError(f"amesh: a packet met {self.pages_done - came} pages of {self.chunks}")
                yield from self._expire(slots)

    def check(self) -> None:
        """As every waiting join; waits are counted in pages here, which every packet checks itself."""
        WaitingJoin.check(self)

    @classmethod
    def model(cls, scenario: Scenario, part: float = 1.0) -> Prediction:
        """As MESHJOIN; a packet that has met all of R within a read cuts it in two."""
        said = super().model(scenario, part)
        if scenario.facts.pages % said.pages_per_read == 0:
            return said
        return replace(said, tuples_per_read=said.tuples_per_read / 2, pages_per_read=said.pages_per_read / 2)
