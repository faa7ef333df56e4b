"""SSBJ, the semi-stream balanced join (Naeem and others), reconstructed from its abstract: MESHJOIN behind a tuple
cache.

Idea: MESHJOIN's scan needs no index and serves any number of matches a key; in front of it stands a cache of the keys
that are worth their memory, by MOIJ's inequality, so that a skewed stream mostly skips the scan.
Budget: index (in memory anyway), disk buffer, output; of the rest three tenths for H_R, seven for H.
Invariants: MESHJOIN's; a tuple meets the rows of its key once, in the cache or in the scan.
Departures: chunks hold whole groups, so a key can be cached when its chunk goes by, and need not be gathered over a
full scan; tuples of that key that wait already finish their round. A key leaves the cache when it has had fewer hits
in a round of R than it would need to enter.
"""

from __future__ import annotations

import numpy as np

from semistream.budget import Budget
from semistream.joins.contract import JoinSettings, Scenario
from semistream.joins.costs import Master, settled
from semistream.joins.matching import Indices
from semistream.joins.papers.cache_join import CacheFirst
from semistream.joins.papers.master_cache import row_cost
from semistream.joins.papers.multimap import Entries
from semistream.joins.papers.scan_join import ScanJoin
from semistream.joins.papers.stream_table import slot_bytes
from semistream.joins.papers.waiting_join import Shares
from semistream.keys import Codes
from semistream.lookup.bind import LookupPlan
from semistream.rows import Addresses
from semistream.stores.contract import Store


class SemiStreamBalancedJoin(CacheFirst, ScanJoin):
    """A tuple cache in front of MESHJOIN; see the module."""

    name = "ssbj"
    idea = "a cache of the keys worth their memory, the others by MESHJOIN's scan"
    cache_share = 0.3
    takes_conditions = False  # its cache finds rows by key
    keeps_order = False

    def __init__(self, store: Store, plan: LookupPlan, budget: Budget, settings: JoinSettings | None = None) -> None:
        super().__init__(store, plan, budget, settings)
        self._row_cost, self._slot_cost = row_cost(store.facts, plan), slot_bytes(plan.stream)

    def _brought(self, codes: Codes, entries: Entries, first: Indices, last: Indices, rows: Addresses) -> None:
        waiting, sizes = self.table.counts(entries), last - first
        worth = waiting * self._slot_cost > 2 * sizes * self._row_cost
        chosen = np.flatnonzero(worth & self.cache.is_new(codes, first, last, rows))
        chosen = chosen[np.cumsum(sizes[chosen]) <= self.cache.free]
        if len(chosen):
            self.cache.put(codes[chosen], first[chosen], last[chosen], rows, self.iteration)
        if self.at == 0:  # a round of R is over
            live = self.cache.live()
            live = live[self.iteration - self.cache.since[live] >= len(self.partitions)]
            poor = live[self.cache.hits[live] * self._slot_cost <= 2 * self.cache.counts(live) * self._row_cost]
            self.cache.hits[live] = 0
            self.cache.remove(poor)

    @classmethod
    def counts(cls, scenario: Scenario, shares: Shares, master: Master) -> tuple[float, float]:
        """MESHJOIN's model behind a cache that is as large as its inequality makes it."""
        most = cls.cached_rows(scenario, shares) / master.rows_per_key
        a_key = master.rows_per_key * row_cost(scenario.facts, scenario.plan)
        popularity = master.popularity

        def wanted(keys: float) -> float:
            arrivals = shares.slots / max(1e-9, 1 - popularity.head(keys))  # in a round of R
            return min(most, popularity.above(2 * a_key / shares.slot / arrivals))

        return popularity.head(settled(wanted, 0.0)), max(1.0, shares.slots / master.partitions)
