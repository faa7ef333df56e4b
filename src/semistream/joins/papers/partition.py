"""The partition-based join (Chakraborty, Singh 2009), reconstructed from its abstract: tuples wait by partition of R.

Idea: hot partitions of R stay in memory and answer their tuples at once. All others wait in a buffer of their
partition; when memory is full, or a partition has gathered enough tuples, it is read once for all of them.
Budget: index, disk buffer, output; of the rest two fifths for partitions in memory, the others for waiting tuples.
Invariants: all tuples of a partition leave with its read; nobody waits for a partition that is in memory.
Departures: the threshold is four times the mean share of a partition. Waiting is unbounded, as in the original, its
known flaw: a tuple whose partition nobody else asks for waits until the stream pauses or ends (``waits.longest``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pyarrow as pa

from semistream.joins.papers.block_join import BlockJoin
from semistream.joins.papers.waiting_join import Shares


class PartitionJoin(BlockJoin):
    name = "partition"
    idea = "tuples wait by partition; the one with most of them is read next"

    def _set_up(self) -> None:
        super()._set_up()
        self.threshold = max(2, 4 * self.table.capacity // max(1, len(self.partitions)))

    def _due(self) -> bool:
        return int(self.waiting.max()) >= self.threshold

    def _disk_phase(self) -> Iterator[pa.RecordBatch]:
        self.iteration += 1
        yield from self._serve(int(self.waiting.argmax()))

    @classmethod
    def counts(cls, shares: Shares) -> tuple[float, float]:
        """Blocks fill up to one level and are read there; on average they are half full."""
        hits, others = cls.blocks_in_memory(shares)
        return hits, max(1.0, 2 * shares.slots / len(others)) if len(others) else math.inf
