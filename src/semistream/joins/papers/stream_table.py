"""H_S and Q of the papers: waiting stream tuples by key, the keys in order of arrival, every byte counted.

Columns of fixed width lie in arrays by slot. Text and nested columns stay Arrow, in blocks that are put together when
half of their rows have left; so they are charged three times, for the block, its garbage and the new one.
"""

import time
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream import kernels
from semistream.errors import InvariantError
from semistream.keys import Codes
from semistream.rows import raw_values

Slots = npt.NDArray[np.int32]
Entries = npt.NDArray[np.int64]
_TEXT_BYTES = 24  # a guess, before the first row is seen
_NODE_BYTES = 65  # code, six links of the key, two of the tuple, free lists, flag, birth, time, up to two buckets


class Multimap:
    """At most ``capacity`` slots under any number of keys, in compact arrays; H_R stands on it too."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._state = np.empty(4, np.int64)
        self._buckets = np.empty(1 << max(3, int(capacity).bit_length()), np.int32)
        self._codes = np.empty(capacity, np.uint64)
        self._keys = np.empty((capacity, kernels.multimap.KEY_FIELDS), np.int32)
        self._slots = np.empty((capacity, kernels.multimap.SLOT_FIELDS), np.int32)
        self._free_slots, self._free_keys = np.empty(capacity, np.int32), np.empty(capacity, np.int32)
        Multimap.clear(self)

    @property
    def _parts(self) -> tuple[Any, ...]:
        return self._state, self._buckets, self._codes, self._keys, self._slots, self._free_slots, self._free_keys

    @property
    def free(self) -> int:
        return int(self._state[kernels.multimap.FREE_SLOTS])

    @property
    def used(self) -> int:
        return self.capacity - self.free

    @property
    def keys(self) -> int:
        return self.capacity - int(self._state[kernels.multimap.FREE_KEYS])

    def insert(self, codes: Codes) -> Slots:
        """Take a slot for each code; there must be room."""
        slots = np.empty(len(codes), np.int32)
        kernels.multimap.insert(*self._parts, np.ascontiguousarray(codes), slots)
        return slots

    def lookup(self, codes: Codes) -> Entries:
        """The entry of each code, or -1."""
        found = np.empty(len(codes), np.int64)
        kernels.multimap.lookup(self._buckets, self._codes, self._keys, np.ascontiguousarray(codes), found)
        return found

    def counts(self, entries: Entries) -> npt.NDArray[np.int64]:
        return self._keys[entries, kernels.multimap.COUNT].astype(np.int64)

    def slots_of(self, entries: Entries) -> Slots:
        """The slots of these keys, key by key, the oldest first."""
        slots = np.empty(int(self.counts(entries).sum()), np.int32)
        kernels.multimap.list_slots(self._keys, self._slots, entries, slots)
        return slots

    def entries_of(self, slots: Slots) -> Entries:
        return self._slots[slots, kernels.multimap.ENTRY].astype(np.int64)

    def codes_of(self, entries: Entries) -> Codes:
        return self._codes[entries]

    def live(self) -> Entries:
        return np.flatnonzero(self._keys[:, kernels.multimap.COUNT] > 0)

    def codes_held(self) -> Codes:
        return self.codes_of(self.live())

    def remove(self, entries: Entries) -> None:
        """Remove keys with all their slots."""
        kernels.multimap.remove_keys(*self._parts, np.ascontiguousarray(entries))

    def touch(self, entries: Entries) -> None:
        """Make these keys the youngest, the last of them most of all."""
        kernels.multimap.touch(self._state, self._keys, np.ascontiguousarray(entries))

    def oldest_keys(self, slots: int) -> Entries:
        """The oldest keys that have this many slots together."""
        found = np.empty(min(self.keys, max(0, slots)), np.int64)
        return found[: kernels.multimap.oldest(self._state, self._keys, slots, found)]

    def clear(self) -> None:
        self._state[:] = self.capacity, self.capacity, -1, -1
        self._buckets[:] = -1
        self._keys[:] = 0
        self._free_slots[:] = np.arange(self.capacity, dtype=np.int32)[::-1]
        self._free_keys[:] = self._free_slots

    def check(self, what: str) -> None:
        """Every slot is reachable by its key, every key is in the queue once, and free places add up."""
        found = np.zeros(4, np.int64)
        kernels.multimap.census(self._state, self._buckets, self._keys, self._slots, found)
        keys, used, queued, wrong = found.tolist()
        if wrong or keys != self.keys or queued != keys or used != self.used:
            raise InvariantError(
                f"{what}: {self.used} slots of {self.keys} keys are counted, found are {used} of {keys}, {queued} in "
                f"the queue, {wrong} linked wrongly"
            )


def _width(kind: pa.DataType) -> int:
    """Bytes of a value that an array can hold, or 0."""
    simple = pa.types.is_primitive(kind) or pa.types.is_decimal128(kind)
    return max(1, kind.bit_width // 8) if simple else 0  # truth values take a byte


def _planned_text(schema: pa.Schema) -> int:
    """Bytes for a tuple's columns without a fixed width."""
    return sum(_TEXT_BYTES for field in schema if not _width(field.type))


