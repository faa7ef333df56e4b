"""What enters the tuple cache (`semistream.kernels.cache`) and what leaves for it.

A value is taken when there is room, or when its key is more frequent than what must go; a full bucket gives up its
least frequent entry. What leaves takes its count along to the sketch.
"""

import numpy as np

from semistream.kernels import cache as k
from semistream.kernels.cache import bucket_of, cell_at, cell_of, entry_of, find, next_cell, seal, sketch_pair, tag_of
from semistream.kernels.hashing import mix64
from semistream.kernels.jit import inline, kernel
from semistream.kernels.memory import copy_bytes, load_u8, load_u32, load_u64, prefetch, store_u8, store_u32, store_u64


@inline
def _chain_cells(header, index):
    count = 0
    while index != k.NONE64 and count < header[k.CELLS]:
        count += 1
        index = next_cell(header, cell_at(header, index))
    return count


@inline
def _evict(header, bucket, way):
    """Forget an entry, remembering its count in the sketch; its cells become free."""
    index = cell_of(header, bucket, way)
    frequency = load_u8(bucket + k.FREQUENCY_AT + way)
    if frequency > 1:
        first, second = sketch_pair(header, load_u64(cell_at(header, index)))
        if load_u8(first) < frequency:
            store_u8(first, frequency)
        if load_u8(second) < frequency:
            store_u8(second, frequency)
    store_u8(bucket + way, np.uint8(0))
    header[k.LIVE] -= 1
    while index != k.NONE64:
        cell = cell_at(header, index)
        following = next_cell(header, cell)
        if load_u8(cell + 8) == k.FREE:
            break  # damaged memory: never free a cell twice
        store_u8(cell + 8, np.uint8(k.FREE))
        store_u32(cell, np.uint32(header[k.FREE_HEAD]))
        header[k.FREE_HEAD] = index
        header[k.FREE_COUNT] += 1
        index = following


@inline
def _weakest(bucket):
    """The least frequent way of a bucket, or -1 when it is empty."""
    best = -1
    least = 256
    for way in range(k.WAYS):
        if load_u8(bucket + way) != 0:
            frequency = np.int64(load_u8(bucket + k.FREQUENCY_AT + way))
            if frequency < least:
                best, least = way, frequency
    return best


@inline
def _hand_bucket(header):
    bucket = header.ctypes.data + header[k.BUCKETS_AT] + header[k.HAND] * k.BUCKET_BYTES
    header[k.HAND] += 1
    if header[k.HAND] >= header[k.BUCKETS]:
        header[k.HAND] = 0
    return bucket


@inline
def _take_cell(header):
    index = header[k.FREE_HEAD]
    if index < header[k.CELLS]:
        header[k.FREE_HEAD] = np.int64(load_u32(cell_at(header, index)))
        header[k.FREE_COUNT] -= 1
        return index
    index = min(header[k.TOP], header[k.CELLS] - 1)
    header[k.TOP] += 1
    return index


@inline
def _room(header):
    return header[k.FREE_COUNT] + header[k.LIMIT] - header[k.TOP]


@inline
def _store_value(header, code, value, length, state):
    """Write a value to free cells; returns the first."""
    head = _take_cell(header)
    cell = cell_at(header, head)
    store_u64(cell, code)
    store_u8(cell + 8, np.uint8(state))
    if header[k.SIMPLE]:
        copy_bytes(cell + header[k.VALUE_AT], value, length)
        seal(header, cell)
        return head
    part_bytes = header[k.CELL_BYTES] - header[k.VALUE_AT]
    store_u32(cell + 12, np.uint32(length))
    done = 0
    while True:
        part = min(part_bytes, length - done)
        copy_bytes(cell + header[k.VALUE_AT], value + done, part)
        done += part
        if done >= length:
            store_u32(cell + 16, np.uint32(k.NONE))
            seal(header, cell)
            return head
        following = _take_cell(header)
        store_u32(cell + 16, np.uint32(following))
        seal(header, cell)
        cell = cell_at(header, following)
        store_u64(cell, code)
        store_u8(cell + 8, np.uint8(k.MORE))
        store_u32(cell + 12, np.uint32(0))


@inline
def _make_room(header, bucket, cells, frequency):
    """Free a way of the bucket and enough cells, giving up only what is less frequent a cell than the newcomer."""
    way = -1
    for w in range(k.WAYS):
        if load_u8(bucket + w) == 0:
            way = w
            break
    tries = 0
    while way < 0 or _room(header) < cells:
        victim_bucket = bucket
        victim = _weakest(bucket)
        if victim < 0 or tries > 0:
            if way < 0 and victim < 0:
                return -1
            if way >= 0:  # the own bucket has a way: any bucket may give up cells
                victim_bucket = _hand_bucket(header)
                victim = _weakest(victim_bucket)
        tries += 1
        if tries > cells + 1:
            return -1
        if victim < 0:
            continue
        size = _chain_cells(header, cell_of(header, victim_bucket, victim))
        if np.int64(load_u8(victim_bucket + k.FREQUENCY_AT + victim)) * cells >= frequency * size:
            if victim_bucket == bucket and way < 0:
                return -1
            continue
        _evict(header, victim_bucket, victim)
        header[k.EVICTIONS] += 1
        if victim_bucket == bucket and way < 0:
            way = victim
    return way


