"""From ascending codes to the pages they lie on, and from pages to reads of many ranges in one call.

``os.pread`` costs about 1.5 µs of interpreter time per call beside the read itself; a warm 4 KiB read takes 1 µs.
"""

import numpy as np

from semistream.kernels.jit import inline, kernel
from semistream.kernels.memory import pread


@inline
def _gallop(firsts, start, code):
    """The first place from ``start`` on whose value is at least ``code``; near places are found soonest."""
    low, high, step = start, start, 1
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


@kernel("int64(int32, int64[::1], int64[::1], int64[::1], int64, int64)")
def read_ranges(fd, addresses, lengths, offsets, first, last):
    """Read ranges[first:last] whole; returns the first one that could not be, or -1."""
    for i in range(first, last):
        done = 0
        while done < lengths[i]:
            got = pread(fd, addresses[i] + done, np.uint64(lengths[i] - done), offsets[i] + done)
            if got <= 0:
                return i
            done += got
    return -1


@kernel("int64(int64[::1], int64[::1], int64, int64, int64, int64[:, ::1], int64[::1])")
def plan_reads(offsets, lengths, gap, longest, chunk_bytes, ranges, first_page):
    """Turn wanted pages (ascending file offsets) into read ranges, chunk by chunk; returns the number of ranges.

    A gap of at most ``gap`` bytes is read through; a range stays under ``longest``, what is read into one chunk under
    ``chunk_bytes`` (a single larger page gets a chunk of its own). ranges[r] = [file offset, length, place in the
    chunk, chunk]; the pages of range r are first_page[r] to first_page[r + 1].
    """
    n, chunk, used = 0, 0, 0
    for i in range(len(offsets)):
        if used > 0:  # the chunk has a range
            end = ranges[n - 1, 0] + ranges[n - 1, 1]
            skip = offsets[i] - end
            grown = skip + lengths[i]
            if 0 <= skip <= gap and ranges[n - 1, 1] + grown <= longest and used + grown <= chunk_bytes:
                ranges[n - 1, 1] += grown
                used += grown
                continue
            if used + lengths[i] > chunk_bytes:
                chunk += 1
                used = 0
        ranges[n, 0], ranges[n, 1], ranges[n, 2], ranges[n, 3] = offsets[i], lengths[i], used, chunk
        first_page[n] = i
        used += lengths[i]
        n += 1
    first_page[n] = len(offsets)
    return n
