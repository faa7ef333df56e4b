"""A multimap by code on compact arrays, with a queue of its keys: the bones of H_S and of H_R.

What a slot holds is the business of the subclass; see `semistream.kernels.multimap` for the structure.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.errors import InvariantError
from semistream.keys import Codes

Slots = npt.NDArray[np.int32]
Entries = npt.NDArray[np.int64]


class Multimap:
    """At most ``capacity`` slots under any number of keys."""

    def __init__(self, capacity: int) -> None:
        from semistream.kernels import multimap

        self._kernels = multimap
        self.capacity = capacity
        self._state = np.empty(4, np.int64)
        self._buckets = np.empty(1 << max(3, int(capacity).bit_length()), np.int32)
        self._codes = np.empty(capacity, np.uint64)
        self._keys = np.empty((capacity, multimap.KEY_FIELDS), np.int32)
        self._slots = np.empty((capacity, multimap.SLOT_FIELDS), np.int32)
        self._free_slots, self._free_keys = np.empty(capacity, np.int32), np.empty(capacity, np.int32)
        Multimap.clear(self)

    @property
    def _parts(self) -> tuple[Any, ...]:
        return self._state, self._buckets, self._codes, self._keys, self._slots, self._free_slots, self._free_keys

    @property
    def free(self) -> int:
        """Slots that are not in use."""
        return int(self._state[self._kernels.FREE_SLOTS])

    @property
    def used(self) -> int:
        """Slots in use."""
        return self.capacity - self.free

    @property
    def keys(self) -> int:
        """Distinct keys."""
        return self.capacity - int(self._state[self._kernels.FREE_KEYS])

    def insert(self, codes: Codes) -> Slots:
        """Take a slot for each code; there must be room."""
        slots = np.empty(len(codes), np.int32)
        self._kernels.insert(*self._parts, np.ascontiguousarray(codes), slots)
        return slots

    def lookup(self, codes: Codes) -> Entries:
        """The entry of each code, or -1."""
        found = np.empty(len(codes), np.int64)
        self._kernels.lookup(self._buckets, self._codes, self._keys, np.ascontiguousarray(codes), found)
        return found

    def counts(self, entries: Entries) -> npt.NDArray[np.int64]:
        """How many slots each of these keys has."""
        return self._keys[entries, self._kernels.COUNT].astype(np.int64)

    def slots_of(self, entries: Entries) -> Slots:
        """The slots of these keys, key by key, the oldest first."""
        slots = np.empty(int(self.counts(entries).sum()), np.int32)
        self._kernels.list_slots(self._keys, self._slots, entries, slots)
        return slots

    def entries_of(self, slots: Slots) -> Entries:
        """The key entry of each slot."""
        return self._slots[slots, self._kernels.ENTRY].astype(np.int64)

    def codes_of(self, slots: Slots) -> Codes:
        """The code of each slot."""
        return self._codes[self.entries_of(slots)]

    def live(self) -> Entries:
        """All entries in use."""
        return np.flatnonzero(self._keys[:, self._kernels.COUNT] > 0)

    def codes_held(self) -> Codes:
        """The codes of all keys."""
        return self._codes[self.live()]

    def remove(self, entries: Entries) -> None:
        """Remove keys with all their slots."""
        self._kernels.remove_keys(*self._parts, np.ascontiguousarray(entries))

    def touch(self, entries: Entries) -> None:
        """Make these keys the youngest, the last of them most of all."""
        self._kernels.touch(self._state, self._keys, np.ascontiguousarray(entries))

    def oldest_keys(self, slots: int) -> Entries:
        """The oldest keys that have this many slots together."""
        found = np.empty(min(self.keys, max(0, slots)), np.int64)
        return found[: self._kernels.oldest(self._state, self._keys, slots, found)]

    def clear(self) -> None:
        """Remove everything."""
        self._state[:] = self.capacity, self.capacity, -1, -1
        self._buckets[:] = -1
        self._keys[:] = 0
        self._free_slots[:] = np.arange(self.capacity, dtype=np.int32)[::-1]
        self._free_keys[:] = self._free_slots

    def check(self, what: str) -> None:
        """Every slot is reachable by its key, every key is in the queue once, and free places add up."""
        found = np.zeros(4, np.int64)
        self._kernels.census(self._state, self._buckets, self._keys, self._slots, found)
        keys, used, queued, wrong = found.tolist()
        if wrong or keys != self.keys or queued != keys or used != self.used:
            raise InvariantError(
                f"{what}: {self.used} slots of {self.keys} keys are counted, found are {used} of {keys}, {queued} in "
                f"the queue, {wrong} linked wrongly"
            )
