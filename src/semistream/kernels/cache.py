"""The tuple cache H_R in one flat buffer, so that it can live in private or in shared memory alike.

``[header int64 × 32 | buckets of 64 bytes | sketch u8 | cells]``. A key hashes to one bucket, a single cache line of
ten ways: ``[tag u8 × 10 | frequency u8 × 10 | pad | cell u32 × 10]``. A tag tells most absent keys without touching a
cell; a full bucket gives up its least frequent entry, so finding, admitting and evicting touch one line of the table
each. A value, the packed rows of one key, lies in one cell or in a chain of cells of equal size: no fragmentation.

A cell is ``[code u64 | state u8 | check u24 | value length u32 | next cell u32 | bytes]``; where every value is one row
of fixed width (``simple``), length and next cell are left out. The check covers the whole cell: a damaged one is a
miss, never a wrong row. Arrivals of cached keys are counted in their bucket, those of the others in the sketch
(count-min, two counters per key, halved periodically).
"""

import numpy as np

from semistream.kernels.hashing import mix64
from semistream.kernels.jit import inline, kernel
from semistream.kernels.memory import load_u8, load_u32, load_u64, prefetch, store_u8, store_u32, store_u64

# Fields of the header.
MAGIC, CELLS, BUCKETS, SKETCH, CELL_BYTES, VALUE_AT, SIMPLE = 0, 1, 2, 3, 4, 5, 6
BUCKETS_AT, SKETCH_AT, CELLS_AT = 7, 8, 9
TOP, FREE_HEAD, FREE_COUNT, LIVE, HAND, LIMIT, COUNTED = 10, 11, 12, 13, 14, 15, 16
EVICTIONS, ADMISSIONS, REJECTIONS = 17, 18, 19
VERSION, DIRTY, STORE, CONTENT = 20, 21, 22, 23  # for a cache that processes share; see semistream.spark
WARMED = 24  # with what was hot in an earlier run: WARM, or when somebody began; see semistream.joins.sweep.hot
LONGEST = 25  # bytes of the longest value that was taken
HEADER_FIELDS = 32
BUCKET_BYTES, WAYS = 64, 10
FREQUENCY_AT, CELL_AT = 10, 24
SIMPLE_VALUE_AT, CHAIN_VALUE_AT = 12, 20
FREE, HELD, MORE, ABSENT = 0, 1, 2, 3
NONE = 0xFFFFFFFF
ROW_MISSING, ROW_ABSENT = 0, 1
WARM = 1
NONE64 = np.int64(NONE)
_AT_ONCE = 128
_LOW32 = np.uint64(0xFFFFFFFF)
_S32, _S56 = np.uint64(32), np.uint64(56)
_CHECK_A, _CHECK_B = np.uint64(0x9FB21C651E98DF25), np.uint64(0x8EBC6AF09C88C6E3)
_SKETCH_SEED = np.uint64(0xD6E8FEB86659FD93)


@inline
def bucket_of(header, h):
    return (
        header.ctypes.data
        + header[BUCKETS_AT]
        + np.int64(((h & _LOW32) * np.uint64(header[BUCKETS])) >> _S32) * BUCKET_BYTES
    )


@inline
def tag_of(h):
    """A hash's tag; never 0, which marks a free way."""
    return np.uint8((h >> _S56) | np.uint64(1))


@inline
def cell_at(header, index):
    return header.ctypes.data + header[CELLS_AT] + index * header[CELL_BYTES]


@inline
def cell_of(header, bucket, way):
    """The cell that a way points to, as an index; one out of bounds (damaged memory) becomes the last."""
    return min(np.int64(load_u32(bucket + CELL_AT + 4 * way)), header[CELLS] - 1)


@inline
def _check_of(cell, size):
    h = load_u64(cell) * _CHECK_A + np.uint64(load_u8(cell + 8))
    position = 12
    while position + 8 <= size:
        h = (h ^ load_u64(cell + position)) * _CHECK_B
        h ^= h >> _S32
        position += 8
    if position < size:
        if size >= 20:  # the last eight bytes, some of them for the second time: quicker than one by one
            h = (h ^ load_u64(cell + size - 8)) * _CHECK_B
        else:
            while position < size:
                h = (h ^ np.uint64(load_u8(cell + position))) * _CHECK_B
                position += 1
    return np.uint32((h ^ (h >> _S32)) >> np.uint64(8)) & np.uint32(0xFFFFFF)


@inline
def is_sound(header, cell):
    return (load_u32(cell + 8) >> np.uint32(8)) == _check_of(cell, header[CELL_BYTES])


@inline
def seal(header, cell):
    store_u32(cell + 8, np.uint32(_check_of(cell, header[CELL_BYTES]) << np.uint32(8) | np.uint32(load_u8(cell + 8))))


@inline
def find(header, code, bucket, tag):
    """The way that holds ``code``, or -1."""
    for way in range(WAYS):
        if load_u8(bucket + way) == tag and load_u64(cell_at(header, cell_of(header, bucket, way))) == code:
            return way
    return -1


@inline
def entry_of(header, code):
    """A code's bucket, and the way of it that holds the code, or -1."""
    h = mix64(code)
    bucket = bucket_of(header, h)
    return bucket, find(header, code, bucket, tag_of(h))


