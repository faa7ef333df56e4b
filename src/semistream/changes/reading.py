"""Files of changes: JSON lines, CSV, Parquet or Arrow; Debezium's envelopes or plain rows.

All records of all files are one set of changes: of each key the last one counts, wherever it stands.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.changes.debezium import debezium_changes
from semistream.changes.plain import Line, plain_changes, plain_lines
from semistream.changes.rows import OP, Changes, Reject
from semistream.changes.values import cast_column, cast_texts
from semistream.errors import ArgumentError, SchemaError, choose, local_path

FORMATS = ("debezium", "plain")
Progress = Callable[[str, int, int | None], None]
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
        return plain_lines(_lines(paths, progress), schema, key, op=op, order=order, constants=constants)
    rejects: list[Reject] = []
    table = pa.concat_tables([_table(path, kind, rejects) for path in paths], promote_options="default")
    for column, value in (constants or {}).items():
        table = table.append_column(column, pa.repeat(pa.scalar(value), table.num_rows))
    cast = cast_texts if kind == "csv" else cast_column
    name = str(paths[0]) if len(paths) == 1 else f"{len(paths)} files"
    return plain_changes(table, schema, key, op=op, order=order, name=name, cast=cast).with_rejects(rejects)


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
        if kind == "csv":
            return _texts(path, rejects)
        if kind == "parquet":
            import pyarrow.parquet as pq

            return pq.read_table(path)
        from pyarrow import feather

        return feather.read_table(path)
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
