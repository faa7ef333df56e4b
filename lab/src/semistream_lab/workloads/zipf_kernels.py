"""Exact Zipf ranks by rejection-inversion, and a keyed permutation of them; both in constant memory.

Hörmann and Derflinger, "Rejection-inversion to generate variates from monotone discrete distributions", 1996. Random
numbers are a counter through ``mix64``, so a seed gives the same stream on every machine and from any starting point.
"""

import math

import numpy as np

from semistream.kernels.hashing import GOLDEN, mix64
from semistream.kernels.jit import inline, kernel

_UNIT = 1.0 / 9007199254740992.0  # 2**-53
_NEAR_ONE = 1e-3


@inline
def _uniform(seed, counter):  # type: ignore[no-untyped-def]
    return np.float64(mix64(mix64(seed) + np.uint64(counter) * GOLDEN) >> np.uint64(11)) * _UNIT


@inline
def _integral(x, exponent):  # type: ignore[no-untyped-def]
    if abs(exponent - 1.0) < 1e-12:
        return math.log(x)
    if abs(exponent - 1.0) < _NEAR_ONE:  # the plain form would lose digits
        return math.expm1((1.0 - exponent) * math.log(x)) / (1.0 - exponent)
    return (x ** (1.0 - exponent) - 1.0) / (1.0 - exponent)


@inline
def _inverse(y, exponent):  # type: ignore[no-untyped-def]
    if abs(exponent - 1.0) < 1e-12:
        return math.exp(y)
    if abs(exponent - 1.0) < _NEAR_ONE:
        return math.exp(math.log1p((1.0 - exponent) * y) / (1.0 - exponent))
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


@kernel("void(int64, float64, int64, float64[::1])")
def zipf_sums(count, exponent, stride, out):
    """Sums of rank**-exponent over the first 0, stride, 2·stride … ranks; the last entry is the sum over all."""
    total = 0.0
    for rank in range(count):
        if rank % stride == 0:
            out[rank // stride] = total
        total += np.float64(rank + 1) ** -exponent
    out[len(out) - 1] = total


@kernel("void(int64[::1], int64, int64, float64, int64, float64[::1], int64[::1])")
def zipf_share_out(numbers, rows, count, exponent, stride, sums, out):
    """The rank, from 0 on, in whose share of ``rows`` rows the middle of each numbered row falls.

    ``sums`` come from `zipf_sums`; the terms between two of them are added up again, in the same order.
    """
    whole = sums[len(sums) - 1]
    for i in range(len(numbers)):
        wanted = (np.float64(numbers[i]) + 0.5) / np.float64(rows) * whole
        low, high = np.int64(0), np.int64(len(sums) - 2)
        while low < high:
            middle = (low + high + 1) >> 1
            if sums[middle] <= wanted:
                low = middle
            else:
                high = middle - 1
        rank = low * stride
        total = sums[low] + np.float64(rank + 1) ** -exponent
        while total <= wanted and rank < count - 1:
            rank += 1
            total += np.float64(rank + 1) ** -exponent
        out[i] = rank


@kernel("void(int64[::1], int64, uint8[::1], uint8[:, ::1])")
def number_texts(numbers, digits, words, out):
    """A text for each number: its last digits, the lowest first, then the words from there on."""
    for i in range(len(numbers)):
        rest = numbers[i]
        for place in range(digits):
            out[i, place] = np.uint8(48 + rest % 10)
            rest //= 10
        for place in range(digits, len(words)):
            out[i, place] = words[place]


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
