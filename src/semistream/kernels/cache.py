"""The tuple cache H_R in one flat buffer, so that it can live in private or in shared memory alike.

``[header int64 × 32 | tags u8 | slots u32 | sketch u8 | cells]``. A key hashes to a slot; a one-byte tag tells most
absent keys without touching the cell (linear probing, deletion by backward shift). A value, the packed rows of one
key, lies in one cell or in a chain of cells of equal size, so there is no fragmentation and no allocator to speak of.

A cell is ``[code u64 | frequency u8 | state u8 | check u16 | value length u32 | next cell u32 | bytes]``; where every
value is one row of fixed width (``simple``), length and next cell are left out. The check covers all but the
frequency: a damaged cell is a miss, never a wrong row. Frequencies of cached keys are counted in their cells, which a hit
touches anyway; those of the others in the sketch (count-min, two counters a key, halved periodically).
"""

import numpy as np

from semistream.kernels._jit import (
    copy_bytes,
    inline,
    kernel,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    prefetch,
    store_u8,
    store_u16,
    store_u32,
    store_u64,
)
from semistream.kernels.hashing import mix64
from semistream.kernels.rows import row_length

# Fields of the header.
MAGIC, CELLS, SLOTS, SKETCH, CELL_BYTES, VALUE_AT, SIMPLE = 0, 1, 2, 3, 4, 5, 6
TAGS_AT, SLOTS_AT, SKETCH_AT, CELLS_AT = 7, 8, 9, 10
TOP, FREE_HEAD, FREE_COUNT, LIVE, HAND, LIMIT, COUNTED = 11, 12, 13, 14, 15, 16, 17
EVICTIONS, ADMISSIONS, REJECTIONS = 18, 19, 20
VERSION, DIRTY, SMALL_ROWS, SMALL_MATCHED = 21, 22, 23, 24  # for the shared cache; see semistream.spark
HEADER_FIELDS = 32
SIMPLE_VALUE_AT, CHAIN_VALUE_AT = 12, 20
FREE, HELD, MORE, ABSENT = 0, 1, 2, 3
NONE = 0xFFFFFFFF
_NONE64 = np.int64(NONE)
_BLOCK = 128
_S32 = np.uint64(32)
_S48, _S56 = np.uint64(48), np.uint64(56)
_CHECK_A, _CHECK_B = np.uint64(0x9FB21C651E98DF25), np.uint64(0x8EBC6AF09C88C6E3)
_SKETCH_SEED = np.uint64(0xD6E8FEB86659FD93)
ROW_MISSING, ROW_ABSENT = 0, 1


@inline
def _home(h, slots):  # type: ignore[no-untyped-def]
    return np.int64(((h & np.uint64(0xFFFFFFFF)) * np.uint64(slots)) >> _S32)


@inline
def _tag(h):  # type: ignore[no-untyped-def]
    return np.uint8((h >> _S56) | np.uint64(1))


@inline
def _cell(header, index):  # type: ignore[no-untyped-def]
    return header.ctypes.data + header[CELLS_AT] + index * header[CELL_BYTES]


@inline
def _check_of(cell, count):  # type: ignore[no-untyped-def]
    """Check value of a cell whose bytes 12 to 12 + count are in use."""
    h = load_u64(cell) * _CHECK_A + np.uint64(load_u8(cell + 9))
    position = 12
    end = 12 + count
    while position + 8 <= end:
        h = (h ^ load_u64(cell + position)) * _CHECK_B
        h ^= h >> _S32
        position += 8
    while position < end:
        h = (h ^ np.uint64(load_u8(cell + position))) * _CHECK_B
        position += 1
    return np.uint16((h ^ (h >> _S32) ^ (h >> _S48)) & np.uint64(0xFFFF))


@inline
def _is_sound(header, cell):  # type: ignore[no-untyped-def]
    return load_u16(cell + 10) == _check_of(cell, header[CELL_BYTES] - 12)


