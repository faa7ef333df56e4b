"""A tuple cache H_R in front: SSCJ and MOIJ have HYBRIDJOIN's loop behind it, SSBJ has MESHJOIN's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa

from semistream.errors import InvariantError
from semistream.joins.contract import Scenario
from semistream.joins.matching import Indices
from semistream.joins.papers.master_cache import MasterCache
from semistream.joins.papers.queue_join import QueueJoin
from semistream.joins.papers.waiting_join import Shares, WaitingJoin
from semistream.joins.popularity import Floats
from semistream.keys import Codes, Mask


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
    def divide(cls, scenario: Scenario) -> Shares:
        """As the join behind the cache, which has its share of the rest."""
        shares = super().divide(scenario)
        return replace(shares, reserved={"cache": cls.cached_rows(shares) * shares.row_cost})

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
