"""H_S and Q of the papers: waiting stream tuples by key, the keys in order of arrival, every byte counted.

Keys and links are compact arrays (see `semistream.kernels.multimap`). Columns of fixed width lie in arrays by slot,
so a tuple takes its own bytes and no more. Text and nested columns stay Arrow, in blocks that are put together when
half of their rows have left; they are charged three times, for the block, its garbage and the new one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.errors import InvariantError
from semistream.keys import Codes

Slots = npt.NDArray[np.int32]
Entries = npt.NDArray[np.int64]
TEXT_BYTES = 24  # a guess, before the first row is seen
_NODE_BYTES = 56  # code, six links of the key, two of the tuple, free lists, flag, birth, buckets


def _width(kind: pa.DataType) -> int:
    """Bytes of a value that an array can hold, or 0."""
    types = pa.types
    if types.is_boolean(kind):
        return 1
    simple = (
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_date(kind)
        or types.is_timestamp(kind)
        or types.is_time(kind)
        or types.is_duration(kind)
        or types.is_decimal128(kind)
    )
    return kind.bit_width // 8 if simple else 0


def text_bytes(schema: pa.Schema) -> int:
    """What is planned for a tuple's columns without a fixed width."""
    return sum(TEXT_BYTES for field in schema if not _width(field.type))


def slot_bytes(schema: pa.Schema) -> int:
    """What a waiting tuple takes, with its key and its links."""
    fixed = sum(_width(field.type) + 1 for field in schema if _width(field.type))
    other = text_bytes(schema)
    return _NODE_BYTES + fixed + 3 * other + (8 if other else 0)


