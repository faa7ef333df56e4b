"""How often the keys of a Zipf stream come: what the cost models of all joins are made of.

Keys are kept in classes of about equal popularity, the most popular first, so that a hundred million of them take a few
thousand numbers.

>>> popularity = Popularity(1_000_000, 1.0)
>>> round(popularity.head(10_000), 2)
0.68
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_SINGLE = 4096  # ranks that are a class of their own
_GROWTH = 1.01
_ROUNDS = 60  # of halving an interval
_PLACED = 200_000  # keys that are placed on partitions one by one; the others spread evenly


class Popularity:
    """Classes of keys: ``count`` keys each, every one with ``share`` of the stream."""

    def __init__(self, keys: int, skew: float) -> None:
        self.keys, self.skew = max(1, int(keys)), float(skew)
        edges = [float(rank) for rank in range(1, min(self.keys, _SINGLE) + 1)]
        while edges[-1] < self.keys:
            edges.append(min(float(self.keys), max(edges[-1] + 1, np.floor(edges[-1] * _GROWTH))))
        first = np.array([1.0, *(edge + 1 for edge in edges[:-1])])
        last = np.array(edges)
        self.count: Floats = last - first + 1
        weights = _power_sums(first, last, self.skew)
        self.share: Floats = weights / weights.sum() / self.count

    def head(self, first: float) -> float:
        """Share of the stream that falls on its ``first`` most popular keys."""
        return float(min(1.0, (self._among(first) * self.share).sum()))

    def without(self, first: float) -> Popularity:
        """The keys after the ``first`` ones, as a stream of their own."""
        rest = object.__new__(Popularity)
        left = self.count - self._among(first)
        kept = np.flatnonzero(left > 0) if (left > 0).any() else np.array([len(left) - 1])
        rest.keys, rest.skew = int(max(1, left.sum())), self.skew
        rest.count, rest.share = np.maximum(left[kept], 1e-9), self.share[kept]
        rest.share = rest.share / (rest.share * rest.count).sum()
        return rest

    def _among(self, first: float) -> Floats:
        """How many keys of each class are among the ``first`` ones."""
        return np.clip(first - (np.cumsum(self.count) - self.count), 0, self.count)

    def above(self, share: float) -> float:
        """How many keys have more than a share of the stream."""
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
