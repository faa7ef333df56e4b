"""What the cost models of the joins share: how many stream tuples a read of R serves.

A model counts; what a count costs in seconds is measured on a machine (see `semistream.planner.rates`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from semistream.joins.contract import Profile
from semistream.joins.popularity import Floats, Popularity, reached
from semistream.stores.contract import StoreFacts
from semistream.stores.device import Device

_ROUNDS = 60  # of a fixed point, far more than it needs


@dataclass(frozen=True)
class Master:
    """What the models know of R: its keys and the partitions it is read in."""

    keys: int
    rows_per_key: float
    rows_per_page: float
    pages: int
    partition_pages: int
    partitions: int
    request_pages: int  # of the longest request
    profile: Profile

    @staticmethod
    def of(facts: StoreFacts, buffer: int, part: float = 1.0, profile: Profile | None = None) -> Master:
        """R as a store holds it, or a part of it, read ``buffer`` bytes at a time."""
        keys = max(1, int(facts.keys * part))
        pages = max(1, int(facts.pages * part))
        run = max(1, min(pages, buffer // facts.page_bytes))
        rows_per_page = facts.rows / max(1, facts.pages)
        longest = max(1, facts.longest_request // facts.page_bytes)
        rows_per_key = max(1.0, facts.rows * part / keys)
        return Master(keys, rows_per_key, rows_per_page, pages, run, -(-pages // run), longest, profile or Profile())

    @cached_property
    def popularity(self) -> Popularity:
        """How often its keys come."""
        return Popularity(self.keys, self.profile.skew)

    def partition_shares(self) -> Floats:
        """The share of the stream that falls on each partition."""
        return self.popularity.partitions(self.partitions, ranked=self.profile.ranked)


def queue_reads(slots: float, shares: Floats) -> tuple[float, float]:
    """HYBRIDJOIN: tuples that leave with a read, and the arrivals between a key's coming and its turn.

    ``shares`` are those of the partitions. Solve h_S = Σ p/(1+p·T)·(T + p·T²/2) for T; then w = 1/Σ(p/(1+p·T)).
    """
    if not (shares > 0).any():  # nothing is left to wait for
        return max(1.0, slots), max(1.0, slots)
    p = shares[shares > 0] / shares.sum()

    def waiting(span: float) -> float:
        return float((p / (1 + p * span) * (span + p * span * span / 2)).sum())

    span = reached(slots, waiting)
    return max(1.0, 1 / float((p / (1 + p * span)).sum())), span


def behind_cache(slots: float, cached: float, master: Master) -> tuple[float, float, float]:
    """HYBRIDJOIN behind a cache of the most popular keys: (hit ratio, misses per read, span in arrivals)."""
    popularity = master.popularity
    hits = popularity.head(cached) if cached < popularity.keys else 1.0
    if hits >= 1 - 1e-9:
        return 1.0, math.inf, math.inf
    misses, span = queue_reads(
        slots, popularity.without(cached).partitions(master.partitions, ranked=master.profile.ranked)
    )
    return hits, misses, span / (1 - hits)


@dataclass(frozen=True)
class Swept:
    """What a sweep over some pages reads: keys share pages, near pages share a request, with the gap between them."""

    pages: float
    requests: float
    gaps: float  # pages that nobody asked for

    @staticmethod
    def of(keys: float, pages: float, gap_pages: int, request_pages: int) -> Swept:
        """For keys that fell on R's pages at random; those at most ``gap_pages`` apart are read as one."""
        density = -math.expm1(-keys / pages)
        gap_pages = min(gap_pages, request_pages - 1)  # a request has a longest length
        if gap_pages < 1:
            return Swept(pages * density, pages * density, 0.0)
        skipped, most = 1 - density, gap_pages - 1  # from a page on, the pages that nobody asked for: a geometric law
        apart = skipped**gap_pages  # the next page that is asked for is too far away
        passed = skipped * (1 - (most + 1) * skipped**most + most * skipped ** (most + 1))  # density × pages between
        spanned = density * (1 - apart) + passed  # pages and gaps that are read as one
        requests = min(density, density * apart + spanned / request_pages)
        return Swept(pages * density, pages * requests, pages * passed)

    def seconds(self, device: Device, page_bytes: int) -> float:
        """What the device takes for it."""
        return device.seconds(self.requests, (self.pages + self.gaps) * page_bytes)


def gap_pages(facts: StoreFacts) -> int:
    """How far apart pages may be that are read as one."""
    return int(1 + facts.device.gap_bytes // facts.page_bytes)


def swept(keys: float, master: Master, gap_pages: int) -> Swept:
    """What so many different keys need together; a page and a request at least."""
    read = Swept.of(keys, master.pages, gap_pages, master.request_pages)
    return Swept(max(1.0, read.pages), max(1.0, read.requests), read.gaps)


def settled(step: Callable[[float], float], start: float) -> float:
    """The fixed point of a step, approached by halves."""
    value = start
    for _ in range(_ROUNDS):
        before, value = value, (value + step(value)) / 2
        if abs(value - before) <= 1e-4 * abs(value):
            break
    return float(value)
