"""Random numbers that belong to a row: the same from every starting point and in batches of every size."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
BITS = 31


def random_bits(seed: int, column: int, number: Numbers) -> Numbers:
    """31 random bits for each row number: SplitMix64 as a counter, so no row depends on another.

    ``column`` tells the uses apart that one workload makes of its seed.
    """
    origin = (seed * 1_000_003 + column) * 0xD1342543DE82EF95 % 2**64
    mixed = number.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(origin)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return (mixed >> np.uint64(64 - BITS)).astype(np.int64)


def random_shares(seed: int, column: int, number: Numbers) -> npt.NDArray[np.float64]:
    """A number in (0, 1) for each row number."""
    return (random_bits(seed, column, number) + 0.5) / 2**BITS
