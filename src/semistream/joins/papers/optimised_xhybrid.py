"""Optimised X-HYBRIDJOIN (Naeem, Dobbie, Weber 2012): the pinned part as a hash table that the stream probes first.

Idea: as X-HYBRIDJOIN, but the pinned tuples of R are a table H_R that every stream tuple probes before it would wait.
So it is a join with a static cache: the first tuples of R, which is stored by frequency.
Budget: index, disk buffer, output; of the rest half for H_R, half for H_S.
Invariants: HYBRIDJOIN's; no waiting key is pinned.
Departures: as X-HYBRIDJOIN, it helps when keys are ranks. The cache is filled when the first batch comes.
"""

import math
from collections.abc import Iterator

import pyarrow as pa

from semistream.joins.costs import queue_reads
from semistream.joins.groups import Groups
from semistream.joins.papers.sscj import CacheJoin
from semistream.joins.papers.waiting_join import Incoming, Shares


class OptimisedXHybridJoin(CacheJoin):
    name = "optimised_xhybrid"
    idea = "the first rows of R in a hash table that is probed first, the others by HYBRIDJOIN"

    def _loop(self, source: Incoming) -> Iterator[pa.RecordBatch]:
        if self.cache.rows == 0 and self.cache.capacity:
            self._pin()
        yield from super()._loop(source)

    def _pin(self) -> None:
        for number in range(len(self.partitions)):
            if not self.partitions.in_one_piece(number):
                continue
            for codes, rows in self.partitions.load(number):
                groups = Groups.of(codes, rows)
                if len(self.cache.put(groups[self.cache.is_new(groups)], 0).codes) == 0:
                    return

    @classmethod
    def counts(cls, shares: Shares) -> tuple[float, float]:
        """HYBRIDJOIN behind a cache of the first keys of R."""
        master = shares.master
        of = master.partition_shares()
        pinned = cls.cached_rows(shares) / (master.rows_per_key * master.keys) * master.partitions
        first = int(pinned)
        if first >= len(of):
            return float(of.sum()), math.inf
        hits = float(of[:first].sum() + of[first] * (pinned - first))
        return hits, queue_reads(shares.slots, of[first:])[0]
