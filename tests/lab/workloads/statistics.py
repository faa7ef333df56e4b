"""What the tests of generators need of statistics, without a library for it."""

from __future__ import annotations

from typing import Any

import numpy as np


def assert_drawn_from(counts: Any, shares: Any) -> None:
    """Chi-square: refuse with probability 1e-6 although the shares are right (Wilson and Hilferty's limit)."""
    counts, shares = np.asarray(counts, np.float64), np.asarray(shares, np.float64)
    expected = counts.sum() * shares / shares.sum()
    assert expected.min() >= 5, "cells with less than five expected rows say nothing"
    free = len(counts) - 1
    limit = free * (1 - 2 / (9 * free) + 4.753 * (2 / (9 * free)) ** 0.5) ** 3
    assert ((counts - expected) ** 2 / expected).sum() < limit


def merged(counts: Any, shares: Any) -> tuple[Any, Any]:
    """Neighbouring cells together until each is worth counting; what is left at the end goes to the last."""
    counts, shares = np.asarray(counts), np.asarray(shares, np.float64)
    full = 20 / counts.sum() * shares.sum()
    starts, held = [0], 0.0
    for place, share in enumerate(shares[:-1]):
        held += share
        if held >= full and shares[place + 1 :].sum() >= full:
            starts.append(place + 1)
            held = 0.0
    return np.add.reduceat(counts, starts), np.add.reduceat(shares, starts)


def power_sum(low: int, high: int, exponent: float) -> float:
    """The sum of rank**-exponent over ranks low to high: term by term at first, then by Euler and Maclaurin."""
    exact = min(high, max(low, 1000))
    ranks = np.arange(low, exact + 1, dtype=np.float64)
    total = float((ranks**-exponent).sum())
    if high > exact:
        a, b = float(exact), float(high)
        whole = np.log(b / a) if exponent == 1 else (b ** (1 - exponent) - a ** (1 - exponent)) / (1 - exponent)
        total += float(whole + (b**-exponent - a**-exponent) / 2)
        total += exponent * float(a ** (-exponent - 1) - b ** (-exponent - 1)) / 12
    return total
