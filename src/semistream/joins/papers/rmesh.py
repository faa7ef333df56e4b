"""R-MESHJOIN (Naeem and others 2010), reconstructed from its description in later papers: MESHJOIN in smaller steps.

Idea: the disk buffer of b pages is cut into l segments. One read fills it, then l steps of w tuples go by, each with
one segment; so packets are smaller and tuples wait for R in finer steps, at the same number of reads.
Budget: as MESHJOIN.
Cost and invariants are MESHJOIN's, with l·N_R/b cells in the queue; ``segments=1`` is MESHJOIN, step by step.
Departures: segments that end within a level of the store, or groups larger than the buffer, are read one by one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from semistream.errors import ArgumentError
from semistream.joins.contract import JoinSettings, Scenario
from semistream.joins.papers.mesh import MeshJoin
from semistream.joins.papers.waiting_join import Incoming, Shares
from semistream.keys import Codes
from semistream.rows import Addresses


@dataclass(frozen=True)
class RmeshSettings(JoinSettings):
    """Segments of the disk buffer."""

    segments: int = 4

    def __post_init__(self) -> None:
        if self.segments < 1:
            raise ArgumentError(f"segments={self.segments} must be at least 1")


class RMeshJoin(MeshJoin):
    name = "rmesh"
    idea = "MESHJOIN whose disk buffer is joined segment by segment"
    settings_type = RmeshSettings
    settings: RmeshSettings

    # First and last segment in the buffer, codes, rows, and the requests of its reader until then.
    _block: tuple[int, int, Codes, Addresses, int] | None = None

    @classmethod
    def divide(cls, scenario: Scenario) -> Shares:
        """As MESHJOIN; several segments fill the buffer."""
        return replace(super().divide(scenario), in_buffer=RmeshSettings.of(scenario.settings).segments)

    def _load(self, number: int, end: int) -> Iterator[tuple[Codes, Addresses]]:
        """The rows of a segment, from the buffer unless a tuple that left has read its matches into it meanwhile."""
        parts = self.partitions
        requests = parts.reader.counters.requests
        if self._block is None or not self._block[0] <= number < self._block[1] or self._block[4] != requests:
            last = min(number + self.shares.in_buffer, len(parts))
            self.stats.sweeps += 1
            if not parts.in_one_piece(number, last):
                self._block = None
                yield from parts.load(number, end)
                return
            [(codes, rows)] = list(parts.load(number, last)) or [(np.empty(0, np.uint64), np.empty(0, np.int64))]
            self._block = (number, last, codes, rows, parts.reader.counters.requests)
        first, last, codes, rows, _ = self._block
        start = 0 if number == first else int(np.searchsorted(codes, parts.first_codes[number]))
        end = len(codes) if number + 1 == last else int(np.searchsorted(codes, parts.first_codes[number + 1]))
        yield codes[start:end], rows[start:end]

    def _loop(self, source: Incoming) -> Iterator[pa.RecordBatch]:
        self._block = None
        yield from super()._loop(source)