@inline
def _cell_at(header, slot):  # type: ignore[no-untyped-def]
    """The cell that a slot points to, as an index; one out of bounds (damaged memory) becomes the last."""
    index = np.int64(load_u32(header.ctypes.data + header[SLOTS_AT] + 4 * slot))
    return min(index, header[CELLS] - 1)


@inline
def _find(header, code, h):  # type: ignore[no-untyped-def]
    """The slot that holds ``code``, or -1."""
    slots = header[SLOTS]
    tags = header.ctypes.data + header[TAGS_AT]
    slot = _home(h, slots)
    tag = _tag(h)
    for _ in range(slots):
        seen = load_u8(tags + slot)
        if seen == 0:
            return np.int64(-1)
        if seen == tag and load_u64(_cell(header, _cell_at(header, slot))) == code:
            return slot
        slot += 1
        if slot == slots:
            slot = np.int64(0)
    return np.int64(-1)


@inline
def _sketch_pair(header, code):  # type: ignore[no-untyped-def]
    h = mix64(code ^ _SKETCH_SEED)
    base = header.ctypes.data + header[SKETCH_AT]
    half = np.uint64(header[SKETCH] >> 1)
    first = base + np.int64(((h >> _S32) * half) >> _S32)
    second = base + np.int64(half) + np.int64(((h & np.uint64(0xFFFFFFFF)) * half) >> _S32)
    return first, second


@inline
def _estimate(header, code):  # type: ignore[no-untyped-def]
    first, second = _sketch_pair(header, code)
    return np.int64(min(load_u8(first), load_u8(second)))


@inline
def _count_miss(header, code):  # type: ignore[no-untyped-def]
    first, second = _sketch_pair(header, code)
    a, b = load_u8(first), load_u8(second)
    low = min(a, b)
    if low < 255:  # conservative update: only the smaller counter grows
        if a == low:
            store_u8(first, np.uint8(a + 1))
        if b == low:
            store_u8(second, np.uint8(b + 1))


@kernel("int64(int64[::1], uint64[::1], boolean[::1], int64[::1])")
def probe(header, codes, valid, out):
    """Look codes up: out[i] is the address of the cell's value, ROW_ABSENT, or ROW_MISSING; every arrival is counted.

    Three passes over a small block keep several cache misses in flight at once.
    """
    slots = header[SLOTS]
    tags = header.ctypes.data + header[TAGS_AT]
    table = header.ctypes.data + header[SLOTS_AT]
    value_at = header[VALUE_AT]
    hashes = np.empty(_BLOCK, np.uint64)
    cells = np.empty(_BLOCK, np.int64)
    hits = 0
    for start in range(0, len(codes), _BLOCK):
        count = min(_BLOCK, len(codes) - start)
        for i in range(count):
            h = mix64(codes[start + i])
            hashes[i] = h
            slot = _home(h, slots)
            prefetch(tags + slot)
            prefetch(table + 4 * slot)
        for i in range(count):
            slot = _home(hashes[i], slots)
            tag = _tag(hashes[i])
            cells[i] = -1
            for _ in range(slots):
                seen = load_u8(tags + slot)
                if seen == 0:
                    break
                if seen == tag:
                    cells[i] = _cell(header, _cell_at(header, slot))
                    prefetch(cells[i])
                    prefetch(cells[i] + value_at + 24)
                    break
                slot += 1
                if slot == slots:
                    slot = np.int64(0)
        for i in range(count):
            code = codes[start + i]
            cell = cells[i]
            if not valid[start + i]:
                out[start + i] = ROW_ABSENT
                continue
            if cell >= 0 and load_u64(cell) != code:  # the tag was another key's: search on
                slot = _find(header, code, hashes[i])
                cell = np.int64(-1) if slot < 0 else _cell(header, _cell_at(header, slot))
            if cell < 0 or not _is_sound(header, cell):
                _count_miss(header, code)
                out[start + i] = ROW_MISSING
                continue
            hits += 1
            frequency = load_u8(cell + 8)
            if frequency < 255:
                store_u8(cell + 8, np.uint8(frequency + 1))
            out[start + i] = ROW_ABSENT if load_u8(cell + 9) == ABSENT else cell + value_at
    header[COUNTED] += len(codes)
    return hits


