"""HYBRIDJOIN's loop, which its successors share: fill the stream table, then load the partition of the oldest key.

When nothing comes, it is loaded although there is room (SSCJ, section 5.1: the disk phase begins when the stream
buffer is empty), until nobody waits.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from semistream.errors import InvariantError
from semistream.joins.papers.waiting_join import Source, WaitingJoin


class QueueJoin(WaitingJoin):
    """The loop; see the module."""

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
        """Is there something to read although there is room?"""
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
        if self.meeting.waits.longest > len(self.partitions) + self.fruitless:
            raise InvariantError(
                f"{self.name}: a tuple waited {self.meeting.waits.longest} iterations, there are only "
                f"{len(self.partitions)} partitions"
            )
