"""Columns between Arrow and Spark: types and names."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc


def spark_arrow(kind: pa.DataType) -> pa.DataType:
    """The Arrow type that Spark uses for a column of the master."""
    types = pa.types
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    return kind


def fitted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column in a type, as it is if it has that type. Spark has no nanoseconds: they are cut off, as Spark does."""
    if column.type.equals(kind):
        return column
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        column = pc.floor_temporal(column, unit="microsecond")
    return pc.cast(column, kind)


def unused_name(wanted: str, taken: Iterable[str]) -> str:
    """``wanted``, made longer until no column has it; Spark does not tell upper from lower case."""
    used = {name.lower() for name in taken}
    while wanted in used:
        wanted += "_"
    return wanted
