"""SSCJ / CACHEJOIN (Naeem, Weber, Dobbie, Lutteroth): HYBRIDJOIN behind a cache of frequent master tuples.

Idea: a stream is skewed, so a few tuples of R serve most of it. They stay in H_R, which every stream tuple probes
first; only misses wait in H_S and are served by HYBRIDJOIN's disk phase. When that loads a partition, a tuple of R
that many waiting tuples matched (at least ``threshold``) goes to H_R, over the least frequent one there.
Budget: index, disk buffer, output; of the rest three tenths for H_R with its recorder, seven for H_S (a setting).
Cost: as HYBRIDJOIN with w_S misses per loop, and w_N = w_S·q/(1 − q) hits that cost a probe, as a miss does too.
Invariants: keys(H_R) ∩ keys(H_S) = ∅; free + |H_S| = h_S; a miss leaves within n iterations.
Departures: the threshold rises when more than a tenth of H_R was replaced within n iterations, and falls when H_R is
not full after that many; the least frequent is found in a random sample; a key's whole group is cached.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semistream.errors import ArgumentError
from semistream.joins.contract import JoinSettings
from semistream.joins.costs import behind_cache
from semistream.joins.groups import Groups
from semistream.joins.papers.loops import CacheJoin
from semistream.joins.papers.stream_table import Entries
from semistream.joins.papers.waiting_join import Shares


@dataclass(frozen=True)
class SscjSettings(JoinSettings):
    """The share of H_R in what buffers leave; 0.15 to 0.3 gave most tuples a read at 10 % memory and skew 1.

    ``buffer_share`` is the disk buffer's share of the budget, up to a mebibyte. A ``threshold`` that is given stays;
    otherwise it adapts itself.
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
