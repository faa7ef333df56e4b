"""From ascending codes to the pages they lie on: one pass over both, since both ascend."""

import numpy as np

from semistream.kernels.jit import inline, kernel


@inline
def _gallop(firsts, start, code):  # type: ignore[no-untyped-def]
    """The first place from ``start`` on whose value is at least ``code``; near places are found soonest."""
    step = 1
    low = start
    high = start
    while high < len(firsts) and firsts[high] < code:
        low = high + 1
        high += step
        step += step
    high = min(high, len(firsts))
    while low < high:
        middle = (low + high) >> 1
        if firsts[middle] < code:
            low = middle + 1
        else:
            high = middle
    return low


@kernel("void(uint64[::1], uint64[::1], int64, int64[::1], int64[::1])")
def locate_sorted(firsts, codes, first_page, low, high):
    """The pages [low, high) on which the rows of each code may lie; ``firsts`` is the first code of each page."""
    place = 0
    for i in range(len(codes)):
        place = _gallop(firsts, place, codes[i])
        end = place
        while end < len(firsts) and firsts[end] == codes[i]:
            end += 1
        if end > place:  # the code begins a page, or fills several
            low[i], high[i] = place + first_page, end + first_page
        else:
            low[i], high[i] = max(place - 1, 0) + first_page, place + first_page


@kernel("int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])")
def wanted_pages(low, high, pages, first, last):
    """Each page of ascending ranges [low, high) once, with the codes [first, last) to look for on it."""
    n = 0
    for i in range(len(low)):
        page = low[i]
        if n > 0 and page < high[i] and pages[n - 1] == page:
            last[n - 1] = i + 1
            page += 1
        while page < high[i]:
            pages[n], first[n], last[n] = page, i, i + 1
            n += 1
            page += 1
    return np.int64(n)
