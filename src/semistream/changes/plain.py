"""Changes as plain rows: the columns of the table, and one more that says what happened to the row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from semistream.changes.rows import OP, WORDS, Bad, Changes, Place, Reject, assemble
from semistream.changes.values import array_of, cast_column
from semistream.errors import ArgumentError, SchemaError
from semistream.rows import plain_values
from semistream.stores.sources import open_source

Cast = Callable[[pa.Array, pa.Field], tuple[pa.Array, Bad]]
Line = tuple[str, int, str | bytes]  # source, number of the line, text


def plain_changes(
    source: Any,
    schema: pa.Schema,
    key: Sequence[str],
    *,
    op: str = OP,
    order: str | None = None,
    name: str = "changes",
    cast: Cast = cast_column,
) -> Changes:
    """Changes from Arrow, pandas or Polars rows, or a path of them."""
    opened = open_source(source, None)
    needed = {f"op={op!r}": [op], f"order={order!r}": [order] if order else [], "the store": schema.names}
    for what, names in needed.items():
        missing = [one for one in names if one not in opened.schema.names]
        if missing:
            raise ArgumentError(
                f"the changes have no column {missing[0]!r}, which {what} asks for; "
                f"their columns are {opened.schema.names}"
            )
    table = pa.Table.from_batches(list(opened.batches()), opened.schema)
    return assemble(
        schema,
        key,
        table.column(op).to_pylist(),
        lambda item: cast(_whole(table, item.name), item),
        lambda row: (name, row + 1, json.dumps(table.slice(row, 1).to_pylist()[0], default=_written)),
        order=_whole(table, order) if order else None,
    )


def plain_lines(
    lines: Iterable[Line],
    schema: pa.Schema,
    key: Sequence[str],
    *,
    op: str = OP,
    order: str | None = None,
    constants: Mapping[str, Any] | None = None,
) -> Changes:
    """Changes from JSON, one object a line; ``constants`` are columns that have one value in all of them."""
    found, places, rejects = parsed_lines(lines)
    found = [{**record, **(constants or {})} for record in found]
    bad: Bad = {}
    needed = [op, *([order] if order else [])]
    for row, record in enumerate(found):
        columns_of = {"delete": key, "truncate": ()}.get(WORDS.get(str(record.get(op)).lower(), ""), schema.names)
        for name in (*needed, *columns_of):
            if name not in record:
                bad.setdefault(row, f"it has no column {name!r}")
    made = assemble(
        schema,
        key,
        [record.get(op) for record in found],
        lambda item: array_of([record.get(item.name) for record in found], item),
        places.__getitem__,
        bad=bad,
        order=ordering([record.get(order) for record in found], order) if order else None,
    )
    return made.with_rejects(rejects)


def parsed_lines(lines: Iterable[Line]) -> tuple[list[dict[str, Any]], list[Place], list[Reject]]:
    """The JSON objects of some lines, where each stood, and the lines that hold none; ``null`` and blanks are left out.

    Numbers with a fraction stay exact.
    """
    found: list[dict[str, Any]] = []
    places: list[Place] = []
    rejects: list[Reject] = []
    for source, number, text in lines:
        shown = text.decode(errors="backslashreplace") if isinstance(text, bytes) else text
        if not shown.strip():
            continue
        try:
            record = json.loads(text, parse_float=Decimal)
        except (ValueError, RecursionError) as error:  # bytes that are no UTF-8 are a ValueError too
            rejects.append(Reject(source, number, f"it is no JSON: {error}", shown))
            continue
        if isinstance(record, dict):
            found.append(record)
            places.append((source, number, shown))
        elif record is not None:
            rejects.append(Reject(source, number, f"it is no JSON object but a {type(record).__name__}", shown))
    return found, places, rejects


def ordering(values: list[Any], name: str) -> pa.Array:
    """The values of the column that orders the changes."""
    try:
        return pa.array(values)
    except pa.ArrowException as error:
        raise SchemaError(f"order={name!r}: its values are of several types and have no order: {error}") from error


def _whole(table: pa.Table, name: str) -> pa.Array:
    return plain_values(table.column(name).combine_chunks())


def _written(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
