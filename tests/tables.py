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
    as_of: tuple[str, str, str] | None = None,
    multiple: str = "all",
    status: str | None = None,
) -> pa.Table:
    """The join by a dictionary of lists, with Spark's equality of keys: NULL never matches, NaN = NaN, -0.0 = 0.0.

    ``as_of`` names the stream's moment and the master's two bounds.
    """
    pairs = dict(on) if isinstance(on, Mapping) else {name: name for name in ([on] if isinstance(on, str) else on)}
    masters: dict[Row, list[int]] = {}
    for number, key in enumerate(_keys(master_table, list(pairs.values()))):
        if key is not None:
            masters.setdefault(key, []).append(number)
    if as_of is not None:
        moments = _moments(stream_table.column(as_of[0]))
        bounds = list(zip(*(_moments(master_table.column(name)) for name in as_of[1:]), strict=True))
    left: list[int] = []
    right: list[int | None] = []
    for number, key in enumerate(_keys(stream_table, list(pairs))):
        found: list[int] = [] if key is None else masters.get(key, [])
        if as_of is not None:
            found = [at for at in found if _between(moments[number], *bounds[at])]
        found = found[:1] if multiple == "first" else found
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
    if status is not None:
        words = ["unmatched" if at is None else "matched" for at in right]
        result = result.append_column(status, pa.array(words, pa.string()))
    return result


def _moments(column: pa.ChunkedArray) -> list[int | None]:
    """Whole numbers as they are; dates and times as nanoseconds, however many there are."""
    kind, nanoseconds = column.type, 1
    if pa.types.is_timestamp(kind):
        nanoseconds = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[kind.unit]
    elif pa.types.is_date(kind):
        nanoseconds = 86_400 * 10**9 if kind == pa.date32() else 10**6
    numbers = column.cast(pa.int32()) if kind == pa.date32() else column
    plain = numbers.to_pylist() if pa.types.is_integer(numbers.type) else numbers.cast(pa.int64()).to_pylist()
    return [None if number is None else number * nanoseconds for number in plain]


def _between(moment: int | None, begin: int | None, end: int | None) -> bool:
    return moment is not None and (begin is None or begin <= moment) and (end is None or moment < end)


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
