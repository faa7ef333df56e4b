"""Small tools on Arrow columns that the members of a dimension are handled with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semistream.errors import SchemaError
from semistream.keys import KeyCodec
from semistream.stores import MasterStore

Numbers = npt.NDArray[np.int64]


def ints(column: pa.Array | pa.ChunkedArray, kind: pa.DataType, absent: int = 0) -> Numbers:
    """Times as whole numbers, in the unit of the dimension."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    try:
        cast = pc.cast(whole, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(f"times of type {whole.type} do not fit the dimension's {kind}: {error}") from error
    raw = cast.view(pa.int32() if kind.bit_width == 32 else pa.int64()).cast(pa.int64())
    return np.array(pc.fill_null(raw, absent).to_numpy(zero_copy_only=False), np.int64)


def times_of(raw: Numbers, valid: npt.NDArray[np.bool_], kind: pa.DataType) -> pa.Array:
    """Whole numbers as times; not valid ones are NULL."""
    width = pa.int32() if kind.bit_width == 32 else pa.int64()
    return pa.array(raw, mask=~valid).cast(width).view(kind)


def groups_of(codec: KeyCodec, tables: Sequence[pa.Table], names: Sequence[str]) -> Numbers:
    """A number for each row of all tables, one after the other: the same for equal keys."""
    return codec.groups([_stacked(tables, name, item.type) for name, item in zip(names, codec.fields, strict=True)])


def value_groups(attributes: Sequence[str], tables: Sequence[pa.Table]) -> Numbers:
    """A number for each row of all tables: the same for equal attributes, NULL = NULL, NaN = NaN."""
    if not attributes:
        return np.zeros(sum(table.num_rows for table in tables), np.int64)
    fields = [tables[0].schema.field(name) for name in attributes]
    return groups_of(KeyCodec(fields), tables, attributes)


def _stacked(tables: Sequence[pa.Table], name: str, kind: pa.DataType) -> pa.Array:
    chunks = [chunk.cast(kind) for table in tables for chunk in table.column(name).chunks]
    return pa.concat_arrays(chunks) if chunks else pa.array([], kind)


def last_of_each(codec: KeyCodec, rows: pa.Table, more: Iterable[pa.Array] = ()) -> pa.Table:
    """Of each key (and of each value of ``more``) the last row, in the order of the rows."""
    groups = codec.groups([rows.column(item.name).combine_chunks() for item in codec.fields])
    for column in more:
        part = pc.dictionary_encode(column).indices.to_numpy().astype(np.int64)
        groups = np.unique(groups * (int(part.max(initial=0)) + 1) + part, return_inverse=True)[1]
    last = np.zeros(int(groups.max(initial=-1)) + 1, np.int64)
    last[groups] = np.arange(len(groups))  # of several assignments to one place the last stays
    return rows.take(pa.array(np.sort(last)))


def distinct(store: MasterStore, keys: pa.Table) -> pa.Table:
    """Each key once, without those that hold a NULL."""
    valid = store.codec.encode(columns_of(keys, store.key))[1]
    return last_of_each(store.codec, keys if valid.all() else keys.filter(pa.array(valid)))


def in_order(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Rows in the order of their keys."""
    return rows.take(pc.sort_indices(rows, [(name, "ascending") for name in key]))


def columns_of(table: pa.Table, names: Sequence[str]) -> list[pa.Array]:
    """Some columns, each in one piece."""
    return [table.column(name).combine_chunks() for name in names]


def store_rows(schema: pa.Schema, count: int, columns: dict[str, Any]) -> pa.Table:
    """Rows of the store; columns that are not given are NULL."""
    made = [columns.get(item.name, pa.nulls(count, item.type)) for item in schema]
    return pa.table([column.cast(item.type) for column, item in zip(made, schema, strict=True)], schema=schema)


def with_column(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    """The table with another content of a column."""
    at = table.schema.get_field_index(name)
    return table.set_column(at, table.schema.field(at), column)
