"""The loops of MESHJOIN and HYBRIDJOIN, which their kin share, and a tuple cache that may stand in front of either.

`ScanJoin`: the scan of R goes round and round, the stream passes by in packets. A step takes some tuples as a packet,
reads the next chunks of R and joins them with all that wait. A packet remembers where the scan stood when it came;
right after the chunk that completes its round it has met all of R and expires, by its slots and never by key, so that
newer tuples of the same key stay. At the end of the stream, and when nothing comes, steps without a packet let all that
wait meet the rest.

`QueueJoin`: fill the stream table, then load the partition of the oldest key. When nothing comes, it is loaded although
there is room (SSCJ, section 5.1: the disk phase begins when the stream buffer is empty), until nobody waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator

import numpy as np
import pyarrow as pa

from semistream.errors import InvariantError
from semistream.joins.costs import Floats
from semistream.joins.output import Indices
from semistream.joins.papers.master_cache import MasterCache
from semistream.joins.papers.stream_table import Entries, Slots
from semistream.joins.papers.waiting_join import Shares, Source, WaitingJoin
from semistream.keys import Codes, Mask
from semistream.rows import Addresses
from semistream.stores.fetching import to_batch

_NO_ENTRIES: Entries = np.empty(0, np.int64)


class ScanJoin(WaitingJoin):
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

    def _loop(self, source: Source) -> Iterator[pa.RecordBatch]:
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

    def _scan(self, count: int) -> Iterator[pa.RecordBatch]:
        """Join the next chunks with all that wait; nobody waiting, nothing is read.

        Chunks up to the next expiry are read together where they can be, which gives the same pairs.
        """
        while count > 0 and self.packets:
            first, due = self.at, self.packets[0][1] + self.chunks - self.chunks_done
            run = min(count, due, self.chunks - first)
            while run > 1 and not self.partitions.in_one_piece(first, first + run):
                run //= 2
            self.at = (first + run) % self.chunks
            if len(self.partitions):
                whole = run == 1 and self.partitions.in_one_piece(first)
                for codes, rows in self._load(first, first + run):
                    yield from self._meet(codes, rows, whole=whole)
                self.stats.count_reads(self.partitions.reader.counters)
            self.chunks_done += run
            count -= run
            while self.packets and self.chunks_done - self.packets[0][1] >= self.chunks:
                slots, came = self.packets.popleft()
                if self.chunks_done - came != self.chunks:
                    raise InvariantError(f"{self.name}: a packet met {self.chunks_done - came} chunks of {self.chunks}")
                yield from self.meeting.settle(slots, self.iteration + 1)  # before the next step takes its tuples
                self.table.expire(slots)

    def _meet(self, codes: Codes, rows: Addresses, *, whole: bool) -> Generator[pa.RecordBatch, None, Entries]:
        """As every waiting join on the key; under a condition, with all that wait."""
        condition = self.plan.condition
        if condition is None:
            return (yield from super()._meet(codes, rows, whole=whole))
        columns = to_batch(self.store, codes, rows, condition.master_columns).columns
        waiting, most = self.table.waiting_slots(), self.output.most_rows
        for start in range(0, len(waiting), most):
            slots = waiting[start : start + most]
            stream = self.table.take(slots).column(condition.stream)
            for left, right in condition.pairs(stream, columns, most):
                yield from self.meeting.paired(slots[left], codes[right], rows[right])
        return _NO_ENTRIES

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


class QueueJoin(WaitingJoin):
    def _set_up(self) -> None:
        super()._set_up()
        self.fruitless = 0  # iterations whose key had no match

    def _loop(self, source: Source) -> Iterator[pa.RecordBatch]:
        while not source.ended:
            yield from source.fill()
            if source.ended or source.quiet:
                while self.table.tuples:
                    yield from self._disk_phase()
                continue
            while (count := self._fitting(source.stream)) == 0 or self._due():
                yield from self._disk_phase()
            yield from self._admit(*source.take(count))

    def _due(self) -> bool:
        return False

    def _disk_phase(self) -> Iterator[pa.RecordBatch]:
        """Load the partition of the oldest key; all that wait for one of its keys leave."""
        self.iteration += 1
        oldest = self.table.oldest()
        assert oldest is not None
        leaving = [self.table.lookup(np.array([oldest], np.uint64))]  # matched or not: no other partition has this key
        number = self.partitions.of(oldest)
        if number is not None:
            self.stats.sweeps += 1
            whole = self.partitions.in_one_piece(number)
            for codes, rows in self.partitions.load(number):
                leaving.append((yield from self._meet(codes, rows, whole=whole)))
            self.stats.count_reads(self.partitions.reader.counters)
        gone = np.unique(np.concatenate(leaving))
        self.fruitless += not self.table.matched[self.table.slots_of(leaving[0])].any()
        yield from self.meeting.settle(self.table.slots_of(gone), self.iteration)
        self.table.remove(gone)

    def check(self) -> None:
        """As every waiting join; and a tuple leaves within n iterations that found a key."""
        super().check()
        longest, count = self.meeting.waits.longest, len(self.partitions)
        said = f"a tuple waited {longest} iterations, there are only {count} partitions"
        self._ensure(holds=longest <= count + self.fruitless, said=said)


class CacheFirst(WaitingJoin):
    """Stream phase: probe H_R first; only misses wait."""

    cache_share = 0.5  # of what buffers leave
    factor = 2

    def _set_up(self) -> None:
        super()._set_up()
        self.cache = MasterCache(self.facts, self.plan, self.cached_rows(self.shares), self.output)

    def _run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from super()._run(batches)
        self.stats.cached_rows, self.stats.cached_bytes = self.cache.rows, self.cache.used_bytes

    def answer(self, stream: pa.RecordBatch, codes: Codes, waiting: Mask, *, again: bool) -> Iterator[pa.RecordBatch]:
        del again
        yield from self.cache.answer(stream, codes, waiting)

    def _saves(self, tuples: Indices | Floats, rows: Indices) -> Mask:
        """MOIJ's inequality, corrected: do so many tuples take more memory than so many cached rows?

        A tuple waits for half the time on average, hence the factor.
        """
        return tuples * self.shares.slot > self.factor * rows * self.shares.row_cost

    @classmethod
    def cached_rows(cls, shares: Shares) -> int:
        """Rows that H_R has room for."""
        share = getattr(shares.scenario.settings, "cache_share", cls.cache_share)
        return int(shares.free * share) // shares.row_cost if shares.spare > 0 else 0

    @classmethod
    def reserves(cls, shares: Shares) -> dict[str, int]:
        return {"cache": cls.cached_rows(shares) * shares.row_cost}

    def check(self) -> None:
        """As the join behind the cache; and the cache is whole."""
        super().check()
        self.cache.check(self.name)


class CacheJoin(CacheFirst, QueueJoin):
    """The cache in front of HYBRIDJOIN."""

    def check(self) -> None:
        """As above; and no key is in H_R and H_S at once, which is why nothing waits for a cached key."""
        super().check()
        both = int((self.table.lookup(self.cache.codes_held()) >= 0).sum())
        self._ensure(holds=both == 0, said=f"{both} keys are both cached and waiting")
