"""Optimised X-HYBRIDJOIN (Naeem, Dobbie, Weber 2012): the pinned part as a hash table that the stream probes first.

Idea: as X-HYBRIDJOIN, but the pinned tuples of R are a table H_R that every stream tuple probes before it would wait;
a hit never takes a slot. So it is a cache join with a static cache: the first tuples of R, which is stored by access
frequency.
Budget: index, disk buffer, output; of the rest half for H_R, half for H_S.
Invariants: HYBRIDJOIN's; no waiting key is pinned.
Departures: as X-HYBRIDJOIN, it helps when keys are ranks. The cache is filled when the first batch comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.contracts import JoinPlan, Prediction
from semistream.joins._cache_join import CacheJoin
from semistream.joins._costs import hybrid_prediction
from semistream.joins._master_cache import row_cost
from semistream.joins._meeting import groups_of
from semistream.joins._waiting_join import Source


class OptimisedXHybridJoin(CacheJoin):
    """A static cache in front of HYBRIDJOIN; see the module."""

    name = "optimised_xhybrid"
    idea = "the first rows of R in a hash table that is probed first, the others by HYBRIDJOIN"

    def _loop(self, source: Source) -> Iterator[pa.RecordBatch]:
        if self.cache.rows == 0 and self.cache.capacity:
            self._pin()
        yield from super()._loop(source)

    def _pin(self) -> None:
        for number in range(len(self.partitions)):
            if not self.partitions.in_one_piece(number):
                continue
            for codes, rows in self.partitions.load(number):
                distinct, first, last = groups_of(codes)
                chosen = np.flatnonzero(self.cache.is_new(distinct, first, last, rows))
                chosen = chosen[np.cumsum((last - first)[chosen]) <= self.cache.free]
                if len(chosen) == 0:
                    return
                self.cache.put(distinct[chosen], first[chosen], last[chosen], rows, 0)

    @classmethod
    def predict(cls, store: Any, plan: JoinPlan, memory_bytes: int, skew: float) -> Prediction:
        """See `Join.predict`."""
        cached = int(max(0, memory_bytes - cls.least_bytes(store, plan)) * cls.cache_share / row_cost(store, plan))
        return hybrid_prediction(cls, store, plan, memory_bytes, skew, cached)
