"""Packed rows in Python: from Arrow columns to rows and back, and the projection to fewer columns.

The byte format is described in `semistream.kernels.rows`. Rows are passed around as absolute addresses (int64 arrays),
so a row may lie on a page, in the cache or in a staging buffer; whoever passes an address keeps its buffer alive.
"""

import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semistream import kernels
from semistream.errors import SchemaError

Addresses = npt.NDArray[np.int64]
_MAX_ROW_BYTES = 1 << 31


def address_of(array: npt.NDArray[Any]) -> int:
    return int(array.ctypes.data)


def own_memory(size: int) -> mmap.mmap:
    """Zeros on a page's edge that a forked process gets as a copy; by itself `mmap` would share them."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def readable(values: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Values for people: Python's, or the number of a time that Python does not know, such as one in the year 20000."""
    try:
        return list(values.to_pylist())
    except (OverflowError, ValueError, KeyError):  # KeyError: a time zone that is not known here
        if len(values) > 1:
            return [readable(values.slice(at, 1))[0] for at in range(len(values))]
    one = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if not pa.types.is_temporal(one.type):
        return [f"({one.type})"]  # it holds such a time somewhere
    return [f"{one.view(pa.int32() if one.type.bit_width == 32 else pa.int64())[0]} ({one.type})"]


def readable_rows(table: pa.Table) -> list[dict[str, Any]]:
    return [dict(zip(table.schema.names, row, strict=True)) for row in zip(*map(readable, table.columns), strict=True)]


def storage_type(name: str, kind: pa.DataType) -> pa.DataType:
    """The type a column is stored as: dictionaries and views become plain values, nested types are refused."""
    if pa.types.is_dictionary(kind):
        return storage_type(name, kind.value_type)
    kind = without_views(kind)
    if varies(kind) and not _is_variable(kind):
        raise SchemaError(
            f"column {name!r} has type {kind}, which a store cannot hold; "
            "flatten nested columns or serialise them to a string or binary column before the build, "
            "or leave the column out with columns=[...]"
        )
    return kind


def without_views(kind: pa.DataType) -> pa.DataType:
    """Arrow cannot take rows from view columns, nested or not (Polars makes them): they are carried as plain ones."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(without_views(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(without_views(kind.key_type), without_views(kind.item_type), kind.keys_sorted)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        item = kind.value_field.with_type(without_views(kind.value_type))
        return pa.large_list(item) if pa.types.is_large_list(kind) else pa.list_(item, getattr(kind, "list_size", -1))
    if pa.types.is_string_view(kind):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(kind) else kind


def _is_variable(kind: pa.DataType) -> bool:
    return is_text(kind) or is_binary(kind)


def is_text(kind: pa.DataType) -> bool:
    """Is this a string type as it is stored?"""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Is this a type of bytes, of any length, as it is stored?"""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def varies(kind: pa.DataType) -> bool:
    """Do values of this type take different numbers of bytes, or is that not known? Dictionaries lie elsewhere."""
    try:
        return isinstance(kind, pa.BaseExtensionType) or not kind.bit_width
    except ValueError:
        return True


def own_bytes(values: pa.Array | pa.RecordBatch) -> int:
    """Bytes of these values, without dictionaries, which every slice has whole."""
    return int(values.nbytes - values.slice(0, 0).nbytes)


