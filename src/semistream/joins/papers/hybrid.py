"""HYBRIDJOIN (Naeem, Dobbie, Weber 2011), as SSCJ's and MOIJ's papers describe it.

Idea: stream tuples wait in a multimap H_S, their keys in a queue. The oldest key decides which partition of R is read
next, by the index; every tuple that waits for a key of that partition leaves with it. When nothing comes, it goes on
although there is room (SSCJ, section 5.1: the disk phase begins when the stream buffer is empty), until nobody waits.
Budget: index, disk buffer d, a piece of output; all the rest are slots of H_S with their queue nodes.
Cost: c_loop = c_IO(d) + d·c_H + w(c_O + c_E + c_S + c_A), μ = w/c_loop; on a uniform stream w ≈ 2·h_S/n.
Invariants: free slots + |H_S| = h_S; one queue node a key; a tuple leaves within n iterations.
Departures: after a read, as many tuples are loaded as slots came free (the printed loop forgets slots when input is
short); a key without a match leaves with all its tuples; the queue has one node a key, not one a tuple.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from semistream.joins.costs import queue_reads
from semistream.joins.groups import Groups
from semistream.joins.papers.waiting_join import Incoming, Shares, WaitingJoin


class HybridJoin(WaitingJoin):
    name = "hybrid"
    idea = "the oldest waiting key decides which partition is read"

    def _set_up(self) -> None:
        super()._set_up()
        self.fruitless = 0  # iterations whose key had no match

    def _loop(self, source: Incoming) -> Iterator[pa.RecordBatch]:
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
        leaving = [self.table.oldest_keys(1)]  # matched or not: no other partition has this key
        number = int(self.partitions.of(self.table.codes_of(leaving[0]))[0])
        if number < len(self.partitions):
            self.stats.sweeps += 1
            whole = self.partitions.in_one_piece(number)
            for codes, rows in self.partitions.load(number):
                leaving.append((yield from self._meet(Groups.of(codes, rows), whole=whole)))
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

    @classmethod
    def counts(cls, shares: Shares) -> tuple[float, float]:
        """HYBRIDJOIN's corrected model: w from the shares of the partitions."""
        return 0.0, queue_reads(shares.slots, shares.master.partition_shares())[0]
