"""Kernels of the profile: what the machine can do at best, and the parts of `collect` one after the other."""

import numpy as np

from semistream.kernels.hashing import checksum
from semistream.kernels.jit import kernel
from semistream.kernels.memory import load_u32, load_u64, preadv2
from semistream.kernels.pages import _is_sound, _lower_bound

IN_FLIGHT = 16
READ, CHECK, SEARCH = 1, 2, 3  # how far `collect_parts` goes
_NOWAIT = np.int32(8)  # RWF_NOWAIT: fail instead of waiting for the disk


@kernel("void(int64[::1], int64)")
def chase(places, steps):
    """Follow addresses from cache line to cache line: each read waits for the one before. It ends in ``places``."""
    at = places[0]
    for _ in range(steps):
        at = np.int64(load_u64(at))
    places[0] = at


@kernel("void(int64[::1], int64)")
def chase_many(places, steps):
    """As `chase`, along 16 chains at once."""
    a, b, c, d, e, f, g, h = places[0], places[1], places[2], places[3], places[4], places[5], places[6], places[7]
    i, j, k, m, n, o, p, q = (
        places[8],
        places[9],
        places[10],
        places[11],
        places[12],
        places[13],
        places[14],
        places[15],
    )
    for _ in range(steps):
        a, b, c, d = np.int64(load_u64(a)), np.int64(load_u64(b)), np.int64(load_u64(c)), np.int64(load_u64(d))
        e, f, g, h = np.int64(load_u64(e)), np.int64(load_u64(f)), np.int64(load_u64(g)), np.int64(load_u64(h))
        i, j, k, m = np.int64(load_u64(i)), np.int64(load_u64(j)), np.int64(load_u64(k)), np.int64(load_u64(m))
        n, o, p, q = np.int64(load_u64(n)), np.int64(load_u64(o)), np.int64(load_u64(p)), np.int64(load_u64(q))
    places[0], places[1], places[2], places[3], places[4], places[5], places[6], places[7] = a, b, c, d, e, f, g, h
    places[8], places[9], places[10], places[11], places[12], places[13], places[14], places[15] = (
        i,
        j,
        k,
        m,
        n,
        o,
        p,
        q,
    )


@kernel("int64(int32, int64, int64, int64[::1])")
def read_pages(fd, buffer, size, offsets):
    """One `preadv2` for each offset, all to the same place; returns how many the page cache answered whole."""
    vector = np.array([buffer, size], np.int64)
    whole = 0
    for offset in offsets:
        whole += preadv2(fd, vector.ctypes.data, np.int32(1), offset, _NOWAIT) == size
    return whole


@kernel("uint64(int64, int64, int64)")
def check_pages(address, size, times):
    """The checksums of four neighbouring pages in turns; one alone the compiler would work out once."""
    total = np.uint64(0)
    for i in range(times):
        total ^= checksum(address + (i & 3) * size, size)
    return total


@kernel("int64(int32, int64, int64[:, ::1], int64[::1], int64[:, ::1], uint64[::1], int64, int64, int64, int64, int64)")
def collect_parts(
    fd, buffer, ranges, first_page, pages, codes, first_range, last_range, from_page, to_page, depth
):  # fmt: skip
    """The first parts of `semistream.kernels.pages.collect` over the same pages: read, then check, then search."""
    vector = np.empty(2, np.int64)
    seen = 0
    for r in range(first_range, last_range):
        vector[0], vector[1] = buffer, ranges[r, 1]
        seen += preadv2(fd, vector.ctypes.data, np.int32(1), ranges[r, 0], _NOWAIT)
        if depth == READ:
            continue
        for p in range(max(first_page[r], from_page), min(first_page[r + 1], to_page)):
            page = buffer + pages[p, 0] - ranges[r, 0]
            seen += _is_sound(page, pages[p, 1], pages[p, 2])
            if depth == SEARCH:
                count = np.int64(load_u32(page + 8))
                for k in range(pages[p, 3], pages[p, 4]):
                    seen += _lower_bound(page, count, codes[k])
    return seen
