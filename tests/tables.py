"""Whole tables compared row by row, and a slow, obviously right model of the join."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

Row = tuple[Any, ...]


def table_of(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Batches, possibly none, as one table."""
    return pa.Table.from_batches(list(batches), schema)


def assert_same_rows(actual: pa.Table, expected: pa.Table) -> None:
    """Equal names, types and rows, as sorted tables: order does not count, duplicates do; NaN = NaN, -0.0 = 0.0."""
    have = [(field.name, str(field.type)) for field in actual.schema]
    want = [(field.name, str(field.type)) for field in expected.schema]
    assert have == want, f"columns differ:\n  have {have}\n  want {want}"
    got, model = Counter(_rows(actual)), Counter(_rows(expected))
    missing, extra = _shown(model - got), _shown(got - model)
    counted = f"{actual.num_rows} rows instead of {expected.num_rows}"
    assert got == model, f"{counted}\n  missing (first 5): {missing}\n  too many (first 5): {extra}"


def model_join(
    stream_table: pa.Table,
    master_table: pa.Table,
    on: str | Sequence[str] | Mapping[str, str],
    how: str = "left",
    columns: Sequence[str] | None = None,
    suffix: str | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> pa.Table:
    """The join by a dictionary of lists, with Spark's equality of keys: NULL never matches, NaN = NaN, -0.0 = 0.0."""
    pairs = dict(on) if isinstance(on, Mapping) else {name: name for name in ([on] if isinstance(on, str) else on)}
    masters: dict[Row, list[int]] = {}
    for number, key in enumerate(_keys(master_table, list(pairs.values()))):
        if key is not None:
            masters.setdefault(key, []).append(number)
    left: list[int] = []
    right: list[int | None] = []
    for number, key in enumerate(_keys(stream_table, list(pairs))):
        found: list[int] = [] if key is None else masters.get(key, [])
        if how in ("left", "inner"):
            matches: list[int | None] = [*found] if found or how == "inner" else [None]
            left.extend([number] * len(matches))
            right.extend(matches)
        elif (how == "semi") == bool(found):
            left.append(number)
    chosen = [name for name in master_table.column_names if name not in pairs.values()] if columns is None else columns
    result = stream_table.take(pa.array(left, pa.int64()))
    if how in ("semi", "anti"):
        return result
    for name in chosen:
        label = f"{name}{suffix}" if name in stream_table.column_names else name
        values: Any = master_table.column(name).combine_chunks().take(pa.array(right, pa.int64()))
        if label in (defaults or {}):
            assert defaults is not None
            filled = [
                defaults[label] if at is None else value for at, value in zip(right, values.to_pylist(), strict=True)
            ]
            values = pa.array(filled, values.type)
        result = result.append_column(label, values)
    return result


def _keys(table: pa.Table, names: list[str]) -> list[Row | None]:
    columns = [table.column(name).to_pylist() for name in names]
    return [None if None in key else tuple(map(_plain, key)) for key in zip(*columns, strict=True)]


def _rows(table: pa.Table) -> list[Row]:
    columns = [column.to_pylist() for column in table.columns]
    return [tuple(map(_plain, row)) for row in zip(*columns, strict=True)] if columns else [()] * table.num_rows


def _plain(value: object) -> object:
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def _shown(rows: Counter[Row]) -> list[Row]:
    return sorted(rows.elements(), key=repr)[:5]
