"""What the cost models of the joins share: how often keys come, and how many stream tuples a read of R serves.

What a count costs in seconds is measured on a machine (`semistream.planner.rates`). The keys of a Zipf stream are kept
in classes of about equal popularity, the most popular first: a hundred million of them take a few thousand numbers.

>>> popularity = Popularity(1_000_000, 1.0)
>>> round(popularity.head(10_000), 2)
0.68
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from semistream.joins.contract import Profile
from semistream.stores.contract import StoreFacts

Floats = npt.NDArray[np.float64]
_SINGLE = 4096  # ranks that are a class of their own
_GROWTH = 1.01
_ROUNDS = 60  # of halving an interval
_PLACED = 200_000  # keys that are placed on partitions one by one; the others spread evenly


class Popularity:
    """Classes of keys: ``count`` keys each, every one with ``share`` of the stream."""

    def __init__(self, keys: int, skew: float) -> None:
        self.keys = max(1, int(keys))
        edges = [float(rank) for rank in range(1, min(self.keys, _SINGLE) + 1)]
        while edges[-1] < self.keys:
            edges.append(min(float(self.keys), max(edges[-1] + 1, np.floor(edges[-1] * _GROWTH))))
        first = np.array([1.0, *(edge + 1 for edge in edges[:-1])])
        last = np.array(edges)
        self.count: Floats = last - first + 1
        weights = _power_sums(first, last, skew)
        self.share: Floats = weights / weights.sum() / self.count

    def head(self, first: float) -> float:
        """Share of the stream that falls on its ``first`` most popular keys."""
        return float(min(1.0, (self._among(first) * self.share).sum()))

    def without(self, first: float) -> "Popularity":
        rest = object.__new__(Popularity)
        left = self.count - self._among(first)
        kept = np.flatnonzero(left > 0) if (left > 0).any() else np.array([len(left) - 1])
        rest.keys = int(max(1, left.sum()))
        rest.count, rest.share = np.maximum(left[kept], 1e-9), self.share[kept]
        rest.share = rest.share / (rest.share * rest.count).sum()
        return rest

    def _among(self, first: float) -> Floats:
        """How many keys of each class are among the ``first`` ones."""
        return np.clip(first - (np.cumsum(self.count) - self.count), 0, self.count)

    def above(self, share: float) -> float:
        return float(self.count[self.share > share].sum())

    def distinct(self, rows: float) -> float:
        """How many different keys so many stream rows have."""
        return float((self.count * -np.expm1(-rows * self.share)).sum())

    def least_recently_used(self, cached: float) -> float:
        """Hit ratio of an LRU cache of so many keys (Che's approximation)."""
        if cached >= self.keys:
            return 1.0
        span = reached(cached, self.distinct)
        return float((self.count * self.share * -np.expm1(-span * self.share)).sum())

    def partitions(self, number: int, *, ranked: bool) -> Floats:
        """Shares of the stream that fall on each partition of R: keys in order of popularity, or shuffled."""
        number = max(1, number)
        if ranked:
            edges = np.linspace(0, self.keys, number + 1)
            ends = np.concatenate([[0.0], np.cumsum(self.count)])
            shares = np.concatenate([[0.0], np.cumsum(self.count * self.share)])
            return np.diff(np.interp(edges, ends, shares))
        ends = np.cumsum(self.count)
        placed = int(np.searchsorted(ends, _PLACED, "right"))
        one_by_one = np.repeat(self.share[:placed], np.round(self.count[:placed]).astype(np.int64))
        at = np.random.default_rng(1).integers(0, number, len(one_by_one))
        result: Floats = np.bincount(at, one_by_one, number).astype(np.float64)
        result += float((self.count[placed:] * self.share[placed:]).sum()) / number
        return result


def reached(value: float, rising: Callable[[float], float]) -> float:
    """Where a function that rises from zero reaches a value."""
    low, high = 0.0, 1.0
    while rising(high) < value:
        low, high = high, 2 * high
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < value else (low, middle)
    return low


def _power_sums(first: Floats, last: Floats, skew: float) -> Floats:
    """Σ rank^-skew over the ranks of each class; by the integral where a class has many."""
    low, high = first - 0.5, last + 0.5
    power = 1 - skew
    integral = (high**power - low**power) / power if abs(power) > 1e-9 else np.log(high / low)
    return np.where(first == last, first**-skew, integral)


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
    def of(facts: StoreFacts, buffer: int, part: float = 1.0, profile: Profile | None = None) -> "Master":
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
        return Popularity(self.keys, self.profile.skew)

    def partition_shares(self) -> Floats:
        """The share of the stream that falls on each partition."""
        return self.popularity.partitions(self.partitions, ranked=self.profile.ranked)


def queue_reads(slots: float, shares: Floats) -> tuple[float, float]:
    """HYBRIDJOIN: tuples that leave with a read, and the arrivals between a key's coming and its turn. ``shares`` are
    those of the partitions. Solve h_S = Σ p/(1+p·T)·(T + p·T²/2) for T; then w = 1/Σ(p/(1+p·T)).
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
    hits = popularity.head(cached)
    if hits >= 1 - 1e-9:
        return 1.0, math.inf, math.inf
    others = popularity.without(cached).partitions(master.partitions, ranked=master.profile.ranked)
    misses, span = queue_reads(slots, others)
    return hits, misses, span / (1 - hits)


@dataclass(frozen=True)
class Swept:
    """What a sweep over some pages reads: keys share pages, near pages share a request, with the gap between them."""

    pages: float
    requests: float
    gaps: float  # pages that nobody asked for

    @staticmethod
    def of(keys: float, pages: float, facts: StoreFacts, request_pages: int) -> "Swept":
        """For keys that fell on R's pages at random; pages so near that the gap costs less are read as one."""
        density = -math.expm1(-keys / pages)
        nearest = int(1 + facts.device.gap_bytes // facts.page_bytes)
        gap_pages = min(nearest, request_pages - 1)  # a request has a longest length
        if gap_pages < 1:
            return Swept(pages * density, pages * density, 0.0)
        skipped, most = 1 - density, gap_pages - 1  # from a page on, the pages that nobody asked for: a geometric law
        apart = skipped**gap_pages  # the next page that is asked for is too far away
        passed = skipped * (1 - (most + 1) * skipped**most + most * skipped ** (most + 1))  # density × pages between
        spanned = density * (1 - apart) + passed  # pages and gaps that are read as one
        requests = min(density, density * apart + spanned / request_pages)
        return Swept(pages * density, pages * requests, pages * passed)

    def seconds(self, facts: StoreFacts) -> float:
        return facts.device.seconds(self.requests, (self.pages + self.gaps) * facts.page_bytes)


def swept(keys: float, master: Master, facts: StoreFacts) -> Swept:
    """What so many different keys need together; a page and a request at least."""
    read = Swept.of(keys, master.pages, facts, master.request_pages)
    return Swept(max(1.0, read.pages), max(1.0, read.requests), read.gaps)


def settled(step: Callable[[float], float], start: float) -> float:
    """The fixed point of a step, approached by halves."""
    value = start
    for _ in range(_ROUNDS):
        before, value = value, (value + step(value)) / 2
        if abs(value - before) <= 1e-4 * abs(value):
            break
    return float(value)
