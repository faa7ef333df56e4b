"""Whether the columns of a batch are those of a table."""

from collections.abc import Mapping

import pyarrow as pa

from semistream.errors import SchemaError


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type as a table keeps it: instants in UTC, microseconds, one kind of string."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return kind


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Columns as a table keeps them: nullable, since later batches may have NULLs."""
    return pa.schema([pa.field(field.name, stored_type(field.type)) for field in schema])


def types_of(schema: pa.Schema) -> dict[str, str]:
    """Names and types as they are compared and shown."""
    return {field.name: str(stored_type(field.type)) for field in schema}


def check_schema(
    place: object,
    there: Mapping[str, str],
    here: Mapping[str, str],
    *,
    may_add: pa.Schema | None = None,
    may_lack: bool = False,
) -> list[str]:
    """The columns that are new, if those of ``may_add`` may be; any other difference is an error, never a cast."""
    new = [name for name in here if name not in there]
    found = [f"{name} ({here[name]}) is new" for name in new if may_add is None]
    found += [f"{name} ({kind}) is gone" for name, kind in there.items() if name not in here and not may_lack]
    found += [f"{name} was {there[name]} and is {kind}" for name, kind in here.items() if there.get(name, kind) != kind]
    if found:
        raise SchemaError(
            f"{place}: the columns of the batch are not those of the table: {'; '.join(found)}. "
            "Select the table's columns, or write to another table"
        )
    strict = [name for name in new if may_add is not None and not may_add.field(name).nullable]
    if strict:
        raise SchemaError(
            f"{place}: new columns must allow NULL, since the rows that are there have no value: {', '.join(strict)}"
        )
    return new
