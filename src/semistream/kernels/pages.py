"""Pages: packed rows in key order, found by binary search, guarded by a checksum.

A page is ``[checksum u64 | rows u32 | used bytes u32 | position u64 | codes u64 × rows | row starts u32 × rows, only
when rows vary in length | rows]``. The checksum covers everything after itself up to ``used``; ``position`` is the
page's place in its file, so a page read from the wrong place is noticed too.

The tuples of one key share a page whenever they fit on one; a larger group begins a page of its own and runs on over
the following pages. A single row larger than a page takes several strides by itself.
"""

import numpy as np

from semistream.kernels.hashing import checksum
from semistream.kernels.jit import inline, kernel
from semistream.kernels.memory import copy_bytes, load_u32, load_u64, preadv2, store_u8, store_u32, store_u64
from semistream.kernels.rows import project_row

HEADER = 24


@inline
def _emit(output, progress, strides, first, last):
    """Write rows [first, last) as the next page of the output, ``strides`` long."""
    out, stride_bytes, position, rows, lengths, codes, fixed, firsts, starts = output
    page, stride = progress[1], progress[2]
    progress[1] += 1
    progress[2] += strides
    target = out + stride * stride_bytes
    firsts[page] = codes[first]
    starts[page] = position + stride
    count = last - first
    store_u32(target + 8, np.uint32(count))
    store_u64(target + 16, np.uint64(position + stride))
    cursor = HEADER + 8 * count
    if not fixed:
        cursor += 4 * count
    for i in range(count):
        length = lengths[first + i]
        store_u64(target + HEADER + 8 * i, codes[first + i])
        if not fixed:
            store_u32(target + HEADER + 8 * count + 4 * i, np.uint32(cursor))
        copy_bytes(target + cursor, rows[first + i], length)
        cursor += length
    for b in range(cursor, strides * stride_bytes):
        store_u8(target + b, np.uint8(0))
    store_u32(target + 12, np.uint32(cursor))
    store_u64(target, checksum(target + 8, cursor - 8))


@kernel(
    "void(int64[::1], int64[::1], uint64[::1], boolean, boolean, int64, int64, int64, int64, uint64[::1], int64[::1],"
    "int64[::1])"
)
def fill_pages(rows, lengths, codes, fixed, final, stride_bytes, out, out_strides, position, firsts, starts, progress):
    """Write whole pages from rows in key order; rows that may still share a page with what follows stay unconsumed.
    ``progress`` returns [rows consumed, pages written, strides written].
    """
    output = (out, stride_bytes, position, rows, lengths, codes, fixed, firsts, starts)
    count = len(codes)
    overhead = 8 if fixed else 12
    capacity = stride_bytes - HEADER
    page_start, used, i = 0, 0, 0
    progress[:] = 0
    group_end, size, small = 0, 0, False
    while i < count:
        apart = False
        if i == group_end:
            size = 0
            while group_end < count and codes[group_end] == codes[i]:
                size += lengths[group_end] + overhead
                group_end += 1
            small = size <= capacity
            if small and group_end == count and not final:
                break  # the group may go on in the next block
            apart = not small  # a group larger than a page begins a page of its own
        # What shares a page: a whole group, or a row of a group larger than a page.
        end = group_end if small else i + 1
        need = size if small else lengths[i] + overhead
        if used > 0 and (apart or used + need > capacity):
            if progress[2] + 1 > out_strides:
                break
            _emit(output, progress, 1, page_start, i)
            page_start, used = i, 0
        if need > capacity:
            long = (need + HEADER + stride_bytes - 1) // stride_bytes
            if progress[2] + long > out_strides:
                break
            _emit(output, progress, long, i, end)
            page_start = end
        else:
            used += need
        i = end
    if final and i == count and page_start < count and progress[2] + 1 <= out_strides:
        _emit(output, progress, 1, page_start, count)
        page_start = count
    progress[0] = page_start


@inline
def _is_sound(page, limit, position):
    used = np.int64(load_u32(page + 12))
    if used < HEADER or used > limit or np.int64(load_u64(page + 16)) != position:
        return False
    return load_u64(page) == checksum(page + 8, used - 8)


@kernel("int64(int64[::1], int64[::1], int64[::1])")
def first_damaged(pages, limits, positions):
    """The first page whose checksum or place is wrong, or -1."""
    for p in range(len(pages)):
        if not _is_sound(pages[p], limits[p], positions[p]):
            return p
    return -1


@kernel("int64(int64[::1])")
def count_rows(pages):
    """Rows on these pages together: the most that a match can return."""
    total = 0
    for p in range(len(pages)):
        total += np.int64(load_u32(pages[p] + 8))
    return total


@inline
def _row_at(page, count, i, width):
    if width >= 0:
        return page + HEADER + 8 * count + width * i
    return page + np.int64(load_u32(page + HEADER + 8 * count + 4 * i))


