"""A tuple cache H_R in front: SSCJ and MOIJ have HYBRIDJOIN's loop behind it, SSBJ has MESHJOIN's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from semistream.budget import Budget
from semistream.errors import InvariantError
from semistream.joins.contract import JoinSettings
from semistream.joins.papers.master_cache import MasterCache, row_cost
from semistream.joins.papers.queue_join import QueueJoin
from semistream.joins.papers.waiting_join import Demand, Mask, Shares, WaitingJoin
from semistream.keys import Codes
from semistream.lookup.bind import LookupPlan
from semistream.stores.contract import Store, StoreFacts


class CacheFirst(WaitingJoin):
    """Stream phase: probe H_R first; only misses wait."""

    cache_share = 0.5  # of what buffers leave

    def __init__(
        self,
        store: Store,
        plan: LookupPlan,
        budget: Budget,
        settings: JoinSettings | None = None,
        demand: Demand | None = None,
        rows: int | None = None,
    ) -> None:
        """``rows`` are those that H_R has room for, within what is reserved; by default `cache_share` is."""
        facts = store.facts
        if rows is None:
            rows = self.cached_rows(facts, plan, self.shares(facts, plan, budget.total), self.cache_share)
            demand = Demand(reserved={"cache": rows * row_cost(facts, plan)})
        super().__init__(store, plan, budget, settings, demand)
        self.cache = MasterCache(facts, plan, rows, self.stats, self._most_rows)

    def _run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from super()._run(batches)
        self.stats.cached_rows, self.stats.cached_bytes = self.cache.rows, self.cache.used_bytes

    def _answer(self, stream: pa.RecordBatch, codes: Codes, waiting: Mask, *, again: bool) -> Iterator[pa.RecordBatch]:
        del again
        yield from self.cache.answer(stream, codes, waiting)

    @staticmethod
    def cached_rows(facts: StoreFacts, plan: LookupPlan, shares: Shares, share: float) -> int:
        """Rows that H_R has room for."""
        return int(shares.free * share) // row_cost(facts, plan) if shares.spare > 0 else 0

    @staticmethod
    def divided(facts: StoreFacts, plan: LookupPlan, shares: Shares, rows: int) -> dict[str, int]:
        """The parts of the budget, by name."""
        cache = rows * row_cost(facts, plan)
        return {
            "index": facts.index_bytes,
            "disk buffer": shares.buffer,
            "cache": cache,
            "stream table": shares.slots(cache) * shares.slot,
        }

    @property
    def unmatched_sample(self) -> list[object]:
        """A few keys that found no match."""
        return [*self.output.unmatched_sample, *self.cache.unmatched_sample][:5]

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