class StreamTable:
    """A multimap of at most ``capacity`` stream tuples, with a queue of its keys."""

    def __init__(self, schema: pa.Schema, capacity: int) -> None:
        from semistream.kernels import multimap

        self._kernels = multimap
        self.schema = schema
        self.capacity = capacity
        buckets = 1 << max(3, int(capacity).bit_length())
        self._state = np.array([capacity, capacity, -1, -1], np.int64)
        self._buckets = np.full(buckets, -1, np.int32)
        self._codes = np.empty(capacity, np.uint64)
        self._keys = np.zeros((capacity, multimap.KEY_FIELDS), np.int32)
        self._slots = np.empty((capacity, multimap.SLOT_FIELDS), np.int32)
        self._free_slots = np.arange(capacity, dtype=np.int32)[::-1].copy()
        self._free_keys = self._free_slots.copy()
        self.matched = np.zeros(capacity, np.bool_)  # for those who need it: has this tuple met a row yet?
        self.born = np.zeros(capacity, np.int32)  # the iteration in which it came
        self._fixed = {
            position: _Column(field, capacity) for position, field in enumerate(schema) if _width(field.type)
        }
        rest = [position for position, field in enumerate(schema) if not _width(field.type)]
        self._rest = _Blocks(pa.schema([schema.field(p) for p in rest]), capacity) if rest else None

    # -- size --------------------------------------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """Tuples that still fit."""
        return int(self._state[self._kernels.FREE_SLOTS])

    @property
    def tuples(self) -> int:
        """Tuples that wait."""
        return self.capacity - self.free

    @property
    def keys(self) -> int:
        """Distinct keys that wait."""
        return self.capacity - int(self._state[self._kernels.FREE_KEYS])

    @property
    def text_bytes(self) -> int:
        """What the columns without a fixed width take now."""
        return self._rest.bytes if self._rest is not None else 0

    # -- in and out --------------------------------------------------------------------------------------------------

    def add(self, batch: pa.RecordBatch, codes: Codes, iteration: int = 0) -> Slots:
        """Let tuples wait; there must be room. Returns their slots."""
        slots = np.empty(batch.num_rows, np.int32)
        self._kernels.insert(
            self._state,
            self._buckets,
            self._codes,
            self._keys,
            self._slots,
            self._free_slots,
            self._free_keys,
            np.ascontiguousarray(codes),
            slots,
        )
        self.matched[slots] = False
        self.born[slots] = iteration
        for position, column in self._fixed.items():
            column.put(slots, batch.column(position))
        if self._rest is not None:
            self._rest.put(slots, batch, self)
        return slots

    def take(self, slots: Slots) -> pa.RecordBatch:
        """The tuples in these slots."""
        rest = self._rest.take(slots) if self._rest is not None else []
        others = iter(rest)
        columns = [
            self._fixed[position].take(slots) if position in self._fixed else next(others)
            for position in range(len(self.schema))
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def oldest(self) -> int | None:
        """The code of the key that waits longest."""
        head = int(self._state[self._kernels.QUEUE_HEAD])
        return int(self._codes[head]) if head >= 0 else None

    def lookup(self, codes: Codes) -> Entries:
        """The entry of each code, or -1."""
        found = np.empty(len(codes), np.int64)
        self._kernels.lookup(self._buckets, self._codes, self._keys, np.ascontiguousarray(codes), found)
        return found

    def counts(self, entries: Entries) -> npt.NDArray[np.int64]:
        """How many tuples wait for each of these keys."""
        return self._keys[entries, self._kernels.COUNT].astype(np.int64)

    def slots_of(self, entries: Entries) -> Slots:
        """The slots of these keys, key by key, the oldest first."""
        slots = np.empty(int(self.counts(entries).sum()), np.int32)
        self._kernels.list_slots(self._keys, self._slots, entries, slots)
        return slots

    def entries_of(self, slots: Slots) -> Entries:
        """The key entry of each slot."""
        return self._slots[slots, self._kernels.ENTRY].astype(np.int64)

    def remove(self, entries: Entries) -> None:
        """Remove keys with all their tuples."""
        if self._rest is not None:
            self._rest.forget(self.slots_of(entries))
        self._kernels.remove_keys(*self._parts, entries)

    def expire(self, slots: Slots) -> None:
        """Remove tuples by slot, in order of their arrival."""
        if self._rest is not None:
            self._rest.forget(slots)
        if self._kernels.expire(*self._parts, slots):
            raise InvariantError("stream table: a tuple expired before an older one of its key")

    @property
    def _parts(self) -> tuple[Any, ...]:
        return (
            self._state,
            self._buckets,
            self._codes,
            self._keys,
            self._slots,
            self._free_slots,
            self._free_keys,
        )

    def live(self) -> Slots:
        """All slots in use."""
        used = np.ones(self.capacity, np.bool_)
        used[self._free_slots[: self.free]] = False
        return np.flatnonzero(used).astype(np.int32)

    def check(self, what: str) -> None:
        """Every tuple is reachable by its key, every key is in the queue once, and free places add up."""
        found = np.zeros(4, np.int64)
        self._kernels.census(self._state, self._buckets, self._keys, self._slots, found)
        keys, tuples, queued, wrong = found.tolist()
        if wrong or keys != self.keys or queued != keys or tuples != self.tuples:
            raise InvariantError(
                f"{what}: the stream table counts {self.tuples} tuples of {self.keys} keys, found are {tuples} of "
                f"{keys}, {queued} in the queue, {wrong} linked wrongly"
            )


class _Column:
    """Values of a fixed width, by slot."""

    def __init__(self, field: pa.Field, capacity: int) -> None:
        self.kind = field.type
        width = _width(field.type)
        self._width = width
        self._values = np.empty(capacity, f"V{width}" if width == 16 else f"u{width}")
        self._valid = np.ones(capacity, np.bool_)

    def put(self, slots: Slots, column: pa.Array) -> None:
        if pa.types.is_boolean(self.kind):
            column = column.cast(pa.uint8())
        self._valid[slots] = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else True
        data = column.buffers()[1]
        if data is None:
            return
        values = np.frombuffer(data, self._values.dtype)[column.offset : column.offset + len(column)]
        self._values[slots] = values

    def take(self, slots: Slots) -> pa.Array:
        values, valid = self._values[slots], self._valid[slots]
        nulls = int(len(valid) - valid.sum())
        bits = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
        if pa.types.is_boolean(self.kind):
            values = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(self.kind, len(slots), [bits, pa.py_buffer(values)], null_count=nulls)


class _Blocks:
    """Columns of other types, as Arrow blocks with garbage that is removed now and then."""

    def __init__(self, schema: pa.Schema, capacity: int) -> None:
        self.schema = schema
        self._place = np.zeros(capacity, np.int64)
        self._blocks: list[pa.RecordBatch] = []
        self._rows = 0
        self._live = 0

    @property
    def bytes(self) -> int:
        """Bytes of the rows that still wait, garbage left out."""
        return int(sum(block.nbytes for block in self._blocks) * self._live / max(1, self._rows))

    def put(self, slots: Slots, batch: pa.RecordBatch, table: StreamTable) -> None:
        if self._rows > 2 * self._live + 16:
            self._clean(table, slots)
        self._place[slots] = np.arange(self._rows, self._rows + len(slots))
        own = pa.array(np.arange(len(slots)))  # a copy: the batch may be a slice of a much larger one
        columns = [batch.column(field.name).take(own) for field in self.schema]
        self._blocks.append(pa.RecordBatch.from_arrays(columns, schema=self.schema))
        self._rows += len(slots)
        self._live += len(slots)

    def _clean(self, table: StreamTable, new: Slots) -> None:
        live = np.setdiff1d(table.live(), new)
        columns = self.take(live)
        self._blocks = [pa.RecordBatch.from_arrays(columns, schema=self.schema)]
        self._place[live] = np.arange(len(live))
        self._rows = self._live = len(live)

    def take(self, slots: Slots) -> list[pa.Array]:
        if len(self._blocks) > 1:
            whole = pa.Table.from_batches(self._blocks, self.schema).combine_chunks()
            self._blocks = whole.to_batches() or self._blocks[:1]
        at = pa.array(self._place[slots])
        return [self._blocks[0].column(i).take(at) for i in range(len(self.schema))]

    def forget(self, slots: Slots) -> None:
        self._live -= len(slots)
        if self._live == 0:
            self._blocks, self._rows = [], 0
