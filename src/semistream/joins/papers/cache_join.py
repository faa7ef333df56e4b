"""A tuple cache H_R in front: SSCJ and MOIJ have HYBRIDJOIN's loop behind it, SSBJ has MESHJOIN's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa

from semistream.budget import Budget
from semistream.errors import InvariantError
from semistream.joins.contract import JoinSettings, Scenario
from semistream.joins.papers.master_cache import MasterCache, row_cost
from semistream.joins.papers.queue_join import QueueJoin
from semistream.joins.papers.waiting_join import Shares, WaitingJoin
from semistream.keys import Codes, Mask
from semistream.lookup.bind import LookupPlan
from semistream.stores.contract import Store


class CacheFirst(WaitingJoin):
    """Stream phase: probe H_R first; only misses wait."""

    cache_share = 0.5  # of what buffers leave

    def __init__(self, store: Store, plan: LookupPlan, budget: Budget, settings: JoinSettings | None = None) -> None:
        super().__init__(store, plan, budget, settings)
        rows = self.cached_rows(self.scenario, self.shares)
        self.cache = MasterCache(self.facts, plan, rows, self.output)

    def _run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from super()._run(batches)
        self.stats.cached_rows, self.stats.cached_bytes = self.cache.rows, self.cache.used_bytes

    def _answer(self, stream: pa.RecordBatch, codes: Codes, waiting: Mask, *, again: bool) -> Iterator[pa.RecordBatch]:
        del again
        yield from self.cache.answer(stream, codes, waiting)

    @classmethod
    def cached_rows(cls, scenario: Scenario, shares: Shares) -> int:
        """Rows that H_R has room for."""
        share = getattr(scenario.settings, "cache_share", cls.cache_share)
        return int(shares.free * share) // row_cost(scenario.facts, scenario.plan) if shares.spare > 0 else 0

    @classmethod
    def divide(cls, scenario: Scenario) -> Shares:
        """As the join behind the cache, which has its share of the rest."""
        shares = super().divide(scenario)
        rows = cls.cached_rows(scenario, shares)
        return replace(shares, reserved={"cache": rows * row_cost(scenario.facts, scenario.plan)})

    def check(self) -> None:
        """As the join behind the cache; and the cache is whole."""
        super().check()
        self.cache.check(self.name)


class CacheJoin(CacheFirst, QueueJoin):
    """The cache in front of HYBRIDJOIN."""

    def check(self) -> None:
        """As above; and no key is in H_R and H_S at once, which is why nothing waits for a cached key."""
        super().check()
        both = self.table.lookup(self.cache.codes_held())
        if (both >= 0).any():
            raise InvariantError(f"{self.name}: {(both >= 0).sum()} keys are both cached and waiting")
