"""HYBRIDJOIN (Naeem, Dobbie, Weber 2011), as SSCJ's and MOIJ's papers describe it.

Idea: stream tuples wait in a multimap H_S, their keys in a queue. The oldest key decides which partition of R is read
next, by the index; every tuple that waits for a key of that partition leaves with it. So a read serves many tuples,
no tuple waits for a whole scan, and pages that nobody asks for are not read.
Budget: index, disk buffer d, a piece of output; all the rest are slots of H_S with their queue nodes.
Cost: c_loop = c_IO(d) + d·c_H + w(c_O + c_E + c_S + c_A), μ = w/c_loop; on a uniform stream w ≈ 2·h_S/n.
Invariants: free slots + |H_S| = h_S; one queue node a key; a tuple leaves within n iterations.
Departures: after a read, as many tuples are loaded as slots came free (the printed loop forgets slots when input is
short); a key without a match leaves with all its tuples; the queue has one node a key, not one a tuple.
"""

from __future__ import annotations

from semistream.joins.costs import queue_reads
from semistream.joins.papers.loops import QueueJoin
from semistream.joins.papers.waiting_join import Shares


class HybridJoin(QueueJoin):
    name = "hybrid"
    idea = "the oldest waiting key decides which partition is read"

    @classmethod
    def counts(cls, shares: Shares) -> tuple[float, float]:
        """HYBRIDJOIN's corrected model: w from the shares of the partitions."""
        return 0.0, queue_reads(shares.slots, shares.master.partition_shares())[0]