@inline
def _lower_bound(page, count, code):
    low, high = np.int64(0), count
    while low < high:
        middle = (low + high) >> 1
        if load_u64(page + HEADER + 8 * middle) < code:
            low = middle + 1
        else:
            high = middle
    return low


@kernel("int64(int64[::1], int64[::1], int64[::1], uint64[::1], int64, int64[::1], int64[::1])")
def match_pages(pages, wanted_from, wanted_to, codes, width, out_rows, out_index):
    """Look codes[wanted_from[p]:wanted_to[p]] up on page p; returns the number of (row address, code index) pairs."""
    found = 0
    for p in range(len(pages)):
        page = pages[p]
        count = np.int64(load_u32(page + 8))
        for k in range(wanted_from[p], wanted_to[p]):
            i = _lower_bound(page, count, codes[k])
            while i < count and load_u64(page + HEADER + 8 * i) == codes[k]:
                out_rows[found] = _row_at(page, count, i, width)
                out_index[found] = k
                found += 1
                i += 1
    return found


# What `collect` returns: all pages done, the staging is full, a range is not in the page cache, a page is damaged.
DONE, FULL, COLD, DAMAGED = 0, 1, 2, 3
# Fields of its state: next range, next page, whether the range is loaded, rows and bytes in the staging.
RANGE, PAGE, LOADED, ROWS, BYTES = 0, 1, 2, 3, 4
_NOWAIT = np.int32(8)  # RWF_NOWAIT of linux/fs.h: fail instead of waiting for the disk


@kernel(
    "int64(int32, int64, int64, int64[:, ::1], int64[::1], int64[:, ::1], uint64[::1], int64, int64[::1], int64[::1],"
    "int64[::1], int64[::1], int64, int64[::1], int64, int64, int64, int64[::1], int64[::1], int64[::1])"
)
def collect(
    fd, buffer, last_range, ranges, first_page, pages, codes, width, columns, widths,
    slots, previous, head, new_slots, new_head, staging, staging_bytes, out_offsets, out_index, state,
):  # fmt: skip
    """Read ranges, verify their pages, search them for the wanted codes; copy what is found, projected, to the staging.

    ``pages[p]`` = [file offset, bytes, position, first wanted code, last wanted code]. With fd < 0 the ranges lie in
    the buffer already, at ranges[r, 2]; else each is read to the start of the buffer if the page cache has it. One
    pass over memory that stays in the processor's cache, and no interpreter between two pages.
    """
    vector = np.empty(2, np.int64)
    with_text = False
    for k in range(len(columns)):
        with_text |= widths[columns[k]] == 0
    while state[RANGE] < last_range:
        r = state[RANGE]
        base = buffer if fd >= 0 else buffer + ranges[r, 2]
        if fd >= 0 and state[LOADED] == 0:
            vector[0] = base
            vector[1] = ranges[r, 1]
            if preadv2(fd, vector.ctypes.data, np.int32(1), ranges[r, 0], _NOWAIT) != ranges[r, 1]:
                return COLD
        state[LOADED] = 1
        while state[PAGE] < first_page[r + 1]:
            p = state[PAGE]
            page = base + pages[p, 0] - ranges[r, 0]
            if not _is_sound(page, pages[p, 1], pages[p, 2]):
                return DAMAGED
            count = np.int64(load_u32(page + 8))
            # At most all rows of the page are wanted, with smaller heads, and all text on it if any is.
            most = count * new_head
            if with_text:
                most += np.int64(load_u32(page + 12)) - HEADER - count * (8 + head)
            if state[ROWS] + count >= len(out_index) or state[BYTES] + most > staging_bytes:
                return FULL
            for k in range(pages[p, 3], pages[p, 4]):
                i = _lower_bound(page, count, codes[k])
                while i < count and load_u64(page + HEADER + 8 * i) == codes[k]:
                    row = _row_at(page, count, i, width)
                    state[BYTES] += project_row(
                        row, staging + state[BYTES], columns, widths, slots, previous, head, new_slots, new_head
                    )
                    out_index[state[ROWS]] = k
                    state[ROWS] += 1
                    out_offsets[state[ROWS]] = state[BYTES]
                    i += 1
            state[PAGE] += 1
        state[LOADED] = 0
        state[RANGE] += 1
    return DONE


@kernel("void(int64[::1], int64, int64[::1], uint64[::1])")
def list_rows(pages, width, out_rows, out_codes):
    n = 0
    for p in range(len(pages)):
        page = pages[p]
        count = np.int64(load_u32(page + 8))
        for i in range(count):
            out_rows[n] = _row_at(page, count, i, width)
            out_codes[n] = load_u64(page + HEADER + 8 * i)
            n += 1
