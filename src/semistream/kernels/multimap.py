"""The multimap H_S of waiting stream tuples, with the queue Q of its keys, on compact arrays.

A key is one entry ``[code | first slot | last slot | tuples | next in bucket | queue before | queue after]``, a tuple
one slot ``[next slot of the same key | entry]``; both come from stacks of free places. Buckets chain entries, so a
key with a million tuples costs other keys nothing. The queue links the entries in order of arrival: one node per key.
The tuples of a key are chained in order of arrival too, so the oldest of a key can leave alone (MESHJOIN) as well as
all of them (HYBRIDJOIN).
"""

import numpy as np

from semistream.kernels.hashing import mix64
from semistream.kernels.jit import inline, kernel

# Fields of the state.
FREE_SLOTS, FREE_KEYS, QUEUE_HEAD, QUEUE_TAIL = 0, 1, 2, 3
# Columns of ``keys`` (int32): places of a key entry.
FIRST, LAST, COUNT, NEXT, BEFORE, AFTER = 0, 1, 2, 3, 4, 5
KEY_FIELDS = 6
# Columns of ``slots`` (int32): places of a tuple.
FOLLOWING, ENTRY = 0, 1
SLOT_FIELDS = 2
NONE = -1
# Types of the parts, in the order of the arguments: state, buckets, codes, keys, slots, free_slots, free_keys.
_PARTS = "int64[::1], int32[::1], uint64[::1], int32[:, ::1], int32[:, ::1], int32[::1], int32[::1]"


@inline
def _bucket(buckets, code):
    return np.int64(mix64(code) & np.uint64(len(buckets) - 1))


@inline
def _find(buckets, codes, keys, code):
    entry = buckets[_bucket(buckets, code)]
    while entry != NONE and codes[entry] != code:
        entry = keys[entry, NEXT]
    return entry


@inline
def _drop_key(state, buckets, codes, keys, free_keys, entry):
    """Take an entry out of its bucket and out of the queue."""
    place = _bucket(buckets, codes[entry])
    if buckets[place] == entry:
        buckets[place] = keys[entry, NEXT]
    else:
        other = buckets[place]
        while keys[other, NEXT] != entry:
            other = keys[other, NEXT]
        keys[other, NEXT] = keys[entry, NEXT]
    before, after = keys[entry, BEFORE], keys[entry, AFTER]
    if before == NONE:
        state[QUEUE_HEAD] = after
    else:
        keys[before, AFTER] = after
    if after == NONE:
        state[QUEUE_TAIL] = before
    else:
        keys[after, BEFORE] = before
    keys[entry, COUNT] = 0
    free_keys[state[FREE_KEYS]] = entry
    state[FREE_KEYS] += 1


@kernel(f"void({_PARTS}, uint64[::1], int32[::1])")
def insert(state, buckets, codes, keys, slots, free_slots, free_keys, arriving, out):
    """Add tuples, which must fit; out[i] is the slot of tuple i."""
    for i in range(len(arriving)):
        code = arriving[i]
        state[FREE_SLOTS] -= 1
        slot = free_slots[state[FREE_SLOTS]]
        entry = _find(buckets, codes, keys, code)
        if entry == NONE:
            state[FREE_KEYS] -= 1
            entry = free_keys[state[FREE_KEYS]]
            place = _bucket(buckets, code)
            codes[entry] = code
            keys[entry, FIRST] = slot
            keys[entry, COUNT] = 0
            keys[entry, NEXT] = buckets[place]
            buckets[place] = entry
            tail = np.int32(state[QUEUE_TAIL])
            keys[entry, BEFORE] = tail
            keys[entry, AFTER] = NONE
            if tail == NONE:
                state[QUEUE_HEAD] = entry
            else:
                keys[tail, AFTER] = entry
            state[QUEUE_TAIL] = entry
        else:
            slots[keys[entry, LAST], FOLLOWING] = slot
        slots[slot, FOLLOWING] = NONE
        slots[slot, ENTRY] = entry
        keys[entry, LAST] = slot
        keys[entry, COUNT] += 1
        out[i] = slot