def text_sizes(columns: Iterable[pa.Array], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Bytes that the values of some rows take in these columns together; of nested ones, as many as on average."""
    sizes = np.zeros(len(rows), np.int64)
    for column in columns if len(rows) else ():
        if _is_variable(column.type):
            kind = np.dtype(np.int64 if _is_large(column.type) else np.int32)
            offsets = np.frombuffer(column.buffers()[1], kind, len(column) + 1, column.offset * kind.itemsize)
            sizes += offsets[rows + 1] - offsets[rows]
        else:
            sizes += own_bytes(column) // len(column)
    return sizes


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """A batch without rows; from an empty list, Arrow cannot make columns of unions or of dictionaries of views."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)


def plain_values(column: pa.Array) -> pa.Array:
    """A dictionary column as its values; Arrow itself cannot decode one of views (as Polars makes them)."""
    if not pa.types.is_dictionary(column.type):
        return column
    return pc.cast(column.dictionary, storage_type("", column.type)).take(column.indices)


def raw_values(column: pa.Array, dtype: str | None = None, per_value: int = 1) -> npt.NDArray[Any]:
    """The values as they lie in memory, also where the column is null (whatever lies there); by default whole numbers.
    A value of the column is ``per_value`` of the numbers.
    """
    signed = "u" if pa.types.is_unsigned_integer(column.type) else "i"
    kind = np.dtype(dtype or f"{signed}{column.type.bit_width // 8}")
    count, buffer = len(column) * per_value, column.buffers()[1]
    if count == 0 or buffer is None:
        return np.zeros(count, kind)
    return np.frombuffer(buffer, kind, count, offset=column.offset * per_value * kind.itemsize)


def normalise(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch's columns in the order and storage types of ``schema``; only lossless casts are made."""
    columns = []
    for field in schema:
        column = plain_values(batch.column(field.name))
        try:
            columns.append(pc.cast(column, field.type, safe=True))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            kinds = f"column {field.name!r} is {column.type}, the store holds {field.type}"
            raise SchemaError(f"{kinds}: {error}") from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass(frozen=True)
class PackedRows:
    """Consecutive packed rows in one buffer; row i lies in ``buffer[offsets[i]:offsets[i + 1]]``."""

    buffer: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]

    @property
    def addresses(self) -> Addresses:
        return self.offsets[:-1] + address_of(self.buffer)


class RowLayout:
    """How the columns of a schema lie in a packed row."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        nulls = max(1, (len(schema) + 7) >> 3)  # a bit per column; never empty, so that rows can be counted
        widths = [0 if _is_variable(field.type) else max(1, field.type.bit_width // 8) for field in schema]
        self.widths = np.array(widths, np.int64)  # 0 for text, of which the slot says where it ends
        edges = nulls + np.cumsum([0, *(width or 4 for width in widths)])
        self.slots, self.head = edges[:-1], int(edges[-1])
        variable = np.flatnonzero(self.widths == 0)
        self.previous = np.full(len(schema), -1, np.int64)  # the slot of the text before
        self.previous[variable[1:]] = self.slots[variable[:-1]]
        self.last_variable_slot = int(self.slots[variable[-1]]) if len(variable) else -1
        self.fixed = len(variable) == 0  # every row takes the same number of bytes
        self.row_width = self.head if self.fixed else -1

    def pack(self, batch: pa.RecordBatch) -> PackedRows:
        """Rows from Arrow columns (which must be of this layout's schema)."""
        count = batch.num_rows
        lengths = np.full(count, self.head, np.int64)
        columns = [pc.cast(c, pa.uint8()) if pa.types.is_boolean(c.type) else c for c in batch.columns]
        for position in np.flatnonzero(self.widths == 0):
            kernels.rows.add_lengths(*offsets_of(columns[position]), lengths)
        if count and int(lengths.max()) >= _MAX_ROW_BYTES:
            raise SchemaError(f"a row of {int(lengths.max()):,} bytes is too long; a row may take up to 2 GiB")
        offsets = np.append(0, np.cumsum(lengths))
        buffer = np.zeros(int(offsets[-1]), np.uint8)
        rows = offsets[:-1] + address_of(buffer)
        ends = np.zeros(count, np.int64)
        for c, column in enumerate(columns):
            validity, data = column.buffers()[0], column.buffers()[-1]
            bits = validity.address if validity is not None and column.null_count else 0
            start = data.address if data is not None else 0
            first, width, slot = column.offset, int(self.widths[c]), int(self.slots[c])
            if width:
                kernels.rows.put_fixed(start + first * width, bits, first, width, rows, slot, c)
            else:
                kernels.rows.put_variable(start, *offsets_of(column), bits, first, rows, ends, self.head, slot, c)
        return PackedRows(buffer, offsets)

    def unpack(self, rows: Addresses, column: int) -> pa.Array:
        """One Arrow column from rows; address 0 gives a null."""
        kind = self.schema.field(column).type
        rows = np.ascontiguousarray(rows)
        count = len(rows)
        valid = np.empty(count, np.uint8)
        width, slot = int(self.widths[column]), int(self.slots[column])
        if width:
            out = np.empty(count * width, np.uint8)
            nulls = kernels.rows.take_fixed(rows, slot, column, width, address_of(out), valid)
            if pa.types.is_boolean(kind):
                out = np.packbits(out, bitorder="little")
            buffers = [pa.py_buffer(out)]
        else:
            offsets = np.empty(count + 1, np.int64)
            before = int(self.previous[column])
            nulls = kernels.rows.measure_variable(rows, slot, before, column, offsets, valid)
            out = np.empty(int(offsets[-1]), np.uint8)
            kernels.rows.take_variable(rows, before, self.head, offsets, address_of(out))
            if not _is_large(kind):
                if len(out) > np.iinfo(np.int32).max:
                    name = self.schema.field(column).name
                    raise SchemaError(f"column {name!r}: over 2 GiB of text in one output batch")
                offsets = offsets.astype(np.int32)
            buffers = [pa.py_buffer(offsets), pa.py_buffer(out)]
        validity = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
        return pa.Array.from_buffers(kind, count, [validity, *buffers], null_count=int(nulls))


class Projection:
    """Rows of one layout copied to rows that hold only some of the columns."""

    def __init__(self, source: RowLayout, columns: list[str]) -> None:
        self.source = source
        self.columns = np.array([source.schema.get_field_index(name) for name in columns], np.int64)
        self.target = RowLayout(pa.schema([source.schema.field(name) for name in columns]))
        layout = (source.widths, source.slots, source.previous, source.head)
        self.arguments = (self.columns, *layout, self.target.slots, self.target.head)  # of the kernels

    def lengths(self, rows: Addresses) -> npt.NDArray[np.int64]:
        """Bytes that each projected row will take."""
        lengths = np.full(len(rows), self.target.head, np.int64)
        if not self.target.fixed:
            kernels.rows.measure_projection(rows, *self.arguments[:4], lengths)
        return lengths

    def copy_to(self, rows: Addresses, targets: Addresses) -> None:
        """Copy each row to its target; one kernel call for all of them."""
        kernels.rows.project(np.ascontiguousarray(rows), *self.arguments, targets)

    def apply(self, rows: Addresses) -> PackedRows:
        """Copy the rows one after the other."""
        offsets = np.append(0, np.cumsum(self.lengths(rows)))
        buffer = np.empty(int(offsets[-1]), np.uint8)
        self.copy_to(rows, offsets[:-1] + address_of(buffer))
        return PackedRows(buffer, offsets)


def offsets_of(column: pa.Array) -> tuple[int, int]:
    """Address of the first offset of a variable-length column, and the bytes an offset takes."""
    wide = 8 if _is_large(column.type) else 4
    buffer = column.buffers()[1]
    return (buffer.address + column.offset * wide if buffer is not None else 0), wide


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))