@inline
def _remove_slot(header, slot):  # type: ignore[no-untyped-def]
    """Backward-shift deletion: later entries of the same run move up, so no tombstones gather."""
    slots = header[SLOTS]
    tags = header.ctypes.data + header[TAGS_AT]
    table = header.ctypes.data + header[SLOTS_AT]
    hole = slot
    scan = slot
    for _ in range(slots):
        scan += 1
        if scan == slots:
            scan = np.int64(0)
        tag = load_u8(tags + scan)
        if tag == 0:
            break
        home = _home(mix64(load_u64(_cell(header, _cell_at(header, scan)))), slots)
        # The entry may move into the hole unless its home lies between hole and itself.
        if hole <= scan:
            stays = hole < home <= scan
        else:
            stays = home > hole or home <= scan
        if not stays:
            store_u8(tags + hole, tag)
            store_u32(table + 4 * hole, load_u32(table + 4 * scan))
            hole = scan
    store_u8(tags + hole, np.uint8(0))


@inline
def _next(header, cell):  # type: ignore[no-untyped-def]
    if header[SIMPLE]:
        return _NONE64
    index = np.int64(load_u32(cell + 16))
    return index if index < header[CELLS] else _NONE64


@inline
def _free_chain(header, index):  # type: ignore[no-untyped-def]
    freed = 0
    while index != _NONE64:
        cell = _cell(header, index)
        following = _next(header, cell)
        store_u8(cell + 9, np.uint8(FREE))
        store_u32(cell, np.uint32(header[FREE_HEAD]))
        header[FREE_HEAD] = index
        header[FREE_COUNT] += 1
        freed += 1
        index = following
    return freed


@inline
def _evict(header, index):  # type: ignore[no-untyped-def]
    cell = _cell(header, index)
    code = load_u64(cell)
    frequency = load_u8(cell + 8)
    first, second = _sketch_pair(header, code)
    if load_u8(first) < frequency:
        store_u8(first, frequency)
    if load_u8(second) < frequency:
        store_u8(second, frequency)
    _remove_slot(header, _find(header, code, mix64(code)))
    header[LIVE] -= 1
    return _free_chain(header, index)


@inline
def _chain_cells(header, index):  # type: ignore[no-untyped-def]
    count = 0
    while index != _NONE64:
        count += 1
        index = _next(header, _cell(header, index))
    return count


@inline
def _weakest(header):  # type: ignore[no-untyped-def]
    """The least frequent of a few entries at the clock hand, or -1."""
    best = np.int64(-1)
    best_frequency = np.int64(256)
    seen = 0
    hand = header[HAND]
    for _ in range(64):
        if hand >= header[TOP]:
            hand = np.int64(0)
        cell = _cell(header, hand)
        state = load_u8(cell + 9)
        if state in (HELD, ABSENT):
            frequency = np.int64(load_u8(cell + 8))
            if frequency < best_frequency:
                best, best_frequency = hand, frequency
            seen += 1
        hand += 1
        if seen == 8 or best_frequency == 0:
            break
    header[HAND] = hand
    return best


@inline
def _take_cell(header):  # type: ignore[no-untyped-def]
    index = header[FREE_HEAD]
    if index < header[CELLS]:
        header[FREE_HEAD] = np.int64(load_u32(_cell(header, index)))
        header[FREE_COUNT] -= 1
        return index
    index = header[TOP]
    header[TOP] += 1
    return index


