"""Rows of any store as Arrow tables: all of them, or those of some keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.errors import ArgumentError
from semistream.keys import Codes
from semistream.rows import Addresses, PackedRows, Projection, RowLayout
from semistream.stores.asked import key_columns
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
    """Every row of a store, level by level, each in key order."""
    names = _named(store, columns)
    for codes, rows in store.reader(buffer_bytes).rows():
        yield to_batch(store, codes, rows, names)


def get(store: Store, keys: Any, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of some keys: one value, a list of values (tuples for a composite key), or Arrow columns."""
    wanted = key_columns(keys, store.schema, store.key)
    codes, valid = store.codec.encode(wanted)
    distinct = np.unique(codes[valid])
    names = _named(store, columns)
    batches = []
    for index, rows in store.reader().match(distinct):
        batch = to_batch(store, distinct[index], rows, [*names, *(k for k in store.key if k not in names)])
        if not store.codec.exact:
            have = [batch.column(name) for name in store.key]
            batch = batch.filter(pa.array(store.codec.among(have, wanted)))
        batches.append(batch.select(names))
    return pa.Table.from_batches(batches, pa.schema([store.schema.field(name) for name in names]))


def _named(store: Store, columns: Sequence[str] | None) -> list[str]:
    names = list(store.schema.names) if columns is None else list(columns)
    unknown = [name for name in names if name not in store.schema.names]
    if unknown:
        raise ArgumentError(f"the master has no column {unknown[0]!r}; its columns are {store.schema.names}")
    return names
