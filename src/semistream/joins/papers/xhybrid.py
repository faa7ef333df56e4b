"""X-HYBRIDJOIN (Naeem, Dobbie, Weber 2011): HYBRIDJOIN with a pinned part.

Idea: R is stored by access frequency, so its first pages serve most of a skewed stream. They stay in memory (pinned);
the other half of the disk buffer is loaded by index, as in HYBRIDJOIN. Both are probed in every iteration.
Budget: index, swappable part, pinned part, output; the rest are slots of H.
Cost: c_loop = c_IO(k·v_P) + (d_N + d_S)c_H + w(c_O + c_E + c_S + c_A); w = h_S/(n(1 − p_N) + p_N).
Invariants: HYBRIDJOIN's; after the pinned probe no waiting key is pinned.
Departures: the pinned part is probed before the oldest key is chosen, or the load may be wasted. Stores are sorted by
key: pinning helps when keys are ranks, as in the papers; on shuffled keys it is HYBRIDJOIN with less memory.
"""

import math
from collections.abc import Iterator
from functools import cached_property

import pyarrow as pa

from semistream.joins.costs import queue_reads, settled
from semistream.joins.groups import Groups
from semistream.joins.papers.hybrid import HybridJoin
from semistream.joins.papers.waiting_join import Shares
from semistream.stores.fetching import copy_rows

_PINNED = "pinned part"


class XHybridJoin(HybridJoin):
    name = "xhybrid"
    idea = "HYBRIDJOIN whose first pages stay in memory"
    buffer_name = "swappable part"

    def _set_up(self) -> None:
        super()._set_up()
        self._pinned_pages = _pages(self.shares)

    @cached_property
    def _pinned(self) -> Groups:
        """The first pages, as far as they hold whole groups; they are read when the first tuples wait."""
        _, firsts = next(iter(self.partitions.store.levels()))
        last = min(self._pinned_pages, len(firsts))
        while 0 < last < len(firsts) and firsts[last] == firsts[last - 1]:  # a group goes on there
            last -= 1
        read = self.partitions.reader.page_rows(0, last)
        return Groups.of_pieces([(codes, copy_rows(self.facts.layout, rows)) for codes, rows in read])

    def _disk_phase(self) -> Iterator[pa.RecordBatch]:
        """Probe the pinned part first; then, if anybody still waits, go on as HYBRIDJOIN."""
        entries = yield from self._meet(self._pinned, whole=False)
        if len(entries):
            self.iteration += 1
            yield from self.meeting.settle(self.table.slots_of(entries), self.iteration)
            self.fruitless += 1  # an iteration of its own, without a partition
            self.table.remove(entries)
        if self.table.tuples:
            yield from super()._disk_phase()

    @classmethod
    def pinned_bytes(cls, shares: Shares) -> int:
        """The pinned part: by default as large as the swappable one."""
        return 2 * shares.buffer

    @classmethod
    def reserves(cls, shares: Shares) -> dict[str, int]:
        """Whole pages are pinned; the rows taken from them are kept too."""
        page = shares.scenario.facts.page_bytes
        pinned = min(cls.pinned_bytes(shares), shares.free)
        return {_PINNED: 2 * (pinned // page // 2) * page}

    @classmethod
    def counts(cls, shares: Shares) -> tuple[float, float]:
        """HYBRIDJOIN on what is not pinned; pinned keys take a slot for one iteration."""
        master = shares.master
        ranked, popularity = master.profile.ranked, master.popularity
        share = min(1.0, _pages(shares) / master.pages)
        hits = popularity.head(share * master.keys) if ranked else share
        if share == 1.0:
            return hits, math.inf
        rest = popularity.without(share * master.keys) if ranked else popularity
        of = rest.partitions(master.partitions - int(share * master.partitions), ranked=ranked)
        # Of the tuples that come in an iteration, those of pinned keys leave at its end.
        tuples = settled(lambda w: queue_reads(max(1.0, shares.slots - w * hits), of)[0] / (1 - hits), 1.0)
        return hits, tuples * (1 - hits)


def _pages(shares: Shares) -> int:
    return shares.reserved[_PINNED] // shares.scenario.facts.page_bytes // 2
