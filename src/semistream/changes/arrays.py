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


def ints(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """Times as whole numbers, in the unit of the dimension."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    try:
        cast = pc.cast(whole, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(f"times of type {whole.type} do not fit the dimension's {kind}: {error}") from error
    return cast.view(_width(kind)).cast(pa.int64())


def times_of(values: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    """Whole numbers as times, None as NULL."""
    return pa.array(values, _width(kind)).view(kind)


def _width(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if kind.bit_width == 32 else pa.int64()


def groups_of(codec: KeyCodec, tables: Sequence[pa.Table], names: Sequence[str]) -> Numbers:
    """A number for each row of all tables, one after the other: the same for equal keys."""
    columns = []
    for name, item in zip(names, codec.fields, strict=True):
        chunks = [chunk.cast(item.type) for table in tables for chunk in table.column(name).chunks]
        columns.append(pa.chunked_array(chunks, item.type).combine_chunks())
    return codec.groups(columns)


def value_groups(attributes: Sequence[str], tables: Sequence[pa.Table]) -> Numbers:
    """A number for each row of all tables: the same for equal attributes, NULL = NULL, NaN = NaN."""
    if not attributes:
        return np.zeros(sum(table.num_rows for table in tables), np.int64)
    fields = [tables[0].schema.field(name) for name in attributes]
    return groups_of(KeyCodec(fields), tables, attributes)


def last_of_each(codec: KeyCodec, rows: pa.Table, more: Iterable[pa.Array] = ()) -> pa.Table:
    """Of each key (and of each value of ``more``) the last row, in the order of the rows."""
    groups = codec.groups(columns_of(rows, [item.name for item in codec.fields]))
    for column in more:
        part = pc.dictionary_encode(column).indices.to_numpy().astype(np.int64)
        groups = np.unique(groups * (int(part.max(initial=0)) + 1) + part, return_inverse=True)[1]
    return rows.take(pa.array(last_rows(groups, np.arange(len(groups)))))


def last_rows(groups: Numbers, order: Numbers) -> Numbers:
    """Of each group that is in ``order``, which holds numbers of rows, the last row; ascending."""
    last = np.full(int(groups.max(initial=-1)) + 1, -1, np.int64)
    last[groups[order]] = order  # of several assignments to one place the last stays
    return np.sort(last[last >= 0])


def distinct(store: MasterStore, keys: pa.Table) -> pa.Table:
    """Each key once, without those that hold a NULL."""
    valid = store.codec.encode(columns_of(keys, store.key))[1]
    return last_of_each(store.codec, keys if valid.all() else keys.filter(pa.array(valid)))


def in_order(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Rows in the order of their keys."""
    return rows.sort_by([(name, "ascending") for name in key])


def columns_of(table: pa.Table, names: Sequence[str]) -> list[pa.Array]:
    """Some columns, each in one piece."""
    return [table.column(name).combine_chunks() for name in names]


def store_rows(schema: pa.Schema, count: int, columns: dict[str, Any]) -> pa.Table:
    """Rows of the store; columns that are not given are NULL."""
    made = [columns.get(item.name, pa.nulls(count, item.type)) for item in schema]
    return pa.table([column.cast(item.type) for column, item in zip(made, schema, strict=True)], schema=schema)
