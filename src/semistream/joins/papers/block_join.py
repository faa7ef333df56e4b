"""Blocks of R in memory, and stream tuples that wait by block: what SSIJ and the partition-based join share.

A block is a partition of R. The blocks that the stream asks for most often stay in memory, as rows; a tuple whose
block is there is answered at once, all others wait. Counts are halved now and then, so that a hotspot that moved on
is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.budget import Budget
from semistream.errors import InvariantError
from semistream.joins.contract import JoinSettings, Scenario
from semistream.joins.costs import Master
from semistream.joins.groups import groups_of
from semistream.joins.matching import Indices
from semistream.joins.papers.in_order import emit
from semistream.joins.papers.multimap import Slots
from semistream.joins.papers.queue_join import QueueJoin
from semistream.joins.papers.waiting_join import Shares, WaitingJoin
from semistream.joins.popularity import Floats
from semistream.keys import Codes, Mask
from semistream.lookup.bind import LookupPlan
from semistream.rows import Addresses, PackedRows
from semistream.stores.contract import Store, StoreFacts
from semistream.stores.fetching import copy_rows

_NO_ROWS: Addresses = np.empty(0, np.int64)
_BLOCK_SHARE = 0.4  # of what buffers leave, for blocks in memory
_HALVE_EVERY = 20  # arrivals a block
_COUNT_BYTES = 20  # of a block, for the numbers of those that ask for it and wait for it


@dataclass(frozen=True)
class Block:
    """Rows of a block in memory, by key."""

    codes: Codes
    first: Indices
    last: Indices
    rows: Addresses
    packed: PackedRows

    @property
    def bytes(self) -> int:
        return int(self.packed.buffer.nbytes + 40 * len(self.rows) + 512)


class BlockJoin(QueueJoin):
    """Tuples wait by block; see the module. A subclass says which blocks are read when."""

    buffer_share = 0.005

    def __init__(self, store: Store, plan: LookupPlan, budget: Budget, settings: JoinSettings | None = None) -> None:
        super().__init__(store, plan, budget, settings)
        self._limit = self._block_bytes(self.shares)
        self.blocks: dict[int, Block] = {}
        self.block_bytes = 0
        self.arrivals = np.zeros(
            len(self.partitions) + 1, np.int64
        )  # arrivals by block; the last place is for no block
        self._block_of = np.full(self.table.capacity, -1, np.int32)
        self.waiting = np.zeros(len(self.partitions) + 1, np.int64)

    def _blocks_of(self, codes: Codes) -> npt.NDArray[np.int64]:
        """The block of each code; the number of blocks for a code that the index knows to be absent."""
        order = np.argsort(codes)
        low, high = self.partitions.store.locate(codes[order])
        found = np.searchsorted(self.partitions.edges, low, "right") - 1
        found[high <= low] = len(self.partitions)
        result = np.empty(len(codes), np.int64)
        result[order] = found
        return result

    @staticmethod
    def _block_bytes(shares: Shares) -> int:
        """Bytes for blocks in memory."""
        return int(shares.free * _BLOCK_SHARE) if shares.spare > 0 else 0

    @classmethod
    def divide(cls, scenario: Scenario) -> Shares:
        """As every waiting join; blocks in memory have their share, and every block is counted."""
        shares = super().divide(scenario)
        counts = _COUNT_BYTES * (Master.of(scenario.facts, shares.buffer).partitions + 1)
        return replace(shares, reserved={"blocks": min(cls._block_bytes(shares) + counts, shares.free)})

    @classmethod
    def blocks_in_memory(cls, facts: StoreFacts, shares: Shares, master: Master) -> tuple[float, Floats]:
        """For the cost models: the hits of blocks in memory, and the shares of all other blocks."""
        size = master.partition_pages * master.rows_per_page * (facts.row_bytes + 40) + 512
        ordered = np.sort(master.partition_shares())[::-1]
        count = min(len(ordered), int(cls._block_bytes(shares) / size))
        return float(ordered[:count].sum()), ordered[count:]

    # -- stream phase ------------------------------------------------------------------------------------------------

    def _answer(self, stream: pa.RecordBatch, codes: Codes, waiting: Mask, *, again: bool) -> Iterator[pa.RecordBatch]:
        of = self._blocks_of(codes)
        if not again:
            self.arrivals += np.bincount(of, minlength=len(self.arrivals))
        if self.arrivals.sum() > _HALVE_EVERY * len(self.arrivals) + 100_000:
            self.arrivals >>= 1
        here = [number for number in np.unique(of).tolist() if number in self.blocks or number == len(self.partitions)]
        for number in here:
            some = np.flatnonzero(of == number)
            waiting[some] = False
            yield from self._from_memory(stream.take(pa.array(some)), codes[some], self.blocks.get(number))
        self._arriving = of[waiting]

    def _from_memory(self, stream: pa.RecordBatch, codes: Codes, block: Block | None) -> Iterator[pa.RecordBatch]:
        first, last, rows = np.zeros(len(codes), np.int64), np.zeros(len(codes), np.int64), _NO_ROWS
        if block is not None and len(block.codes):
            at = np.searchsorted(block.codes, codes)
            at[at == len(block.codes)] = 0
            found = np.flatnonzero(block.codes[at] == codes)
            first[found], last[found], rows = block.first[at[found]], block.last[at[found]], block.rows
        yield from emit(self.output, stream, codes, first, last, rows, sure=self.output.sure)

    def _added(self, slots: Slots) -> None:
        self._block_of[slots] = self._arriving
        self.waiting += np.bincount(self._arriving, minlength=len(self.waiting))

    def _start_afresh(self) -> None:
        super()._start_afresh()
        self._block_of[:] = -1
        self.waiting[:] = 0

    # -- join phase --------------------------------------------------------------------------------------------------

    def _serve(self, number: int) -> Iterator[pa.RecordBatch]:
        """Read a block; all that wait for it leave, matched or not. It may stay in memory."""
        self.stats.sweeps += 1
        whole = self.partitions.in_one_piece(number)
        for codes, rows in self.partitions.load(number):
            yield from self._meet(codes, rows, whole=False)
            if whole and self._may_stay(number, self._size(len(rows))):
                packed = copy_rows(self.facts.layout, rows)
                self._keep(number, Block(*groups_of(codes), packed.addresses, packed))
        self.stats.count_reads(self.partitions.reader.counters)
        slots = np.flatnonzero(self._block_of == number).astype(np.int32)
        entries = np.unique(self.table.entries_of(slots))
        yield from self.meeting.settle(slots, self.iteration)
        self._block_of[slots] = -1
        self.waiting[number] = 0
        self.table.remove(entries)

    def _size(self, rows: int) -> int:
        """About what a block of so many rows takes in memory."""
        return int(rows * (self.facts.row_bytes + 40) + 512)

    def _may_stay(self, number: int, size: int) -> bool:
        """Is there room for it, or does one that is asked for less often lie there?"""
        if self.block_bytes + size <= self._limit:
            return True
        weakest = min(self.blocks, key=lambda other: self.arrivals[other], default=None)
        return weakest is not None and bool(self.arrivals[weakest] < self.arrivals[number])

    def _keep(self, number: int, block: Block) -> None:
        """Let those go that are asked for less often, until there is room."""
        while self.block_bytes + block.bytes > self._limit:
            weakest = min(self.blocks, key=lambda other: self.arrivals[other], default=None)
            if weakest is None or self.arrivals[weakest] >= self.arrivals[number]:
                return
            self.block_bytes -= self.blocks.pop(weakest).bytes
        self.blocks[number] = block
        self.block_bytes += block.bytes

    def check(self) -> None:
        """As every waiting join; nobody is counted as waiting for a block. When a tuple leaves, the subclass says."""
        WaitingJoin.check(self)
        if self.waiting.any() or (self._block_of >= 0).any():
            raise InvariantError(f"{self.name}: {int(self.waiting.sum())} tuples are counted as waiting for a block")