@inline
def _insert(header, code, value, length, frequency, absent):  # type: ignore[no-untyped-def]
    """Store a value; the caller has made sure that enough cells are free and the code is not there."""
    h = mix64(code)
    head = _take_cell(header)
    cell = _cell(header, head)
    room = header[CELL_BYTES] - header[VALUE_AT]
    store_u64(cell, code)
    store_u8(cell + 8, np.uint8(min(frequency, 255)))
    store_u8(cell + 9, np.uint8(ABSENT if absent else HELD))
    if header[SIMPLE]:
        copy_bytes(cell + header[VALUE_AT], value, length)
        store_u16(cell + 10, _check_of(cell, header[CELL_BYTES] - 12))
    else:
        store_u32(cell + 12, np.uint32(length))
        done = 0
        while True:
            part = min(room, length - done)
            copy_bytes(cell + header[VALUE_AT], value + done, part)
            done += part
            if done >= length:
                store_u32(cell + 16, np.uint32(NONE))
                store_u16(cell + 10, _check_of(cell, header[CELL_BYTES] - 12))
                break
            following = _take_cell(header)
            store_u32(cell + 16, np.uint32(following))
            store_u16(cell + 10, _check_of(cell, header[CELL_BYTES] - 12))
            cell = _cell(header, following)
            store_u64(cell, code)
            store_u8(cell + 9, np.uint8(MORE))
            store_u32(cell + 12, np.uint32(0))
    slots = header[SLOTS]
    tags = header.ctypes.data + header[TAGS_AT]
    slot = _home(h, slots)
    while load_u8(tags + slot) != 0:
        slot += 1
        if slot == slots:
            slot = np.int64(0)
    store_u8(tags + slot, _tag(h))
    store_u32(header.ctypes.data + header[SLOTS_AT] + 4 * slot, np.uint32(head))
    header[LIVE] += 1


