"""The line between cache and window in a running `sweep`: begins where the model has it, and follows its sweeps."""

from __future__ import annotations

from semistream.joins.sweep.cache import TupleCache
from semistream.joins.sweep.division import Division
from semistream.joins.sweep.split import (
    Split,
    cache_bounds,
    cache_share,
    elasticity,
    request_pages,
    window_floor,
    worth_keeping,
)
from semistream.joins.window import row_charge
from semistream.lookup.bind import LookupPlan
from semistream.stores.contract import StoreFacts

_DAMPING = 0.3
_TRY_AGAIN = 50  # sweeps after which a closed cache is opened again


class Balance:
    """How many of the bytes that cache and window have together are the cache's."""

    def __init__(
        self,
        facts: StoreFacts,
        plan: LookupPlan,
        parts: Division,
        cache: TupleCache | None,
        room: int,
        *,
        adapt: bool,
        wait_seconds: float,
    ) -> None:
        """``cache`` is the join's own, if it has one: what several share is divided once and for all."""
        self._facts, self._cache, self._room, self._most = facts, cache, room, parts.cache
        self._adapt = adapt
        self._floor = window_floor(room, row_charge(plan.stream))
        self._request_pages = request_pages(facts, parts.buffer)
        self.elastic = 0.0
        self.closed_for = 0  # sweeps since the cache was closed
        self._filled = False  # was the cache full before these arrivals? It fills while a sweep reads
        self.limit = parts.cache if cache is not None else 0
        if cache is not None and adapt:
            self._set(int(Split(facts, plan, parts, wait_seconds=wait_seconds).rest()))
        self._opening = self.limit

    def learn(self, density: float, read_seconds: float, *, filled: bool) -> None:
        """What a sweep read. Not ``filled``: more room for the window would have been of no use."""
        self.elastic = elasticity(density, read_seconds, self._facts, self._request_pages) if filled else 0.0

    def move(self, miss_ratio: float, read_seconds: float, taken: int) -> None:
        """Move towards the split where a byte more of cache saves as much as a byte more of window.

        A cache that costs more than it saves is closed, and tried again much later: streams change. ``taken`` bytes are
        neither side's.
        """
        cache = self._cache
        if cache is None or not self._adapt:
            return
        filled, self._filled = self._filled, cache.full
        if not filled:  # these misses are those of a cold start
            return
        low, high = cache_bounds(self._room, self._floor + taken)
        if self.closed_for:
            self.closed_for = (self.closed_for + 1) % _TRY_AGAIN
            if not self.closed_for:
                self._set(min(self._opening, high))
                self._filled = False
        elif not worth_keeping(1 - miss_ratio, read_seconds):
            self.closed_for = 1
            self._set(0)
        else:
            share = cache_share(miss_ratio, self.elastic, cache.rows, self._facts.rows)
            rest = cache.table_bytes + share * (self._room - cache.table_bytes)
            limit = min(max(self.limit + int(_DAMPING * (rest - self.limit)), low), high)
            if abs(limit - self.limit) > self._room // 50:  # each move costs a pass over the cache
                self._set(limit)

    def _set(self, limit: int) -> None:
        assert self._cache is not None
        self.limit = min(max(limit, self._cache.least_bytes), self._most)
        self._cache.limit_bytes(self.limit)
