"""MESHJOIN's loop, which its kin share: the scan of R goes round and round, the stream passes by in packets.

A step takes up to w tuples as a packet, reads the next chunk of R and joins it with all that wait. A packet has met
all of R once it has seen as many chunks as there are; then it expires, by its slots and never by key, so that newer
tuples of the same key stay. At the end of the stream, and when nothing comes, empty packets let all that wait meet the
rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator

import numpy as np
import pyarrow as pa

from semistream.budget import Budget
from semistream.errors import InvariantError
from semistream.joins.contract import JoinSettings, Scenario
from semistream.joins.costs import Master
from semistream.joins.papers.multimap import Entries, Slots
from semistream.joins.papers.waiting_join import Shares, Source, WaitingJoin
from semistream.keys import Codes
from semistream.lookup.bind import LookupPlan
from semistream.rows import Addresses
from semistream.stores.contract import Store
from semistream.stores.fetching import to_batch

_NOBODY: Slots = np.empty(0, np.int32)
_NO_ENTRIES: Entries = np.empty(0, np.int64)


class ScanJoin(WaitingJoin):
    """The loop; see the module."""

    takes_conditions = True
    keeps_order = True

    def __init__(self, store: Store, plan: LookupPlan, budget: Budget, settings: JoinSettings | None = None) -> None:
        super().__init__(store, plan, budget, settings)
        self.chunks = max(1, len(self.partitions))  # an empty R is met at once
        self.w = max(1, self.table.capacity // self.chunks)
        self.queue: deque[Slots] = deque()
        self._packet: list[Slots] = []
        self.at = 0  # the chunk that is read next

    # -- the flow --------------------------------------------------------------------------------------------------

    def _loop(self, source: Source) -> Iterator[pa.RecordBatch]:
        while not (source.ended and self.table.tuples == 0):
            self.iteration += 1
            if len(self.queue) == self.chunks:
                yield from self._expire(self.queue.popleft())
            yield from self._arrive(source, self.w)
            self.queue.append(np.concatenate(self._packet) if self._packet else _NOBODY)
            yield from self._scan()
        self.queue.clear()

    def _start_afresh(self) -> None:
        super()._start_afresh()
        self.queue.clear()

    def _arrive(self, source: Source, wanted: int) -> Iterator[pa.RecordBatch]:
        """Fill the next packet, as far as stream and room go; what can be answered at once takes no place in it."""
        self._packet = []
        if source.quiet and self.table.tuples:  # the scan goes on with empty packets until nobody waits
            return
        while wanted > 0:
            yield from source.fill()
            count = min(wanted, self._fitting(source.stream))
            if count == 0:
                return
            before = self.table.tuples
            yield from self._admit(*source.take(count))
            wanted -= self.table.tuples - before

    def _added(self, slots: Slots) -> None:
        self._packet.append(slots)

    def _scan(self) -> Iterator[pa.RecordBatch]:
        """Read the next chunk and join it with all that wait; nobody waiting, nothing is read."""
        number, self.at = self.at, (self.at + 1) % self.chunks
        if self.table.tuples == 0 or len(self.partitions) == 0:
            return
        whole = self.partitions.in_one_piece(number)
        for codes, rows in self._load(number):
            yield from self._meet(codes, rows, whole=whole)
        self.stats.count_reads(self.partitions.reader.counters)

    def _meet(self, codes: Codes, rows: Addresses, *, whole: bool) -> Generator[pa.RecordBatch, None, Entries]:
        """As every waiting join on the key; under a condition, with all that wait."""
        condition = self.plan.condition
        if condition is None:
            return (yield from super()._meet(codes, rows, whole=whole))
        columns = to_batch(self.store, codes, rows, condition.master_columns).columns
        waiting, most = self.table.waiting_slots(), self.output.most_rows
        for start in range(0, len(waiting), most):
            slots = waiting[start : start + most]
            block = self.table.take(slots)
            for left, right in condition.pairs(block.column(condition.stream), columns, most):
                yield from self.meeting.paired(block, left, slots[left], codes[right], rows[right])
        return _NO_ENTRIES

    def _load(self, number: int) -> Iterator[tuple[Codes, Addresses]]:
        """The rows of a chunk, by one read."""
        self.stats.sweeps += 1
        yield from self.partitions.load(number)

    def _expire(self, slots: Slots) -> Iterator[pa.RecordBatch]:
        """A packet has met all of R."""
        if len(slots):
            yield from self.meeting.settle(slots, self.iteration)
            self.table.expire(slots)

    # -- what every join has -----------------------------------------------------------------------------------------

    def check(self) -> None:
        """As every waiting join; and every tuple is out after as many steps as R has chunks."""
        super().check()
        if self.meeting.waits.longest > self.chunks:
            raise InvariantError(
                f"{self.name}: a tuple waited {self.meeting.waits.longest} steps, R has {self.chunks} chunks"
            )

    @classmethod
    def counts(cls, scenario: Scenario, shares: Shares, master: Master) -> tuple[float, float]:
        """MESHJOIN's model: w = h_S/n, whatever the stream's skew."""
        del scenario
        return 0.0, max(1.0, shares.slots / master.partitions)