@kernel("void(int32[::1], uint64[::1], int32[:, ::1], uint64[::1], int64[::1])")
def lookup(buckets, codes, keys, wanted, out):
    """The entry of each code, or NONE."""
    for i in range(len(wanted)):
        out[i] = _find(buckets, codes, keys, wanted[i])


@kernel("void(int32[:, ::1], int32[:, ::1], int64[::1], int32[::1])")
def list_slots(keys, slots, entries, out):
    """The slots of some entries, entry by entry, oldest first."""
    n = 0
    for i in range(len(entries)):
        slot = keys[entries[i], FIRST]
        while slot != NONE:
            out[n] = slot
            n += 1
            slot = slots[slot, FOLLOWING]


@kernel(f"void({_PARTS}, int64[::1])")
def remove_keys(state, buckets, codes, keys, slots, free_slots, free_keys, entries):
    for i in range(len(entries)):
        slot = keys[entries[i], FIRST]
        while slot != NONE:
            free_slots[state[FREE_SLOTS]] = slot
            state[FREE_SLOTS] += 1
            slot = slots[slot, FOLLOWING]
        _drop_key(state, buckets, codes, keys, free_keys, entries[i])


@kernel(f"int64({_PARTS}, int32[::1])")
def expire(state, buckets, codes, keys, slots, free_slots, free_keys, old):
    """Remove tuples by their slots, which must come in order of arrival; returns how many were not the oldest."""
    wrong = 0
    for i in range(len(old)):
        slot = old[i]
        entry = slots[slot, ENTRY]
        if keys[entry, FIRST] != slot:
            wrong += 1
            continue
        keys[entry, FIRST] = slots[slot, FOLLOWING]
        keys[entry, COUNT] -= 1
        free_slots[state[FREE_SLOTS]] = slot
        state[FREE_SLOTS] += 1
        if keys[entry, COUNT] == 0:
            _drop_key(state, buckets, codes, keys, free_keys, entry)
    return wrong


@kernel("void(int64[::1], int32[::1], int32[:, ::1], int32[:, ::1], int64[::1])")
def census(state, buckets, keys, slots, found):
    """Walk everything: found = [keys in buckets, tuples of these, keys in the queue, keys linked wrongly]."""
    found[:] = 0
    for place in range(len(buckets)):
        entry = buckets[place]
        while entry != NONE:
            found[0] += 1
            count = 0
            slot = keys[entry, FIRST]
            while slot != NONE:
                count += 1
                if slots[slot, ENTRY] != entry:
                    found[3] += 1
                slot = slots[slot, FOLLOWING]
            found[1] += count
            if count != keys[entry, COUNT] or count == 0:
                found[3] += 1
            entry = keys[entry, NEXT]
    entry = np.int32(state[QUEUE_HEAD])
    before = np.int32(NONE)
    while entry != NONE:
        found[2] += 1
        if keys[entry, BEFORE] != before:
            found[3] += 1
        before = entry
        entry = keys[entry, AFTER]
    if before != state[QUEUE_TAIL]:
        found[3] += 1


@kernel("void(int64[::1], int32[:, ::1], int64[::1])")
def touch(state, keys, entries):
    """Move keys to the end of the queue, as the youngest."""
    for i in range(len(entries)):
        entry = np.int32(entries[i])
        before, after = keys[entry, BEFORE], keys[entry, AFTER]
        if after == NONE:
            continue
        keys[after, BEFORE] = before
        if before == NONE:
            state[QUEUE_HEAD] = after
        else:
            keys[before, AFTER] = after
        tail = state[QUEUE_TAIL]
        keys[tail, AFTER] = entry
        keys[entry, BEFORE] = np.int32(tail)
        keys[entry, AFTER] = np.int32(NONE)
        state[QUEUE_TAIL] = entry


@kernel("int64(int64[::1], int32[:, ::1], int64, int64[::1])")
def oldest(state, keys, slots, out):
    """List the oldest keys that have this many slots together; returns how many they are."""
    n = 0
    entry = state[QUEUE_HEAD]
    while entry != NONE and slots > 0 and n < len(out):
        out[n] = entry
        n += 1
        slots -= keys[entry, COUNT]
        entry = np.int64(keys[entry, AFTER])
    return n
