"""MOIJ, the memory-optimised index join (Naeem, Mirza and others): cache a key when that saves memory.

Idea: SSCJ with one pool of memory. Caching key j costs its m_j tuples of R and saves the n_j stream tuples that would
wait for it, so j is cached when m_j·v_R < n_j·v_S: many-to-many is the normal case. What a cached key takes is taken
from H_S, and given back when it leaves.
Budget: index, disk buffer, output; all the rest are h_S slots, which waiting tuples and cached keys share.
Invariants: available + |H_S| + ⌈Σ charge/v_S⌉ = h_S after every iteration; available ≥ 0; keys(H_R) ∩ keys(H_S) = ∅;
H_R stays near empty on a uniform stream.
Departures: both rules are corrected (docs/joins.md says why), the paper's own are kept as settings. The disk phase goes
over distinct keys, not over tuples, or many-to-many results would be lost. A key is charged in real bytes: whole slots,
as printed, double its price when v_R is a little more than v_S. H_R may take at most a quarter of the memory; what it
took stays with the process.
"""

from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from semistream.errors import choose
from semistream.joins.contract import JoinSettings, Prediction, Scenario
from semistream.joins.costs import behind_cache, settled
from semistream.joins.groups import Groups
from semistream.joins.papers.sscj import CacheJoin
from semistream.joins.papers.stream_table import Entries
from semistream.joins.papers.waiting_join import Shares

_RULES = ("corrected", "printed")
_MOST_CACHED = 0.25  # of what buffers leave, for H_R
_EVERY = 10  # iterations between two looks at the cache
_TABLE_BYTES = 24  # of a cached row: what its place in the tables takes, used or not


@dataclass(frozen=True)
class MoijSettings(JoinSettings):
    """Which rules: our corrections, or the paper's own."""

    eviction: str = "corrected"
    inequality: str = "corrected"

    def __post_init__(self) -> None:
        choose("eviction", self.eviction, _RULES)
        choose("inequality", self.inequality, _RULES)

    @property
    def factor(self) -> int:
        """How much more memory the waiting tuples of a key must take than its rows."""
        return 2 if self.inequality == "corrected" else 1


class MemoryOptimisedIndexJoin(CacheJoin):
    name = "moij"
    idea = "a key is cached when its rows take less memory than the tuples that would wait for it"
    settings_type = MoijSettings
    settings: MoijSettings

    def _set_up(self) -> None:
        super()._set_up()
        self.factor = self.settings.factor
        self.evictions = 0
        self._starts: deque[tuple[int, int]] = deque([(0, 0)])  # (iteration, arrivals before it)
        self._hand = 0

    @property
    def room(self) -> int:
        """Slots that are neither taken by a waiting tuple nor charged for a cached key."""
        return self.table.free - -(-self.cache.rows * self.shares.row_cost // self.shares.slot)

    def _brought(self, entries: Entries, groups: Groups) -> None:
        if self.settings.eviction == "corrected":
            self._starts.append((self.iteration, self.stats.rows_in))
        waiting = self.table.counts(entries)
        chosen = np.flatnonzero(self._saves(waiting, groups.sizes) & self.cache.is_new(groups))
        chosen = chosen[np.argsort(-waiting[chosen], kind="stable")]
        self.cache.put(groups[chosen], self.stats.rows_in)
        if self.iteration % _EVERY == 0:
            self._evict()

    def _evict(self) -> None:
        """Let keys go that would no longer be admitted."""
        if self.settings.eviction == "printed":
            live = self.cache.live()
            frequency = self.cache.hits[live] / _EVERY
        else:
            live = self._next_entries()
            now, span = self.stats.rows_in, self._span()
            window = now - self.cache.since[live]
            live, window = live[window >= span], window[window >= span]
            frequency = self.cache.hits[live] * span / np.maximum(1, window)
            self.cache.since[live] = now
        self.cache.hits[live] = 0
        poor = live[~self._saves(frequency, self.cache.counts(live))]
        self.cache.remove(poor)
        self.evictions += len(poor)

    def _next_entries(self) -> Entries:
        """A part of the entries, so that all are looked at within a round of R or so."""
        step = max(256, _EVERY * self.cache.capacity // max(1, len(self.partitions)))
        places = np.arange(self._hand, min(self._hand + step, self.cache.capacity))
        self._hand = 0 if self._hand + step >= self.cache.capacity else self._hand + step
        return places[self.cache.counts(places) > 0]

    def _span(self) -> int:
        """Arrivals since the oldest waiting key came."""
        oldest = self.table.oldest_keys(1)
        if len(oldest) == 0:
            return 1
        born = int(self.table.born[self.table.slots_of(oldest)[0]])
        while len(self._starts) > 1 and self._starts[1][0] <= born:
            self._starts.popleft()
        return max(1, self.stats.rows_in - self._starts[0][1])

    def check(self) -> None:
        super().check()
        charged, room = self.cache.rows * self.shares.row_cost, self.room
        self._ensure(holds=room >= 0, said=f"{charged} bytes charged for cached keys; {room} slots free")

    @classmethod
    def cached_rows(cls, shares: Shares) -> int:
        """Rows that H_R may hold at most."""
        return int(shares.free * _MOST_CACHED) // (shares.row_cost + _TABLE_BYTES)

    @classmethod
    def reserves(cls, shares: Shares) -> dict[str, int]:
        """Only the tables of H_R; its rows take slots."""
        return {"cache tables": cls.cached_rows(shares) * _TABLE_BYTES}

    @classmethod
    def model(cls, scenario: Scenario) -> Prediction:
        """HYBRIDJOIN's model behind a cache that is as large as its inequality makes it."""
        shares, factor = cls.divide(scenario), MoijSettings.of(scenario.settings).factor
        master, most, slots = shares.master, cls.cached_rows(shares), shares.slots
        a_key = master.rows_per_key * shares.row_cost  # bytes of a cached key

        def behind(keys: float) -> tuple[float, float, float]:
            left = max(1.0, slots - keys * a_key / shares.slot)
            return behind_cache(left, keys, master)

        def wanted(keys: float) -> float:
            span = behind(keys)[2]  # a key waits with p·span tuples when its turn comes
            return min(most / master.rows_per_key, master.popularity.above(factor * a_key / shares.slot / span))

        keys = settled(wanted, 0.0)
        hits, misses, _ = behind(keys)
        cached = {"cache": int(keys * a_key) + most * _TABLE_BYTES}
        return cls._predicted(replace(shares, reserved=cached), hits, misses)