@kernel("int64(int64[::1], uint64[::1], int64[::1], int64[::1], int64, int64)")
def admit(header, codes, values, lengths, least_frequency, longest):
    """Offer values; returns how many were taken. A length of 0 records that the key is absent from the master.
    ``least_frequency`` is the corrected cache inequality as a count; values over ``longest`` bytes are never taken.
    """
    part_bytes = header[k.CELL_BYTES] - header[k.VALUE_AT]
    taken = 0
    for i in range(len(codes)):
        if i + 8 < len(codes):
            prefetch(bucket_of(header, mix64(codes[i + 8])))
            first, second = sketch_pair(header, codes[i + 8])
            prefetch(first)
            prefetch(second)
        length = lengths[i]
        if length > longest:
            continue
        code = codes[i]
        first, second = sketch_pair(header, code)
        frequency = np.int64(min(load_u8(first), load_u8(second)))
        cells = np.int64(1) if header[k.SIMPLE] else max(np.int64(1), (length + part_bytes - 1) // part_bytes)
        if frequency < least_frequency * cells:
            header[k.REJECTIONS] += 1
            continue
        h = mix64(code)
        bucket = bucket_of(header, h)
        if find(header, code, bucket, tag_of(h)) >= 0:
            continue
        way = _make_room(header, bucket, cells, frequency)
        if way < 0:
            header[k.REJECTIONS] += 1
            continue
        head = _store_value(header, code, values[i], length, k.ABSENT if length == 0 else k.HELD)
        header[k.LONGEST] = max(header[k.LONGEST], length)
        store_u8(bucket + way, tag_of(h))
        store_u8(bucket + k.FREQUENCY_AT + way, np.uint8(min(frequency, 255)))
        store_u32(bucket + k.CELL_AT + 4 * way, np.uint32(head))
        header[k.LIVE] += 1
        taken += 1
    header[k.ADMISSIONS] += taken
    return taken


@kernel("void(int64[::1], uint64[::1])")
def discard(header, codes):
    """Drop these keys: they changed in the master."""
    for i in range(len(codes)):
        bucket, way = entry_of(header, codes[i])
        if way >= 0:
            _evict(header, bucket, way)


@kernel("void(int64[::1], int64)")
def limit_cells(header, limit):
    """Use at most ``limit`` cells from now on: entries that reach beyond are dropped."""
    for index in range(limit, header[k.TOP]):
        cell = cell_at(header, index)
        if load_u8(cell + 8) == k.FREE:
            continue
        bucket, way = entry_of(header, load_u64(cell))
        if way >= 0:
            _evict(header, bucket, way)
    header[k.TOP] = min(header[k.TOP], limit)
    header[k.LIMIT] = limit
    header[k.FREE_HEAD] = k.NONE64
    header[k.FREE_COUNT] = 0
    for index in range(header[k.TOP]):
        cell = cell_at(header, index)
        if load_u8(cell + 8) == k.FREE:
            store_u32(cell, np.uint32(header[k.FREE_HEAD]))
            header[k.FREE_HEAD] = index
            header[k.FREE_COUNT] += 1


@kernel("int64(int64[::1], int64, int64, uint64[::1], uint8[::1], int64[::1])")
def hot_keys(header, least, below, codes, counts, next_bucket):
    """Keys whose rows are here and that came from ``least`` to ``below`` times, as many as there is room for. It begins
    at next_bucket[0], and says there where to go on; returns how many.
    """
    base = header.ctypes.data + header[k.BUCKETS_AT]
    b, n = next_bucket[0], 0
    while b < header[k.BUCKETS] and n + k.WAYS <= len(codes):
        bucket = base + b * k.BUCKET_BYTES
        for way in range(k.WAYS):
            frequency = load_u8(bucket + k.FREQUENCY_AT + way)
            if load_u8(bucket + way) != 0 and least <= frequency < below:
                cell = cell_at(header, cell_of(header, bucket, way))
                if load_u8(cell + 8) == k.HELD:
                    codes[n], counts[n] = load_u64(cell), frequency
                    n += 1
        b += 1
    next_bucket[0] = b
    return n


@kernel("void(int64[::1], uint64[::1], uint8[::1], int64)")
def expect(header, codes, counts, arrivals):
    """Count keys that are not here as if they had come so often among so many arrivals."""
    header[k.COUNTED] = max(header[k.COUNTED], arrivals)
    for i in range(len(codes)):
        first, second = sketch_pair(header, codes[i])
        store_u8(first, max(load_u8(first), counts[i]))
        store_u8(second, max(load_u8(second), counts[i]))
