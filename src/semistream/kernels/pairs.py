"""Pairs of stream rows and master rows for keys that occur several times on either side."""

import numpy as np

from semistream.kernels.jit import kernel


@kernel("int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])")
def pair_groups(left_from, left_to, right_from, right_to, position, out_left, out_right):
    """Continue the product of group g's left and right ranges at ``position`` = [group, left, right]. Fills at most
    len(out_left) pairs and returns their number, so a product of any size comes out in bounded pieces.
    """
    n = 0
    group, left, right = position[0], position[1], position[2]
    room = len(out_left)
    while group < len(left_from) and n < room:
        while left < left_to[group] - left_from[group] and n < room:
            rights = right_to[group] - right_from[group]
            while right < rights and n < room:
                out_left[n] = left_from[group] + left
                out_right[n] = right_from[group] + right
                n += 1
                right += 1
            if right == rights:
                right = np.int64(0)
                left += 1
        if left >= left_to[group] - left_from[group]:
            group += 1
            left = np.int64(0)
            right = np.int64(0)
    position[0], position[1], position[2] = group, left, right
    return n


@kernel("int64(uint64[::1], int64[::1], uint64[::1])", "int64(int64[::1], int64[::1], int64[::1])")
def group_starts(values, starts, distinct):
    """Where each run of equal values begins; returns the number of runs. ``starts`` needs one more place than values.
    ``distinct`` may be ``values`` itself: what is written lies before what is read.
    """
    n = 0
    for i in range(len(values)):
        if n == 0 or values[i] != distinct[n - 1]:
            starts[n] = i
            distinct[n] = values[i]
            n += 1
    starts[n] = len(values)
    return n


@kernel("int64[::1](uint64[::1], uint64, uint64)")
def select_range(codes, low, high):
    """The places of the codes from ``low`` to ``high``, both included."""
    width = high - low
    count = 0
    for i in range(len(codes)):
        count += codes[i] - low <= width
    out = np.empty(count, np.int64)
    n = 0
    for i in range(len(codes)):
        if codes[i] - low <= width:
            out[n] = i
            n += 1
    return out
