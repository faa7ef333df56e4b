"""MESHJOIN (Polyzotis, Skiadopoulos, Vassiliadis, Simitsis, Frantzell 2008): the first semi-stream join.

Idea: R is scanned cyclically, b pages a step; w stream tuples enter with every step, as a packet, and stay until the
scan has come round. So one sequential read is shared by all tuples in memory. A packet expires right after the chunk
that completes its round, by its slots and never by key, so that newer tuples of the same key stay. At the end of the
stream, and when nothing comes, steps without a packet let all that wait meet the rest.
Budget: index (in memory anyway), buffer of b pages, output; the rest are k·w slots of H with their places in the queue.
Cost: c_loop = c_IO(b) + w(c_E + c_S + c_A) + b(v_P/v_R)(c_H + σ·c_O), μ = w/c_loop; the stream's skew is of no matter.
Invariants: a packet is probed by exactly k consecutive chunks, together R once; |H| ≤ k·w; all leaves within k steps.
Departures: short and empty packets when the stream has less (the printed loop would stop the scan); a chunk is not
read when nobody waits; chunks end between keys.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from semistream.errors import ArgumentError, InvariantError
from semistream.joins.conditions import Condition
from semistream.joins.contract import JoinSettings
from semistream.joins.groups import Groups
from semistream.joins.papers.stream_table import Slots
from semistream.joins.papers.waiting_join import Incoming, Shares, WaitingJoin
from semistream.keys import Codes
from semistream.rows import Addresses
from semistream.stores.fetching import to_batch


@dataclass(frozen=True)
class MeshSettings(JoinSettings):
    """The disk buffer's share of the budget, up to a mebibyte: b of the paper, which `semistream tune mesh` finds."""

    buffer_share: float = WaitingJoin.buffer_share

    def __post_init__(self) -> None:
        if not 0 <= self.buffer_share <= 0.9:
            raise ArgumentError(f"buffer_share={self.buffer_share} must be between 0 and 0.9")


class MeshJoin(WaitingJoin):
    name = "mesh"
    idea = "R is scanned round and round; a tuple stays until the scan has come round"
    settings_type: ClassVar[type[JoinSettings] | None] = MeshSettings
    takes_conditions = True
    keeps_order = True

    def _set_up(self) -> None:
        super()._set_up()
        self.chunks = max(1, len(self.partitions))  # an empty R is met at once
        self.w = max(1, self.table.capacity // self.chunks)
        self.packets: deque[tuple[Slots, int]] = deque()  # slots, and the chunks done before the packet came
        self._packet: list[Slots] = []
        self.at = 0  # the chunk that is read next
        self.chunks_done = 0

    def _loop(self, source: Incoming) -> Iterator[pa.RecordBatch]:
        while not (source.ended and self.table.tuples == 0):
            self.iteration += 1
            tuples, chunks = self._step()
            yield from self._arrive(source, tuples)
            if self._packet:
                self.packets.append((np.concatenate(self._packet), self.chunks_done))
            yield from self._scan(chunks)

    def _step(self) -> tuple[int, int]:
        """How many tuples to take, and how many chunks to read."""
        return self.w, 1

    def _start_afresh(self) -> None:
        super()._start_afresh()
        self.packets.clear()

    def _arrive(self, source: Incoming, wanted: int) -> Iterator[pa.RecordBatch]:
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

    def _scan(self, count: int) -> Iterator[pa.RecordBatch]:
        """Join the next chunks, by one read up to an expiry, with all that wait; if nobody waits, nothing is read."""
        while count > 0 and self.packets:
            first, due = self.at, self.packets[0][1] + self.chunks - self.chunks_done
            run = min(count, due, self.chunks - first)
            while run > 1 and not self.partitions.in_one_piece(first, first + run):
                run //= 2
            self.at = (first + run) % self.chunks
            if len(self.partitions):
                whole = run == 1 and self.partitions.in_one_piece(first)
                for codes, rows in self._load(first, first + run):
                    if self.plan.condition is None:
                        yield from self._meet(Groups.of(codes, rows), whole=whole)
                    else:
                        yield from self._compare(codes, rows, self.plan.condition)
                self.stats.count_reads(self.partitions.reader.counters)
            self.chunks_done += run
            count -= run
            while self.packets and self.chunks_done - self.packets[0][1] >= self.chunks:
                slots, came = self.packets.popleft()
                if self.chunks_done - came != self.chunks:
                    raise InvariantError(f"{self.name}: a packet met {self.chunks_done - came} chunks of {self.chunks}")
                yield from self.meeting.settle(slots, self.iteration + 1)  # before the next step takes its tuples
                self.table.expire(slots)

    def _compare(self, codes: Codes, rows: Addresses, condition: Condition) -> Iterator[pa.RecordBatch]:
        """Join rows of R under a condition, with all that wait."""
        columns = to_batch(self.store, codes, rows, condition.master_columns).columns
        waiting, most = self.table.waiting_slots(), self.output.most_rows
        for start in range(0, len(waiting), most):
            slots = waiting[start : start + most]
            stream = self.table.take(slots).column(condition.stream)
            for left, right in condition.pairs(stream, columns, most):
                yield from self.meeting.paired(slots[left], codes[right], rows[right])

    def _load(self, first: int, last: int) -> Iterator[tuple[Codes, Addresses]]:
        """The rows of the chunks [first, last), by one read."""
        self.stats.sweeps += 1
        yield from self.partitions.load(first, last)

    def check(self) -> None:
        """As every waiting join; and every tuple is out after as many steps as R has chunks."""
        super().check()
        longest = self.meeting.waits.longest
        self._ensure(holds=longest <= self.chunks, said=f"a tuple waited {longest} steps, R has {self.chunks} chunks")

    @classmethod
    def counts(cls, shares: Shares) -> tuple[float, float]:
        """MESHJOIN's model: w = h_S/n, whatever the stream's skew."""
        return 0.0, max(1.0, shares.slots / shares.master.partitions)
