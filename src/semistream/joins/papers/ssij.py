"""SSIJ, the semi-stream index join (Bornea, Deligiannakis, Kotidis, Vassalos 2011), reconstructed from its abstract.

Idea: pending, input is buffered; online, it probes the blocks of R in memory, and misses go to the stream buffer; join,
when that is full: all blocks it needs are read in the order of the disk, and those asked for most stay in memory.
Budget: index, disk buffer, output; of the rest two fifths for blocks in memory, the others for the stream buffer.
Invariants: after a join phase nobody waits; nobody waits for a block that is in memory.
Departures: neighbouring blocks are not joined into one read; the pending phase is the piece in which tuples come.
"""

import math
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from semistream.joins.papers.partition import BlockJoin
from semistream.joins.papers.waiting_join import Shares


class SemiStreamIndexJoin(BlockJoin):
    name = "ssij"
    idea = "misses gather until the buffer is full, then all blocks they need are read in order"

    def _disk_phase(self) -> Iterator[pa.RecordBatch]:
        self.iteration += 1
        for number in np.flatnonzero(self.waiting[:-1]).tolist():
            yield from self._serve(number)

    @classmethod
    def counts(cls, shares: Shares) -> tuple[float, float]:
        """A pass reads every block that the gathered tuples need."""
        hits, others = cls.blocks_in_memory(shares)
        misses = others / max(1e-12, others.sum()) * shares.slots  # by block, when the buffer is full
        reads = float(-np.expm1(-misses).sum()) if len(others) else 0.0
        return hits, shares.slots / reads if reads else math.inf
