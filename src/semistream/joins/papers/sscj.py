"""SSCJ / CACHEJOIN (Naeem, Weber, Dobbie, Lutteroth): HYBRIDJOIN behind a cache of frequent master tuples.

Idea: a stream is skewed, so a few tuples of R serve most of it. They stay in H_R, which every stream tuple probes
first; only misses wait in H_S and are served by HYBRIDJOIN's disk phase. When that loads a partition, a tuple of R
that many waiting tuples matched (at least ``threshold``) goes to H_R, over the least frequent one there.
Budget: index, disk buffer, output; of the rest three tenths for H_R with its recorder, seven for H_S (a setting).
Invariants: keys(H_R) ∩ keys(H_S) = ∅; free + |H_S| = h_S; a miss leaves within n iterations.
Departures: the threshold rises when more than a tenth of H_R was replaced within n iterations, and falls when H_R is
not full after that many; the least frequent is found in a random sample; a key's whole group is cached.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from semistream.errors import ArgumentError
from semistream.joins.contract import JoinSettings
from semistream.joins.costs import Floats, behind_cache
from semistream.joins.groups import Groups
from semistream.joins.output import Indices
from semistream.joins.papers.hybrid import HybridJoin
from semistream.joins.papers.master_cache import MasterCache
from semistream.joins.papers.stream_table import Entries
from semistream.joins.papers.waiting_join import Shares, WaitingJoin
from semistream.keys import Codes, Mask


class CacheFirst(WaitingJoin):
    """A tuple cache H_R in front, for any join that waits: the stream probes it first, only misses wait."""

    cache_share = 0.5  # of what buffers leave
    factor = 2

    def _set_up(self) -> None:
        super()._set_up()
        self.cache = MasterCache(self.facts, self.cached_rows(self.shares), self.output)

    def _run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from super()._run(batches)
        self.stats.cached_rows, self.stats.cached_bytes = self.cache.rows, self.cache.used_bytes

    def answer(self, stream: pa.RecordBatch, codes: Codes, waiting: Mask, *, again: bool) -> Iterator[pa.RecordBatch]:
        return self.cache.answer(stream, codes, waiting)

    def _saves(self, tuples: Indices | Floats, rows: Indices) -> Mask:
        """MOIJ's inequality: do so many tuples, waiting for half the time, take more memory than so many rows?"""
        return tuples * self.shares.slot > self.factor * rows * self.shares.row_cost

    @classmethod
    def cached_rows(cls, shares: Shares) -> int:
        """Rows that H_R has room for."""
        share = getattr(shares.scenario.settings, "cache_share", cls.cache_share)
        return int(shares.free * share) // shares.row_cost

    @classmethod
    def reserves(cls, shares: Shares) -> dict[str, int]:
        return {"cache": cls.cached_rows(shares) * shares.row_cost}

    def check(self) -> None:
        super().check()
        self.cache.check(self.name)


class CacheJoin(CacheFirst, HybridJoin):
    """The cache in front of HYBRIDJOIN."""

    def check(self) -> None:
        """As above; and no key is in H_R and H_S at once, which is why nothing waits for a cached key."""
        super().check()
        both = int((self.table.lookup(self.cache.codes_held()) >= 0).sum())
        self._ensure(holds=both == 0, said=f"{both} keys are both cached and waiting")


@dataclass(frozen=True)
class SscjSettings(JoinSettings):
    """The share of H_R in what buffers leave; 0.15 to 0.3 gave most tuples a read at 10 % memory and skew 1.
    ``buffer_share`` is the disk buffer's, up to a mebibyte. A ``threshold`` that is given stays, else it adapts itself.
    """

    cache_share: float = 0.3
    buffer_share: float = CacheJoin.buffer_share
    threshold: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.cache_share < 1:
            raise ArgumentError(f"cache_share={self.cache_share} must be at least 0 and less than 1")
        if not 0 <= self.buffer_share <= 0.5:
            raise ArgumentError(f"buffer_share={self.buffer_share} must be between 0 and 0.5")
        if self.threshold is not None and self.threshold < 1:
            raise ArgumentError(f"threshold={self.threshold} must be at least 1")


class SemiStreamCacheJoin(CacheJoin):
    name = "sscj"
    idea = "frequent master tuples in a cache with an adaptive threshold, the others by HYBRIDJOIN"
    settings_type = SscjSettings
    settings: SscjSettings

    def _set_up(self) -> None:
        super()._set_up()
        self.threshold = self.settings.threshold or 1
        self.evictions = 0
        self._round_start = 0

    def _brought(self, entries: Entries, groups: Groups) -> None:
        cache, frequency = self.cache, self.table.counts(entries)
        chosen = np.flatnonzero((frequency >= self.threshold) & cache.is_new(groups))
        groups = groups[chosen[np.argsort(-frequency[chosen], kind="stable")]]  # the most frequent first
        need = int(groups.sizes.sum()) - cache.free
        if need > 0 and cache.rows:
            weakest = cache.least_frequent(min(cache.keys, need))
            cache.remove(weakest)
            self.evictions += len(weakest)
        cache.put(groups, self.stats.rows_in)
        self._adapt()

    def _adapt(self) -> None:
        """Once a round of n iterations: a higher threshold when many were replaced, a lower one when there is room."""
        if self.settings.threshold is not None or self.iteration - self._round_start < len(self.partitions):
            return
        self._round_start = self.iteration
        if self.evictions > max(1, self.cache.keys) // 10:
            self.threshold += 1
        elif self.cache.free > 0 and self.threshold > 1:
            self.threshold -= 1
        self.evictions = 0

    @classmethod
    def counts(cls, shares: Shares) -> tuple[float, float]:
        """HYBRIDJOIN's model behind a cache of the most frequent keys."""
        keys = cls.cached_rows(shares) / shares.master.rows_per_key
        return behind_cache(shares.slots, keys, shares.master)[:2]
