"""Rows of any store as Arrow tables: all of them, or those of some keys, in whatever form the keys come."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.errors import ArgumentError, SchemaError
from semistream.keys import Codes, same_key_type
from semistream.rows import Addresses, PackedRows, Projection, RowLayout
from semistream.stores.contract import DEFAULT_BUFFER, Store


def to_batch(store: Store, codes: Codes, rows: Addresses, columns: Sequence[str]) -> pa.RecordBatch:
    """Arrow columns of some rows; an exact key column comes from the codes."""
    layout = store.facts.layout
    arrays = [
        store.codec.decode(codes)
        if store.codec.exact and name == store.key[0]
        else layout.unpack(rows, layout.schema.get_field_index(name))
        for name in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([store.schema.field(name) for name in columns]))


def copy_rows(layout: RowLayout, rows: Addresses) -> PackedRows:
    """Rows copied out of a read buffer."""
    return Projection(layout, layout.schema.names).apply(rows)


def scan(
    store: Store, columns: Sequence[str] | None = None, buffer_bytes: int = DEFAULT_BUFFER
) -> Iterator[pa.RecordBatch]:
    """Every row of this version, level by level, each in key order."""
    store, names = _named(store, columns)
    for codes, rows in store.reader(buffer_bytes).rows():
        yield to_batch(store, codes, rows, names)


def get(store: Store, keys: Any, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of some keys: one value, a list of values (tuples for a composite key), or Arrow columns."""
    store, names = _named(store, columns)
    wanted = key_columns(keys, store.schema, store.key)
    codes, valid = store.codec.encode(wanted)
    distinct = np.unique(codes[valid])
    batches = []
    for index, rows in store.reader().match(distinct):
        batch = to_batch(store, distinct[index], rows, [*names, *(k for k in store.key if k not in names)])
        if not store.codec.exact:
            have = [batch.column(name) for name in store.key]
            batch = batch.filter(pa.array(store.codec.among(have, wanted)))
        batches.append(batch.select(names))
    return pa.Table.from_batches(batches, pa.schema([store.schema.field(name) for name in names]))


def key_columns(keys: Any, schema: pa.Schema, key: tuple[str, ...]) -> list[pa.Array]:
    """Key values in any of the forms that `MasterStore.get` and `delete` take, as Arrow arrays of the key's types."""
    types = [schema.field(name).type for name in key]
    if isinstance(keys, pa.Table | pa.RecordBatch):
        missing = [name for name in key if name not in keys.schema.names]
        if missing:
            raise ArgumentError(f"keys have no column {missing[0]!r}; they need {list(key)}")
        columns = [keys.column(name) for name in key]
    elif isinstance(keys, pa.Array | pa.ChunkedArray):
        columns = [keys]
    else:
        single = isinstance(keys, str | bytes) or not isinstance(keys, Sequence)
        values = [keys] if single or (isinstance(keys, tuple) and len(key) > 1) else list(keys)
        wanted = ", ".join(f"{name} {kind}" for name, kind in zip(key, types, strict=True))
        try:
            parts = [tuple(values)] if len(key) == 1 else list(zip(*values, strict=True)) or [()] * len(key)
            columns = [_key_array(part, kind) for part, kind in zip(parts, types, strict=True)]
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise ArgumentError(f"these keys do not fit the key ({wanted}): {error}") from error
    if len(columns) != len(key):
        raise ArgumentError(f"the key has {len(key)} columns {list(key)}, these keys have {len(columns)}")
    for name, kind, column in zip(key, types, columns, strict=True):
        if not same_key_type(column.type, kind):
            raise SchemaError(f"key {name!r} is {kind}, these keys are {column.type}")
    return [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns]


def _key_array(values: tuple[Any, ...], kind: pa.DataType) -> pa.Array:
    if pa.types.is_integer(kind) and any(isinstance(value, float) for value in values):
        raise TypeError("a number with a fraction is no whole number")  # Arrow would cut it off
    return pa.array(list(values), kind)


def _named(store: Store, columns: Sequence[str] | None) -> tuple[Store, list[str]]:
    """The narrowest store with these columns, and their names."""
    names = list(store.schema.names if columns is None else columns)
    store = store.covering(names)
    unknown = [name for name in names if name not in store.schema.names]
    if unknown:
        raise ArgumentError(f"the master has no column {unknown[0]!r}; its columns are {store.schema.names}")
    return store, names
