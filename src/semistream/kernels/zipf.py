"""Exact Zipf ranks by rejection-inversion, and a keyed permutation of them; both in constant memory.

Hörmann and Derflinger, "Rejection-inversion to generate variates from monotone discrete distributions", 1996. Random
numbers are a counter through ``mix64``, so a seed gives the same stream on every machine and from any starting point.
"""

import math

import numpy as np

from semistream.kernels._jit import inline, kernel
from semistream.kernels.hashing import GOLDEN, mix64

_UNIT = 1.0 / 9007199254740992.0  # 2**-53


@inline
def _uniform(seed, counter):  # type: ignore[no-untyped-def]
    return np.float64(mix64(mix64(seed) + np.uint64(counter) * GOLDEN) >> np.uint64(11)) * _UNIT


@inline
def _integral(x, exponent):  # type: ignore[no-untyped-def]
    if abs(exponent - 1.0) < 1e-12:
        return math.log(x)
    return (x ** (1.0 - exponent) - 1.0) / (1.0 - exponent)


@inline
def _inverse(y, exponent):  # type: ignore[no-untyped-def]
    if abs(exponent - 1.0) < 1e-12:
        return math.exp(y)
    return max(0.0, 1.0 + y * (1.0 - exponent)) ** (1.0 / (1.0 - exponent))


@kernel("void(int64, float64, uint64, int64, int64[::1])")
def zipf_ranks(count, exponent, seed, start, out):
    """Ranks 1 to ``count`` with probability proportional to rank**-exponent; ``start`` is the position in the
    stream.
    """
    low = _integral(1.5, exponent) - 1.0
    high = _integral(count + 0.5, exponent)
    accept = 2.0 - _inverse(_integral(2.5, exponent) - 2.0**-exponent, exponent)
    for i in range(len(out)):
        stream = mix64(seed + np.uint64(start + i))
        attempt = 0
        while True:
            u = high + _uniform(stream, attempt) * (low - high)
            attempt += 1
            x = _inverse(u, exponent)
            rank = min(max(np.int64(x + 0.5), np.int64(1)), count)
            if rank - x <= accept or u >= _integral(rank + 0.5, exponent) - np.float64(rank) ** -exponent:
                out[i] = rank
                break


@kernel("void(int64[::1], int64, uint64)")
def permute(values, count, seed):
    """Replace each value in [0, count) by its image under a random permutation (Feistel network, walked back into
    range).
    """
    half = np.uint64(1)
    while np.uint64(1) << (np.uint64(2) * half) < np.uint64(count):
        half += np.uint64(1)
    mask = (np.uint64(1) << half) - np.uint64(1)
    for i in range(len(values)):
        x = np.uint64(values[i])
        while True:
            left, right = x >> half, x & mask
            for turn in range(4):
                left, right = right, left ^ (mix64(right + seed + np.uint64(turn) * GOLDEN) & mask)
            x = (left << half) | right
            if x < np.uint64(count):
                break
        values[i] = np.int64(x)
