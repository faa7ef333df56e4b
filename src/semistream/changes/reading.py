"""Files of changes: JSON lines, CSV, Parquet or Arrow; Debezium's envelopes or plain rows.

All records of all files are one set of changes: of each key the last one counts, wherever it stands. Plain rows have
the columns of the table, and one more that says what happened to the row.
"""

import gzip
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from semistream.changes.debezium import debezium_changes
from semistream.changes.rows import OP, WORDS, Bad, Changes, Line, Reject, assemble, parsed_lines
from semistream.changes.values import array_of, cast_column, cast_texts
from semistream.errors import ArgumentError, SchemaError, choose, local_path
from semistream.rows import plain_values, readable_rows
from semistream.stores.paged.store import Progress
from semistream.stores.sources import open_source

FORMATS = ("debezium", "plain")
Cast = Callable[[pa.Array, pa.Field], tuple[pa.Array, Bad]]
_KINDS = {
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), "json"),
    ".csv": "csv",
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".arrow", ".feather"), "arrow"),
}


def read_changes(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    schema: pa.Schema,
    key: Sequence[str],
    *,
    format: str = "debezium",  # noqa: A002 - the word that users know
    op: str = OP,
    order: str | None = None,
    time_unit: str | None = None,
    constants: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Changes:
    """The changes of some files, for a store of this schema and key.

    ``format="plain"``: rows with an operation in column ``op`` (insert, update, upsert, delete, or I, U, D), in the
    order of the files or by column ``order``. ``time_unit`` is for Debezium's times without their schema.
    ``constants`` are text columns that the records lack and that are the same for all, such as their source system.
    """
    choose("format", format, FORMATS)
    paths = [local_path("files", one) for one in ([files] if isinstance(files, str | os.PathLike) else files)]
    if not paths:
        raise ArgumentError("no file of changes is given")
    kinds = {_kind(path) for path in paths}
    if len(kinds) > 1:
        raise ArgumentError(f"files of one kind are needed, these are {', '.join(sorted(kinds))}")
    kind = kinds.pop()
    if format == "debezium":
        if kind != "json":
            raise ArgumentError(f"Debezium's changes are JSON lines, {paths[0]} is {kind}; give format='plain'")
        return debezium_changes(_lines(paths, progress), schema, key, time_unit=time_unit, constants=constants)
    if kind == "json":
        return _plain_lines(_lines(paths, progress), schema, key, op, order, constants or {})
    rejects: list[Reject] = []
    table = pa.concat_tables([_table(path, kind, rejects) for path in paths], promote_options="default")
    for column, value in (constants or {}).items():
        table = table.append_column(column, pa.repeat(pa.scalar(value), table.num_rows))
    cast = cast_texts if kind == "csv" else cast_column
    name = str(paths[0]) if len(paths) == 1 else f"{len(paths)} files"
    return plain_changes(table, schema, key, op=op, order=order, name=name, cast=cast, unread=rejects)


def plain_changes(
    source: Any,
    schema: pa.Schema,
    key: Sequence[str],
    *,
    op: str = OP,
    order: str | None = None,
    name: str = "changes",
    cast: Cast = cast_column,
    unread: Sequence[Reject] = (),
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
        lambda row: (name, row + 1, json.dumps(readable_rows(table.slice(row, 1))[0], default=_written)),
        order=_whole(table, order) if order else None,
        unread=unread,
    )


def _plain_lines(
    lines: Iterable[Line],
    schema: pa.Schema,
    key: Sequence[str],
    op: str,
    order: str | None,
    constants: Mapping[str, str],
) -> Changes:
    """Changes from JSON, one object a line."""
    found, places, rejects = parsed_lines(lines)
    found = [{**record, **constants} for record in found]
    bad: Bad = {}
    for row, record in enumerate(found):
        columns_of = {"delete": key, "truncate": ()}.get(WORDS.get(str(record.get(op)).lower(), ""), schema.names)
        for name in (op, *([order] if order else []), *columns_of):
            if name not in record:
                bad.setdefault(row, f"it has no column {name!r}")
    return assemble(
        schema,
        key,
        [record.get(op) for record in found],
        lambda item: array_of([record.get(item.name) for record in found], item),
        places.__getitem__,
        bad=bad,
        order=ordering([record.get(order) for record in found], order) if order else None,
        unread=rejects,
    )


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


def _kind(path: Path) -> str:
    if not path.is_file():
        raise ArgumentError(f"{path} is not a file of changes; name files, not directories")
    suffix = path.with_suffix("").suffix if path.suffix.lower() == ".gz" else path.suffix
    if suffix.lower() not in _KINDS:
        raise ArgumentError(f"{path}: changes are read from {', '.join(_KINDS)} files")
    return _KINDS[suffix.lower()]


def _lines(paths: Iterable[Path], progress: Progress | None) -> Iterator[Line]:
    for path in paths:
        opener: Any = gzip.open if path.suffix.lower() == ".gz" else open
        with opener(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if progress is not None and number % 10_000 == 0:
                    progress(f"read {path.name}", number, None)
                yield str(path), number, line


def _table(path: Path, kind: str, rejects: list[Reject]) -> pa.Table:
    try:
        return _texts(path, rejects) if kind == "csv" else ds.dataset(path, format=kind).to_table()
    except (pa.ArrowInvalid, OSError) as error:
        raise SchemaError(f"{path} cannot be read as {kind}: {error}") from error


def _texts(path: Path, rejects: list[Reject]) -> pa.Table:
    """A CSV file with all its fields as texts: each is then read as its own column's type."""
    from pyarrow import csv

    def skip(row: Any) -> str:
        expected = f"it has {row.actual_columns} fields instead of {row.expected_columns}"
        rejects.append(Reject(str(path), row.number or 0, expected, row.text))
        return "skip"

    # Row numbers are known to one thread only.
    reading, parsing = csv.ReadOptions(use_threads=False), csv.ParseOptions(invalid_row_handler=skip)
    with csv.open_csv(path, reading, csv.ParseOptions(invalid_row_handler=lambda _: "skip")) as reader:
        names = reader.schema.names
    converting = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False)
    return csv.read_csv(path, reading, parsing, converting)
