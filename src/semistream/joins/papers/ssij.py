"""SSIJ, the semi-stream index join (Bornea, Deligiannakis, Kotidis, Vassalos 2011), reconstructed from its abstract.

Idea: three phases. Pending: input is buffered. Online: it probes the blocks of R in memory, and misses go to the
stream buffer. Join: when that is full, all blocks it needs are read in the order of the disk, so a pass is shared by
many tuples; counters by block decide which ones stay in memory.
Budget: index, disk buffer, output; of the rest two fifths for blocks in memory, the others for the stream buffer.
Invariants: after a join phase nobody waits; nobody waits for a block that is in memory.
Departures: neighbouring blocks are not joined into one read; the pending phase is the piece in which the stream
comes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from semistream.joins.contract import JoinSettings, Prediction, Profile
from semistream.joins.costs import prediction
from semistream.joins.papers.block_join import BlockJoin
from semistream.lookup.bind import LookupPlan
from semistream.stores.contract import StoreFacts


class SemiStreamIndexJoin(BlockJoin):
    """All needed blocks in one pass; see the module."""

    name = "ssij"
    idea = "misses gather until the buffer is full, then all blocks they need are read in order"

    def _disk_phase(self) -> Iterator[pa.RecordBatch]:
        self.iteration += 1
        for number in np.flatnonzero(self.waiting[:-1]).tolist():
            yield from self._serve(number)

    @classmethod
    def predict(
        cls,
        facts: StoreFacts,
        plan: LookupPlan,
        memory_bytes: int,
        profile: Profile,
        settings: JoinSettings | None = None,
    ) -> Prediction:
        """A pass reads every block that the gathered tuples need."""
        del settings
        shares, master, slots, hits, others = cls.blocks_in_memory(facts, plan, memory_bytes, profile)
        misses = others / max(1e-12, others.sum()) * slots  # by block, when the buffer is full
        reads = float(-np.expm1(-misses).sum()) if len(others) else 0.0
        parts = cls.parts_of(facts, shares, slots)
        return prediction(hits, slots / reads if reads else math.inf, master, parts, profile, shares.piece_rows)