@inline
def sketch_pair(header, code):
    h = mix64(code ^ _SKETCH_SEED)
    base = header.ctypes.data + header[SKETCH_AT]
    half = np.uint64(header[SKETCH] >> 1)
    first = base + np.int64(((h >> _S32) * half) >> _S32)
    second = base + np.int64(half) + np.int64(((h & _LOW32) * half) >> _S32)
    return first, second


@inline
def _count_miss(header, code):
    first, second = sketch_pair(header, code)
    a, b = load_u8(first), load_u8(second)
    low = min(a, b)
    if low < 255:  # conservative update: only the smaller counter grows
        if a == low:
            store_u8(first, np.uint8(a + 1))
        if b == low:
            store_u8(second, np.uint8(b + 1))


@inline
def _copy_row(target, source, width):
    """Copy a row of fixed width by words; the last one overlaps what was copied already."""
    position = 0
    while position + 8 <= width:
        store_u64(target + position, load_u64(source + position))
        position += 8
    if position < width:
        if width >= 8:
            store_u64(target + width - 8, load_u64(source + width - 8))
        else:
            while position < width:
                store_u8(target + position, load_u8(source + position))
                position += 1


@kernel("int64(int64[::1], uint64[::1], boolean[::1], int64[::1], int64, int64)")
def probe(header, codes, valid, out, staging, width):
    """Look codes up: out[i] is the address of the cell's value, ROW_ABSENT, or ROW_MISSING; every arrival is counted.

    Three passes over a few codes keep several cache misses in flight at once. With width > 0 values are copied, one
    after the other, to the staging, and out[i] is the copy: taking columns from it does not wait on memory again.
    """
    value_at = header[VALUE_AT]
    hashes = np.empty(_AT_ONCE, np.uint64)
    ways = np.empty(_AT_ONCE, np.int64)
    hits = 0
    for start in range(0, len(codes), _AT_ONCE):
        count = min(_AT_ONCE, len(codes) - start)
        for i in range(count):
            hashes[i] = mix64(codes[start + i])
            prefetch(bucket_of(header, hashes[i]))
        for i in range(count):
            bucket = bucket_of(header, hashes[i])
            tag = tag_of(hashes[i])
            ways[i] = -1
            for way in range(WAYS):
                if load_u8(bucket + way) == tag:
                    ways[i] = way
                    cell = cell_at(header, cell_of(header, bucket, way))
                    prefetch(cell)
                    prefetch(cell + value_at + 24)
                    break
            if ways[i] < 0:
                first, second = sketch_pair(header, codes[start + i])
                prefetch(first)
                prefetch(second)
        for i in range(count):
            if not valid[start + i]:
                out[start + i] = ROW_ABSENT
                continue
            code = codes[start + i]
            bucket = bucket_of(header, hashes[i])
            way = ways[i]
            if way >= 0 and load_u64(cell_at(header, cell_of(header, bucket, way))) != code:
                way = find(header, code, bucket, tag_of(hashes[i]))  # the tag was another key's: search on
            cell = cell_at(header, cell_of(header, bucket, max(way, 0)))
            if way < 0 or not is_sound(header, cell):
                _count_miss(header, code)
                out[start + i] = ROW_MISSING
                continue
            hits += 1
            frequency = load_u8(bucket + FREQUENCY_AT + way)
            if frequency < 255:
                store_u8(bucket + FREQUENCY_AT + way, np.uint8(frequency + 1))
            if load_u8(cell + 8) == ABSENT:
                out[start + i] = ROW_ABSENT
            elif width > 0:
                _copy_row(staging, cell + value_at, width)
                out[start + i] = staging
                staging += width
            else:
                out[start + i] = cell + value_at
    header[COUNTED] += len(codes)
    return hits


@inline
def next_cell(header, cell):
    """The cell that goes on with the value, or NONE64."""
    if header[SIMPLE]:
        return NONE64
    index = np.int64(load_u32(cell + 16))
    return index if index < header[CELLS] else NONE64


@kernel("void(int64[::1])")
def halve(header):
    """Age every count, so that a hotspot that moved on is forgotten."""
    base = header.ctypes.data + header[BUCKETS_AT]
    for b in range(header[BUCKETS]):
        for way in range(WAYS):
            address = base + b * BUCKET_BYTES + FREQUENCY_AT + way
            store_u8(address, np.uint8(load_u8(address) >> np.uint8(1)))
    base = header.ctypes.data + header[SKETCH_AT]
    for i in range(header[SKETCH]):
        store_u8(base + i, np.uint8(load_u8(base + i) >> np.uint8(1)))
    header[COUNTED] >>= 1


@kernel("void(int64[::1], int64[::1])")
def check_structure(header, found):
    """Walk everything: found = [live entries, cells in use, free cells, entries that their bucket does not lead to]."""
    live, held, free, lost = 0, 0, 0, 0
    for index in range(header[TOP]):
        cell = cell_at(header, index)
        state = load_u8(cell + 8)
        if state == FREE:
            free += 1
            continue
        held += 1
        if state != MORE:
            live += 1
            bucket, way = entry_of(header, load_u64(cell))
            if way < 0 or cell_of(header, bucket, way) != index:
                lost += 1
    found[0], found[1], found[2], found[3] = live, held, free, lost
