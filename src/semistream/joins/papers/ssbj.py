"""SSBJ, the semi-stream balanced join (Naeem and others), reconstructed from its abstract: MESHJOIN behind a cache.

Idea: MESHJOIN's scan needs no index and serves any number of matches a key; in front of it stands a cache of the keys
that are worth their memory, by MOIJ's inequality, so that a skewed stream mostly skips the scan.
Budget: index (in memory anyway), disk buffer, output; of the rest three tenths for H_R, seven for H.
Invariants: MESHJOIN's; a tuple meets the rows of its key once, in the cache or in the scan.
Departures: chunks hold whole groups, so a key can be cached when its chunk goes by; its tuples that wait already finish
their round. A key leaves the cache when it has had fewer hits in a round of R than it would need to enter.
"""

from semistream.joins.costs import settled
from semistream.joins.groups import Groups
from semistream.joins.papers.mesh import MeshJoin
from semistream.joins.papers.sscj import CacheFirst
from semistream.joins.papers.stream_table import Entries
from semistream.joins.papers.waiting_join import Shares


class SemiStreamBalancedJoin(CacheFirst, MeshJoin):
    name = "ssbj"
    idea = "a cache of the keys worth their memory, the others by MESHJOIN's scan"
    settings_type = None
    cache_share = 0.3
    takes_conditions = False  # its cache finds rows by key
    keeps_order = False

    def _brought(self, entries: Entries, groups: Groups) -> None:
        worth = self._saves(self.table.counts(entries), groups.sizes)
        self.cache.put(groups[worth & self.cache.is_new(groups)], self.iteration)
        if self.at == 0:  # a round of R is over
            live = self.cache.live()
            live = live[self.iteration - self.cache.since[live] >= len(self.partitions)]
            poor = live[~self._saves(self.cache.hits[live], self.cache.counts(live))]
            self.cache.hits[live] = 0
            self.cache.remove(poor)

    @classmethod
    def counts(cls, shares: Shares) -> tuple[float, float]:
        """MESHJOIN's model behind a cache that is as large as its inequality makes it."""
        master, popularity = shares.master, shares.master.popularity
        most = cls.cached_rows(shares) / master.rows_per_key
        a_key = cls.factor * master.rows_per_key * shares.row_cost

        def wanted(keys: float) -> float:
            arrivals = shares.slots / max(1e-9, 1 - popularity.head(keys))  # in a round of R
            return min(most, popularity.above(a_key / shares.slot / arrivals))

        return popularity.head(settled(wanted, 0.0)), max(1.0, shares.slots / master.partitions)