@kernel("int64(int64[::1], uint64[::1], int64[::1], int64[::1], int64, int64)")
def admit(header, codes, values, lengths, least_frequency, longest):
    """Offer values: taken when there is room, or when the key is more frequent than what must go for it.

    A length of 0 records that the key is absent from the master. ``least_frequency`` is the corrected cache
    inequality expressed in counts; values over ``longest`` bytes are never taken.
    """
    room = header[CELL_BYTES] - header[VALUE_AT]
    taken = 0
    for i in range(len(codes)):
        length = lengths[i]
        if length > longest or length < 0:
            continue
        code = codes[i]
        frequency = _estimate(header, code)
        cells = np.int64(1) if header[SIMPLE] else max(np.int64(1), (length + room - 1) // room)
        if frequency < least_frequency * cells:
            header[REJECTIONS] += 1
            continue
        if _find(header, code, mix64(code)) >= 0:
            continue
        refused = False
        while header[FREE_COUNT] + header[LIMIT] - header[TOP] < cells:
            victim = _weakest(header)
            if victim < 0 or np.int64(load_u8(_cell(header, victim) + 8)) * cells >= frequency * _chain_cells(header, victim):
                refused = True
                break
            _evict(header, victim)
            header[EVICTIONS] += 1
        if refused:
            header[REJECTIONS] += 1
            continue
        _insert(header, code, values[i], length, frequency, length == 0)
        taken += 1
    header[ADMISSIONS] += taken
    return taken


@kernel("int64(int64[::1], uint64[::1])")
def discard(header, codes):
    """Drop these keys: they changed in the master."""
    dropped = 0
    for i in range(len(codes)):
        slot = _find(header, codes[i], mix64(codes[i]))
        if slot >= 0:
            _evict(header, _cell_at(header, slot))
            dropped += 1
    return dropped


@kernel("void(int64[::1])")
def halve(header):
    """Age every count, so that a hotspot that moved on is forgotten."""
    for index in range(header[TOP]):
        cell = _cell(header, index)
        store_u8(cell + 8, np.uint8(load_u8(cell + 8) >> np.uint8(1)))
    base = header.ctypes.data + header[SKETCH_AT]
    for i in range(header[SKETCH]):
        store_u8(base + i, np.uint8(load_u8(base + i) >> np.uint8(1)))
    header[COUNTED] >>= 1


@kernel("void(int64[::1], int64)")
def limit_cells(header, limit):
    """Use at most ``limit`` cells from now on: entries that reach beyond are dropped."""
    for index in range(limit, header[TOP]):
        cell = _cell(header, index)
        if load_u8(cell + 9) == FREE:
            continue
        code = load_u64(cell)
        slot = _find(header, code, mix64(code))
        _evict(header, _cell_at(header, slot))
    header[TOP] = min(header[TOP], limit)
    header[LIMIT] = limit
    header[FREE_HEAD] = _NONE64
    header[FREE_COUNT] = 0
    for index in range(header[TOP]):
        cell = _cell(header, index)
        if load_u8(cell + 9) == FREE:
            store_u32(cell, np.uint32(header[FREE_HEAD]))
            header[FREE_HEAD] = index
            header[FREE_COUNT] += 1


@kernel("int64(int64[::1])")
def weakest_frequency_sum(header):
    """Sum of the frequencies of the weakest of 32 samples: what the last bytes of the cache are worth."""
    total = 0
    for _ in range(32):
        victim = _weakest(header)
        if victim < 0:
            return 0
        total += np.int64(load_u8(_cell(header, victim) + 8))
    return total


@kernel("int64(int64[::1], int64[::1], int64, int64, int64[::1], int64[::1])")
def measure_values(header, values, head, last_variable_slot, counts, bytes_needed):
    """For found values (addresses from ``probe``): rows in each, and bytes to copy out where the value spans cells."""
    room = header[CELL_BYTES] - header[VALUE_AT]
    total = 0
    for i in range(len(values)):
        value = values[i]
        cell = value - header[VALUE_AT]
        length = np.int64(load_u32(cell + 12))
        bytes_needed[i] = length if length > room else 0
        if length <= room:
            count = 0
            position = 0
            while position < length:
                position += row_length(value + position, head, last_variable_slot)
                count += 1
            counts[i] = count
            total += count
        else:
            counts[i] = -1  # counted once it has been copied out
    return total


@kernel("int64(int64[::1], int64[::1], int64[::1])")
def copy_values(header, values, targets):
    """Copy values that span several cells to one place each; targets[i] = 0 leaves a value where it is.

    Returns the number of damaged values; their target is set to -1.
    """
    room = header[CELL_BYTES] - header[VALUE_AT]
    damaged = 0
    for i in range(len(values)):
        if targets[i] == 0:
            continue
        cell = values[i] - header[VALUE_AT]
        length = np.int64(load_u32(cell + 12))
        done = 0
        while done < length:
            part = min(room, length - done)
            copy_bytes(targets[i] + done, cell + header[VALUE_AT], part)
            done += part
            if done == length:
                break
            following = _next(header, cell)
            code = load_u64(cell)
            if following != _NONE64:
                cell = _cell(header, following)
            if following == _NONE64 or load_u64(cell) != code or load_u8(cell + 9) != MORE or not _is_sound(header, cell):
                targets[i] = -1
                damaged += 1
                break
    return damaged


@kernel("void(int64[::1], int64[::1], int64, int64, int64[::1])")
def count_in_values(values, lengths, head, last_variable_slot, counts):
    """Rows in values that lie in one piece."""
    for i in range(len(values)):
        if lengths[i] <= 0:
            continue
        count = 0
        position = 0
        while position < lengths[i]:
            position += row_length(values[i] + position, head, last_variable_slot)
            count += 1
        counts[i] = count


@kernel("void(int64[::1], int64[::1], int64, int64, int64[::1], int64[::1])")
def spread_values(values, counts, head, last_variable_slot, out_index, out_rows):
    """One (value index, row address) pair a row."""
    n = 0
    for i in range(len(values)):
        position = 0
        for _ in range(counts[i]):
            out_index[n] = i
            out_rows[n] = values[i] + position
            position += row_length(values[i] + position, head, last_variable_slot)
            n += 1


@kernel("void(int64[::1], int64[::1])")
def check_structure(header, found):
    """Walk everything: found = [live entries, cells in chains, free cells, entries that _find does not return]."""
    live, held, free, lost = 0, 0, 0, 0
    for index in range(header[TOP]):
        cell = _cell(header, index)
        state = load_u8(cell + 9)
        if state == FREE:
            free += 1
        else:
            held += 1
        if state in (HELD, ABSENT):
            live += 1
            code = load_u64(cell)
            slot = _find(header, code, mix64(code))
            if slot < 0 or _cell_at(header, slot) != index:
                lost += 1
    found[0], found[1], found[2], found[3] = live, held, free, lost
