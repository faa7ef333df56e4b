"""The partition-based join (Chakraborty, Singh 2009), reconstructed from its abstract: tuples wait by partition of R.

Idea: hot partitions of R, or blocks, stay in memory and answer their tuples at once. All others wait by partition; when
memory is full, or a partition has gathered enough tuples, it is read once for all of them. Counts of arrivals by block
are halved now and then, so that a hotspot that moved on is forgotten. SSIJ stands on the same blocks.
Budget: index, disk buffer, output; of the rest two fifths for partitions in memory, the others for waiting tuples.
Invariants: all tuples of a partition leave with its read; nobody waits for a partition that is in memory.
Departures: the threshold is four times the mean share of a partition. Waiting is unbounded, as in the original, its
known flaw: a tuple whose partition nobody else asks for waits until the stream pauses or ends (``waits.longest``).
"""

import math
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from semistream.joins.costs import Floats
from semistream.joins.groups import Groups
from semistream.joins.papers.hybrid import HybridJoin
from semistream.joins.papers.meeting import emit
from semistream.joins.papers.stream_table import Slots
from semistream.joins.papers.waiting_join import Shares, WaitingJoin
from semistream.keys import Codes, Mask
from semistream.stores.contract import StoreFacts
from semistream.stores.fetching import copy_rows

_BLOCK_SHARE = 0.4  # of what buffers leave, for blocks in memory
_HALVE_EVERY = 20  # arrivals a block
_COUNT_BYTES = 20  # of a block, for the numbers of those that ask for it and wait for it


class BlockJoin(HybridJoin):
    """Tuples wait by block; a subclass says which blocks are read when."""

    buffer_share = 0.005

    def _set_up(self) -> None:
        super()._set_up()
        self._limit = self._block_bytes(self.shares)
        self.blocks: dict[int, Groups] = {}
        self._nothing = Groups.of_pieces([])
        self.block_bytes = 0
        # By block; the last place is for no block.
        self.arrivals = np.zeros(len(self.partitions) + 1, np.int64)
        self.waiting = np.zeros(len(self.partitions) + 1, np.int64)
        self._block_of = np.full(self.table.capacity, -1, np.int32)

    @staticmethod
    def _block_bytes(shares: Shares) -> int:
        return int(shares.free * _BLOCK_SHARE)

    @classmethod
    def reserves(cls, shares: Shares) -> dict[str, int]:
        """Blocks in memory have their share, and every block is counted."""
        counts = _COUNT_BYTES * (shares.master.partitions + 1)
        return {"blocks": min(cls._block_bytes(shares) + counts, shares.free)}

    @classmethod
    def blocks_in_memory(cls, shares: Shares) -> tuple[float, Floats]:
        """For the cost models: the hits of blocks in memory, and the shares of all other blocks."""
        master = shares.master
        ordered = np.sort(master.partition_shares())[::-1]
        size = _size(master.partition_pages * master.rows_per_page, shares.scenario.facts)
        count = min(len(ordered), int(cls._block_bytes(shares) / size))
        return float(ordered[:count].sum()), ordered[count:]

    def answer(self, stream: pa.RecordBatch, codes: Codes, waiting: Mask, *, again: bool) -> Iterator[pa.RecordBatch]:
        of = self.partitions.of(codes)
        if not again:
            self.arrivals += np.bincount(of, minlength=len(self.arrivals))
        if self.arrivals.sum() > _HALVE_EVERY * len(self.arrivals) + 100_000:
            self.arrivals >>= 1
        here = [number for number in np.unique(of).tolist() if number in self.blocks or number == len(self.partitions)]
        for number in here:
            some = np.flatnonzero(of == number)
            waiting[some] = False
            block = self.blocks.get(number, self._nothing)
            found = block.find(codes[some])
            tuples = stream.take(pa.array(some))
            yield from emit(self.output, tuples, codes[some], *found, block.rows)
        self._arriving = of[waiting]

    def _added(self, slots: Slots) -> None:
        self._block_of[slots] = self._arriving
        self.waiting += np.bincount(self._arriving, minlength=len(self.waiting))

    def _start_afresh(self) -> None:
        super()._start_afresh()
        self._block_of[:] = -1
        self.waiting[:] = 0

    def _serve(self, number: int) -> Iterator[pa.RecordBatch]:
        """Read a block; all that wait for it leave, matched or not. It may stay in memory."""
        self.stats.sweeps += 1
        whole = self.partitions.in_one_piece(number)
        for codes, rows in self.partitions.load(number):
            yield from self._meet(Groups.of(codes, rows), whole=False)
            fits = self.block_bytes + _size(len(rows), self.facts) <= self._limit
            if whole and (fits or self._weaker(number) is not None):
                packed = copy_rows(self.facts.layout, rows)
                self._keep(number, Groups.of(codes, packed.addresses, [packed]))
        self.stats.count_reads(self.partitions.reader.counters)
        slots = np.flatnonzero(self._block_of == number).astype(np.int32)
        entries = np.unique(self.table.entries_of(slots))
        yield from self.meeting.settle(slots, self.iteration)
        self._block_of[slots] = -1
        self.waiting[number] = 0
        self.table.remove(entries)

    def _weaker(self, number: int) -> int | None:
        """The block that is asked for least often, if it is so less often than this one."""
        weakest = min(self.blocks, key=lambda other: self.arrivals[other], default=None)
        return weakest if weakest is not None and self.arrivals[weakest] < self.arrivals[number] else None

    def _keep(self, number: int, block: Groups) -> None:
        """Let those go that are asked for less often, until there is room."""
        while self.block_bytes + _bytes(block) > self._limit:
            weakest = self._weaker(number)
            if weakest is None:
                return
            self.block_bytes -= _bytes(self.blocks.pop(weakest))
        self.blocks[number] = block
        self.block_bytes += _bytes(block)

    def check(self) -> None:
        """As every waiting join; nobody is counted as waiting for a block. When a tuple leaves, the subclass says."""
        WaitingJoin.check(self)
        nobody = not (self.waiting.any() or (self._block_of >= 0).any())
        self._ensure(holds=nobody, said=f"{int(self.waiting.sum())} tuples are counted as waiting for a block")


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


def _size(rows: float, facts: StoreFacts) -> float:
    """About what a block of so many rows takes in memory."""
    return rows * (facts.row_bytes + 40) + 512


def _bytes(block: Groups) -> int:
    return int(sum(packed.buffer.nbytes for packed in block.packed) + 40 * len(block.rows) + 512)
