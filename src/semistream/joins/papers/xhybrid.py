"""X-HYBRIDJOIN (Naeem, Dobbie, Weber 2011): HYBRIDJOIN with a pinned part.

Idea: R is stored by access frequency, so its first pages serve most of a skewed stream. They stay in memory (pinned);
the other half of the disk buffer is loaded by index, as in HYBRIDJOIN. Both are probed in every iteration.
Budget: index, swappable part, pinned part, output; the rest are slots of H.
Cost: c_loop = c_IO(k·v_P) + (d_N + d_S)c_H + w(c_O + c_E + c_S + c_A); w = h_S/(n(1 − p_N) + p_N).
Invariants: HYBRIDJOIN's; after the pinned probe no waiting key is pinned.
Departures: the pinned part is probed before the oldest key is chosen, or the load may be wasted. Stores are sorted by
key: pinning helps when keys are ranks, as in the papers' own experiments; on shuffled keys it is HYBRIDJOIN with less
memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.budget import Budget
from semistream.joins.contract import Prediction, Profile
from semistream.joins.costs import Master, prediction, queue_reads, settled
from semistream.joins.papers.meeting import groups_of
from semistream.joins.papers.queue_join import QueueJoin
from semistream.joins.popularity import Popularity
from semistream.lookup.bind import LookupPlan


class XHybridJoin(QueueJoin):
    """The first pages of R stay in memory; see the module."""

    name = "xhybrid"
    idea = "HYBRIDJOIN whose first pages stay in memory"

    def __init__(self, store: Any, plan: LookupPlan, budget: Budget) -> None:
        super().__init__(store, plan, budget)
        self._pinned: tuple[Any, Any, Any, Any, Any] | None = None

    def _reserve(self, spare: int) -> None:
        size = min(self._pinned_bytes(spare), self.budget.free)
        self._pinned_pages = size // self.store.page_bytes // 2  # as pages, and as rows taken from them
        self.budget.grant("pinned", 2 * self._pinned_pages * self.store.page_bytes)

    def _pinned_bytes(self, spare: int) -> int:
        """As much as the swappable part."""
        return 2 * self.budget.parts["buffer"] if spare > 0 else 0

    def _pin(self) -> tuple[Any, Any, Any, Any, Any]:
        """Load the first pages, as far as they hold whole groups."""
        _, firsts = next(iter(self.store.levels()))
        last = min(self._pinned_pages, len(firsts))
        while 0 < last < len(firsts) and firsts[last] == firsts[last - 1]:  # a group goes on there
            last -= 1
        codes, kept = [np.empty(0, np.uint64)], []
        for some, rows in self.store.page_rows(self.partitions.reader, 0, last):
            codes.append(some)
            kept.append(self.store.copy_rows(rows))
        addresses = np.concatenate([packed.addresses for packed in kept]) if kept else np.empty(0, np.int64)
        order = np.argsort(np.concatenate(codes), kind="stable")
        return (*groups_of(np.concatenate(codes)[order]), addresses[order], kept)

    def _disk_phase(self) -> Iterator[pa.RecordBatch]:
        """Probe the pinned part first; then, if anybody still waits, go on as HYBRIDJOIN."""
        if self._pinned is None:
            self._pinned = self._pin()
        distinct, first, last, rows, _ = self._pinned
        entries = self.table.lookup(distinct)
        hit = np.flatnonzero(entries >= 0)
        if len(hit):
            self.iteration += 1
            yield from self.meeting.meet(entries[hit], distinct[hit], first[hit], last[hit], rows)
            yield from self.meeting.settle(self.table.slots_of(entries[hit]), self.iteration)
            self.fruitless += 1  # an iteration of its own, without a partition
            self.table.remove(entries[hit])
        if self.table.tuples:
            yield from super()._disk_phase()

    @classmethod
    def predict(
        cls, store: Any, plan: LookupPlan, memory_bytes: int, profile: Profile, settings: Any = None
    ) -> Prediction:
        """HYBRIDJOIN on what is not pinned; pinned keys take a slot for one iteration."""
        chosen = settings or (cls.settings_type() if cls.settings_type is not None else None)
        shares = cls.shares(store, plan, memory_bytes, chosen.swappable if chosen is not None else cls.buffer_share)
        master = Master.of(store, shares.buffer)
        wanted = int(shares.spare * chosen.pinned) if chosen is not None else 2 * shares.buffer
        pages = min(wanted if shares.spare > 0 else 0, shares.free) // store.page_bytes // 2
        slots = shares.slots(2 * pages * store.page_bytes)
        popularity = Popularity(master.keys, profile.skew)
        share = min(1.0, pages / master.pages)
        hits = popularity.head(share * master.keys) if profile.ranked else share
        first = int(share * master.partitions)
        if share == 1.0:
            misses = math.inf
        else:
            rest = popularity.without(share * master.keys) if profile.ranked else popularity
            of = rest.partitions(master.partitions - first, ranked=profile.ranked)
            # Of the tuples that come in an iteration, those of pinned keys leave at its end.
            tuples = settled(lambda w: queue_reads(max(1.0, slots - w * hits), of)[0] / (1 - hits), 1.0)
            misses = tuples * (1 - hits)
        parts = {
            "index": store.index_bytes,
            "swappable part": shares.buffer,
            "pinned part": 2 * pages * store.page_bytes,
            "stream table": slots * shares.slot,
        }
        return prediction(hits, misses, master, parts, profile, shares.piece_rows)
