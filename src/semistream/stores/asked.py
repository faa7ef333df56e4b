"""Keys as people give them, as Arrow arrays of the key's types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from semistream.errors import ArgumentError, SchemaError
from semistream.keys import same_key_type


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
