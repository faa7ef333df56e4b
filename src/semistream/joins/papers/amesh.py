"""AMESHJOIN (same paper as MESHJOIN, section 3.3): MESHJOIN whose w and b change in flight.

Idea: a packet remembers where the scan stood when it came. After every page the scan looks whether it has come round
to the page before that; then the packet has met all of R, whatever w and b were. So a tuner can follow the arrivals.
Budget: as MESHJOIN; the live packets together never take more slots than there are, whatever the schedule asks for.
Invariants: every packet meets each page exactly once under any schedule of (w, b).
Departures: those of docs/joins.md. Theorem 3.2's condition concerns the stream buffer, not correctness. A page is a run
of pages that ends between two keys.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from semistream.errors import ArgumentError
from semistream.joins.contract import JoinSettings, Prediction, Scenario
from semistream.joins.papers.mesh import MeshJoin
from semistream.joins.papers.waiting_join import Shares

Schedule = Callable[[int], tuple[int, int]]


@dataclass(frozen=True)
class AmeshSettings(JoinSettings):
    """``schedule(iteration)`` gives (w, b): tuples to take and pages to read; by default both stay as they begin."""

    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        if self.schedule is not None and not callable(self.schedule):
            raise ArgumentError(f"schedule={self.schedule!r} must be a function from the iteration to (w, b)")


class AMeshJoin(MeshJoin):
    name = "amesh"
    idea = "MESHJOIN whose packet and read sizes may change at any step"
    settings_type = AmeshSettings
    settings: AmeshSettings

    def _set_up(self) -> None:
        super()._set_up()
        self.b = max(1, min(len(self.partitions), self.partitions.buffer_pages))
        self.w = max(1, self.table.capacity * self.b // self.chunks)

    @classmethod
    def divide(cls, scenario: Scenario) -> Shares:
        """As MESHJOIN; every page is a chunk."""
        shares = super().divide(scenario)
        return replace(shares, in_buffer=max(1, shares.buffer // scenario.facts.page_bytes))

    def _step(self) -> tuple[int, int]:
        w, b = self.settings.schedule(self.iteration) if self.settings.schedule else (self.w, self.b)
        return w, max(1, b)

    @classmethod
    def model(cls, scenario: Scenario) -> Prediction:
        """As MESHJOIN; a packet that has met all of R within a read cuts it in two."""
        said = super().model(scenario)
        if scenario.facts.pages % said.pages_per_read == 0:
            return said
        return replace(said, tuples_per_read=said.tuples_per_read / 2, pages_per_read=said.pages_per_read / 2)
