"""H_S and Q of the papers: waiting stream tuples by key, the keys in order of arrival, every byte counted.

Keys and links are compact arrays (see `semistream.kernels.multimap`). Columns of fixed width lie in arrays by slot,
so a tuple takes its own bytes and no more. Text and nested columns stay Arrow, in blocks that are put together when
half of their rows have left; they are charged three times, for the block, its garbage and the new one.
"""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.errors import InvariantError
from semistream.joins.papers.multimap import Entries, Multimap, Slots
from semistream.keys import Codes

TEXT_BYTES = 24  # a guess, before the first row is seen
_NODE_BYTES = 65  # code, six links of the key, two of the tuple, free lists, flag, birth, time, up to two buckets


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


class StreamTable(Multimap):
    """Stream tuples by key, with a queue of the keys."""

    def __init__(self, schema: pa.Schema, capacity: int) -> None:
        super().__init__(capacity)
        self.schema = schema
        self._made = time.monotonic()
        self.matched = np.zeros(capacity, np.bool_)  # has this tuple met a row yet?
        self.born = np.zeros(capacity, np.int32)  # the iteration in which it came
        self.came = np.zeros(capacity, np.float32)  # and the second, as `clock` says
        self._fixed = {
            position: _Column(field, capacity) for position, field in enumerate(schema) if _width(field.type)
        }
        rest = [position for position, field in enumerate(schema) if not _width(field.type)]
        self._rest = _Blocks(schema, rest, capacity) if rest else None

    @property
    def tuples(self) -> int:
        """Tuples that wait."""
        return self.used

    @property
    def text_bytes(self) -> int:
        """What the columns without a fixed width take now."""
        return self._rest.bytes if self._rest is not None else 0

    def text_of(self, batch: pa.RecordBatch) -> int:
        """What these columns of a batch would take."""
        return sum(column.nbytes for column in self._rest.of(batch)) if self._rest is not None else 0

    def clock(self) -> float:
        """Seconds since the table was made."""
        return time.monotonic() - self._made

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        if self._rest is not None:
            self._rest.clear()

    def add(self, batch: pa.RecordBatch, codes: Codes, iteration: int = 0) -> Slots:
        """Let tuples wait; there must be room. Returns their slots."""
        slots = self.insert(codes)
        self.matched[slots] = False
        self.born[slots] = iteration
        self.came[slots] = self.clock()
        for position, column in self._fixed.items():
            column.put(slots, batch.column(position))
        if self._rest is not None:
            self._rest.put(slots, batch, self)
        return slots

    def take(self, slots: Slots) -> pa.RecordBatch:
        """The tuples in these slots."""
        others = iter(self._rest.take(slots) if self._rest is not None else [])
        columns = [
            self._fixed[position].take(slots) if position in self._fixed else next(others)
            for position in range(len(self.schema))
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def has_value(self, slots: Slots, column: str) -> npt.NDArray[np.bool_]:
        """Which of these tuples have a value in a column."""
        position = self.schema.get_field_index(column)
        if position in self._fixed:
            return self._fixed[position].has_value(slots)
        return np.asarray(self.take(slots).column(position).is_valid())

    def oldest(self) -> int | None:
        """The code of the key that waits longest."""
        head = int(self._state[self._kernels.QUEUE_HEAD])
        return int(self._codes[head]) if head >= 0 else None

    def remove(self, entries: Entries) -> None:
        """Remove keys with all their tuples."""
        if self._rest is not None:
            self._rest.forget(int(self.counts(entries).sum()))
        super().remove(entries)

    def expire(self, slots: Slots) -> None:
        """Remove tuples by slot, in order of their arrival."""
        if self._rest is not None:
            self._rest.forget(len(slots))
        if self._kernels.expire(*self._parts, slots):
            raise InvariantError("stream table: a tuple expired before an older one of its key")

    def waiting_slots(self) -> Slots:
        """All slots in use."""
        used = np.ones(self.capacity, np.bool_)
        used[self._free_slots[: self.free]] = False
        return np.flatnonzero(used).astype(np.int32)


class _Column:
    """Values of a fixed width, by slot."""

    def __init__(self, field: pa.Field, capacity: int) -> None:
        self.kind = field.type
        width = _width(field.type)
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

    def has_value(self, slots: Slots) -> npt.NDArray[np.bool_]:
        return self._valid[slots]

    def take(self, slots: Slots) -> pa.Array:
        values, valid = self._values[slots], self._valid[slots]
        nulls = int(len(valid) - valid.sum())
        bits = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
        if pa.types.is_boolean(self.kind):
            values = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(self.kind, len(slots), [bits, pa.py_buffer(values)], null_count=nulls)


class _Blocks:
    """Columns of other types, as Arrow blocks with garbage that is removed now and then."""

    def __init__(self, stream: pa.Schema, positions: list[int], capacity: int) -> None:
        self.schema = pa.schema([stream.field(position) for position in positions])
        self._positions = positions  # names may come twice
        self._place = np.zeros(capacity, np.int64)
        self._blocks: list[pa.RecordBatch] = []
        self._rows = 0
        self._live = 0

    def of(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """These columns of a batch of the stream."""
        return [batch.column(position) for position in self._positions]

    @property
    def bytes(self) -> int:
        """Bytes of the rows that still wait, garbage left out."""
        return int(sum(block.nbytes for block in self._blocks) * self._live / max(1, self._rows))

    def put(self, slots: Slots, batch: pa.RecordBatch, table: StreamTable) -> None:
        if self._rows > 2 * self._live + 16:
            self._clean(table, slots)
        self._place[slots] = np.arange(self._rows, self._rows + len(slots))
        own = pa.array(np.arange(len(slots)))  # a copy: the batch may be a slice of a much larger one
        columns = [column.take(own) for column in self.of(batch)]
        self._blocks.append(pa.RecordBatch.from_arrays(columns, schema=self.schema))
        self._rows += len(slots)
        self._live += len(slots)

    def _clean(self, table: StreamTable, new: Slots) -> None:
        live = np.setdiff1d(table.waiting_slots(), new)
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

    def forget(self, count: int) -> None:
        self._live -= count
        if self._live == 0:
            self.clear()

    def clear(self) -> None:
        self._blocks, self._rows, self._live = [], 0, 0
