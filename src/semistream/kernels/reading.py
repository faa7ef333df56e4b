"""Reads of many ranges in one call, without the interpreter in between.

``os.pread`` costs about 1.5 µs of interpreter time per call beside the read itself; a warm 4 KiB read takes 1 µs.
"""

import numpy as np

from semistream.kernels.jit import kernel, pread


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
        joined = False
        if n > 0 and used > 0:
            end = ranges[n - 1, 0] + ranges[n - 1, 1]
            skip = offsets[i] - end
            grown = skip + lengths[i]
            if 0 <= skip <= gap and ranges[n - 1, 1] + grown <= longest and used + grown <= chunk_bytes:
                ranges[n - 1, 1] += grown
                used += grown
                joined = True
        if not joined:
            if used > 0 and used + lengths[i] > chunk_bytes:
                chunk += 1
                used = 0
            ranges[n, 0], ranges[n, 1], ranges[n, 2], ranges[n, 3] = offsets[i], lengths[i], used, chunk
            first_page[n] = i
            used += lengths[i]
            n += 1
    first_page[n] = len(offsets)
    return n
