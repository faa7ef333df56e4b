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
    simple = pa.types.is_primitive(kind) or pa.types.is_decimal128(kind)
    return max(1, kind.bit_width // 8) if simple else 0  # truth values take a byte


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
        self._fixed = {at: _Column(field, capacity) for at, field in enumerate(schema) if _width(field.type)}
        self._rest = _Blocks([at for at in range(len(schema)) if at not in self._fixed], capacity)

    tuples = Multimap.used  # that wait

    @property
    def text_bytes(self) -> int:
        """What the columns without a fixed width take now, garbage left out."""
        return self._rest.bytes

    def text_of(self, batch: pa.RecordBatch) -> int:
        """What these columns of a batch would take."""
        return int(self._rest.of(batch).nbytes)

    def clock(self) -> float:
        """Seconds since the table was made."""
        return time.monotonic() - self._made

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self._rest.clear()

    def add(self, batch: pa.RecordBatch, codes: Codes, iteration: int = 0) -> Slots:
        """Let tuples wait; there must be room. Returns their slots."""
        slots = self.insert(codes)
        self.matched[slots] = False
        self.born[slots] = iteration
        self.came[slots] = self.clock()
        for position, column in self._fixed.items():
            column.put(slots, batch.column(position))
        self._rest.put(slots, batch, self)
        return slots

    def take(self, slots: Slots) -> pa.RecordBatch:
        """The tuples in these slots."""
        others = iter(self._rest.take(slots).columns if len(self._fixed) < len(self.schema) else [])
        columns = [self._fixed[at].take(slots) if at in self._fixed else next(others) for at in range(len(self.schema))]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def has_value(self, slots: Slots, column: str) -> npt.NDArray[np.bool_]:
        """Which of these tuples have a value in a column."""
        position = self.schema.get_field_index(column)
        if position in self._fixed:
            return self._fixed[position].valid[slots]
        return np.asarray(self.take(slots).column(position).is_valid())

    def oldest(self) -> int | None:
        """The code of the key that waits longest."""
        head = int(self._state[self._kernels.QUEUE_HEAD])
        return int(self._codes[head]) if head >= 0 else None

    def remove(self, entries: Entries) -> None:
        """Remove keys with all their tuples."""
        self._rest.forget(int(self.counts(entries).sum()))
        super().remove(entries)

    def expire(self, slots: Slots) -> None:
        """Remove tuples by slot, in order of their arrival."""
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
        self.valid = np.ones(capacity, np.bool_)

    def put(self, slots: Slots, column: pa.Array) -> None:
        if pa.types.is_boolean(self.kind):
            column = column.cast(pa.uint8())
        self.valid[slots] = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else True
        data = column.buffers()[1]
        if data is not None:
            self._values[slots] = np.frombuffer(data, self._values.dtype)[column.offset : column.offset + len(column)]

    def take(self, slots: Slots) -> pa.Array:
        values, valid = self._values[slots], self.valid[slots]
        nulls = int(len(valid) - valid.sum())
        bits = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
        if pa.types.is_boolean(self.kind):
            values = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(self.kind, len(slots), [bits, pa.py_buffer(values)], null_count=nulls)


class _Blocks:
    """Columns of other types, as Arrow blocks with garbage that is removed now and then."""

    def __init__(self, positions: list[int], capacity: int) -> None:
        self._positions = positions  # names may come twice
        self._place = np.zeros(capacity if positions else 0, np.int64)
        self._blocks: list[pa.RecordBatch] = []
        self._rows = self._live = 0

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(self._positions)

    @property
    def bytes(self) -> int:
        return int(sum(block.nbytes for block in self._blocks) * self._live / max(1, self._rows))

    def put(self, slots: Slots, batch: pa.RecordBatch, table: StreamTable) -> None:
        if not self._positions:
            return
        if self._rows > 2 * self._live + 16:
            live = np.setdiff1d(table.waiting_slots(), slots)
            self._blocks, self._rows = [self.take(live)], len(live)
            self._place[live] = np.arange(len(live))
        self._place[slots] = np.arange(self._rows, self._rows + len(slots))
        own = pa.array(np.arange(len(slots)))  # a copy: the batch may be a slice of a much larger one
        self._blocks.append(self.of(batch).take(own))
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