def slot_bytes(schema: pa.Schema) -> int:
    """What a waiting tuple takes, with its key and its links."""
    fixed = sum(_width(field.type) + 1 for field in schema if _width(field.type))
    other = _planned_text(schema)
    return _NODE_BYTES + fixed + 3 * other + (8 if other else 0)


class StreamTable(Multimap):
    """Stream tuples by key, with a queue of the keys."""

    def __init__(self, schema: pa.Schema, capacity: int) -> None:
        super().__init__(capacity)
        self.schema = schema
        self._made = time.monotonic()
        self.matched = np.zeros(capacity, np.bool_)  # has this tuple met a row yet?
        self.born = np.zeros(capacity, np.int32)  # the iteration in which it came
        self.came = np.zeros(capacity, np.float32)  # and the second, as `clock` says
        self._fixed = {at: _Column(field, capacity) for at, field in enumerate(schema) if _width(field.type)}
        self._rest = _Blocks([at for at in range(len(schema)) if at not in self._fixed], capacity)
        self.text_limit = _planned_text(schema) * capacity

    tuples = Multimap.used  # that wait

    @property
    def text_bytes(self) -> int:
        """What the columns without a fixed width take now, garbage left out."""
        return self._rest.bytes

    def text_of(self, batch: pa.RecordBatch) -> int:
        """What these columns of a batch would take."""
        return int(batch.select(self._rest.positions).nbytes)

    def clock(self) -> float:
        return time.monotonic() - self._made

    def clear(self) -> None:
        super().clear()
        self._rest.clear()

    def add(self, batch: pa.RecordBatch, codes: Codes, iteration: int = 0) -> Slots:
        slots = self.insert(codes)
        self.matched[slots] = False
        self.born[slots] = iteration
        self.came[slots] = self.clock()
        for position, column in self._fixed.items():
            column.put(slots, batch.column(position))
        self._rest.put(slots, batch, self)
        return slots

    def take(self, slots: Slots) -> pa.RecordBatch:
        others = iter(self._rest.take(slots).columns if len(self._fixed) < len(self.schema) else [])
        columns = [self._fixed[at].take(slots) if at in self._fixed else next(others) for at in range(len(self.schema))]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def has_value(self, slots: Slots, column: str) -> npt.NDArray[np.bool_]:
        position = self.schema.get_field_index(column)
        if position in self._fixed:
            return self._fixed[position].valid[slots]
        return np.asarray(self.take(slots).column(position).is_valid())

    def remove(self, entries: Entries) -> None:
        self._rest.forget(int(self.counts(entries).sum()))
        super().remove(entries)

    def expire(self, slots: Slots) -> None:
        """Remove tuples by slot, in order of their arrival."""
        self._rest.forget(len(slots))
        if kernels.multimap.expire(*self._parts, slots):
            raise InvariantError("stream table: a tuple expired before an older one of its key")

    def waiting_slots(self) -> Slots:
        used = np.ones(self.capacity, np.bool_)
        used[self._free_slots[: self.free]] = False
        return np.flatnonzero(used).astype(np.int32)


class _Column:
    """Values of a fixed width, by slot."""

    def __init__(self, field: pa.Field, capacity: int) -> None:
        self.kind = field.type
        width = _width(field.type)
        self._values = np.empty(capacity, f"V{width}" if width == 16 else f"u{width}")
        self.valid = np.ones(capacity, np.bool_)

    def put(self, slots: Slots, column: pa.Array) -> None:
        if pa.types.is_boolean(self.kind):
            column = column.cast(pa.uint8())
        self.valid[slots] = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else True
        self._values[slots] = raw_values(column, self._values.dtype.str)

    def take(self, slots: Slots) -> pa.Array:
        values, valid = self._values[slots], self.valid[slots]
        bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        if pa.types.is_boolean(self.kind):
            values = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(self.kind, len(slots), [bits, pa.py_buffer(values)])


class _Blocks:
    """Columns of other types, as Arrow blocks with garbage that is removed now and then."""

    def __init__(self, positions: list[int], capacity: int) -> None:
        self.positions = positions  # names may come twice
        self._place = np.zeros(capacity if positions else 0, np.int64)
        self._blocks: list[pa.RecordBatch] = []
        self._rows = self._live = 0

    @property
    def bytes(self) -> int:
        return int(sum(block.nbytes for block in self._blocks) * self._live / max(1, self._rows))

    def put(self, slots: Slots, batch: pa.RecordBatch, table: StreamTable) -> None:
        if not self.positions:
            return
        if self._rows > 2 * self._live + 16:
            live = np.setdiff1d(table.waiting_slots(), slots)
            self._blocks, self._rows = [self.take(live)], len(live)
            self._place[live] = np.arange(len(live))
        self._place[slots] = np.arange(self._rows, self._rows + len(slots))
        own = pa.array(np.arange(len(slots)))  # a copy: the batch may be a slice of a much larger one
        self._blocks.append(batch.select(self.positions).take(own))
        self._rows += len(slots)
        self._live += len(slots)

    def take(self, slots: Slots) -> pa.RecordBatch:
        if len(self._blocks) > 1:
            self._blocks = [pa.concat_batches(self._blocks)]
        return self._blocks[0].take(pa.array(self._place[slots]))

    def forget(self, count: int) -> None:
        self._live -= count
        if self._live == 0:
            self.clear()

    def clear(self) -> None:
        self._blocks, self._rows, self._live = [], 0, 0
