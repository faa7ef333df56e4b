"""Anything that holds a master table, as a stream of Arrow batches."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.dataset as ds

from semistream.errors import ArgumentError, SchemaError, local_path

Progress = Callable[[str, int, int | None], None]  # what is done, how much of it so far, and of how much
Rows = TypeVar("Rows", bound=Sized)
_BATCH_ROWS = 1 << 16
_FORMATS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".gz": "csv", ".arrow": "ipc", ".feather": "ipc"}


@dataclass(frozen=True)
class TableInput:
    """A table as batches of one schema, and how many rows they hold if that is known."""

    schema: pa.Schema
    batches: Callable[[], Iterator[pa.RecordBatch]]
    rows: int | None = None


def open_source(source: object, columns: list[str] | None) -> TableInput:
    """Parquet, CSV or Arrow files, Arrow tables or batches, pandas, Polars: anything that can be turned into Arrow."""
    if isinstance(source, str | os.PathLike):
        return _files(local_path("source", source), columns)
    if isinstance(source, pa.RecordBatch):
        source = pa.Table.from_batches([source])
    if isinstance(source, pa.Table):
        return _stream(source.schema, source.to_batches(max_chunksize=_BATCH_ROWS), columns, source.num_rows)
    if type(source).__module__.startswith("pandas"):
        return open_source(pa.Table.from_pandas(source, preserve_index=False), columns)
    if hasattr(source, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(source)
        rows = len(source) if hasattr(source, "__len__") else None
        return _stream(reader.schema, reader, columns, rows)
    if isinstance(source, Iterable):
        items = iter(source)
        first = next(items, None)
        if not isinstance(first, pa.RecordBatch):
            got = "nothing" if first is None else type(first).__name__
            raise ArgumentError(
                f"an iterable source must give Arrow record batches, this one gave {got}; "
                "for an empty master give an empty pyarrow.Table, which has a schema"
            )
        return _stream(first.schema, itertools.chain([first], items), columns, None)
    raise ArgumentError(
        f"source of type {type(source).__name__} cannot be read; give a path to Parquet, CSV or Arrow files, an Arrow "
        "table or batches, a pandas or Polars DataFrame, or a Spark DataFrame"
    )


def reported(
    pieces: Iterable[Rows], phase: str, total: int | Callable[[], int] | None, progress: Progress | None
) -> Iterator[Rows]:
    """The same batches or blocks, with a report of the rows so far after each; a function gives a total known later."""
    seen = 0
    for piece in pieces:
        yield piece
        seen += len(piece)
        if progress is not None:
            progress(phase, seen, total() if callable(total) else total)


def _files(path: Path, columns: list[str] | None) -> TableInput:
    if not path.exists():
        raise ArgumentError(f"source {path} does not exist")
    kind = _FORMATS.get(path.suffix.lower(), "parquet") if path.is_file() else _kind_of_directory(path)
    try:
        dataset = ds.dataset(str(path), format=kind)
        names = _checked(dataset.schema, columns)
        schema = pa.schema([dataset.schema.field(name) for name in names])
        rows = dataset.count_rows() if kind != "csv" else None
    except (pa.ArrowInvalid, OSError) as error:
        raise SchemaError(f"source {path} cannot be read as {kind}: {error}") from error

    def batches() -> Iterator[pa.RecordBatch]:
        # Little is read ahead: the caller's memory bound counts, not the last bit of speed.
        scanner = dataset.scanner(columns=names, batch_size=_BATCH_ROWS, batch_readahead=2, fragment_readahead=1)
        try:
            yield from scanner.to_batches()
        except pa.ArrowInvalid as error:
            raise SchemaError(f"source {path}: {error}") from error

    return TableInput(schema, batches, rows)


def _kind_of_directory(path: Path) -> str:
    kinds = {
        _FORMATS[file.suffix.lower()]
        for file in path.rglob("*")
        if file.suffix.lower() in _FORMATS and not file.name.startswith((".", "_"))
    }
    if len(kinds) != 1:
        found = ", ".join(sorted(kinds)) or "none"
        raise ArgumentError(f"source {path}: expected files of one kind (Parquet, CSV or Arrow), found: {found}")
    return kinds.pop()


def _stream(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], columns: list[str] | None, rows: int | None
) -> TableInput:
    names = _checked(schema, columns)

    def selected() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            missing = [name for name in names if name not in batch.schema.names]
            if missing:
                raise SchemaError(f"batch {number} of the source has no column {missing[0]!r}; the first had {names}")
            yield batch.select(names)

    return TableInput(pa.schema([schema.field(name) for name in names]), selected, rows)


def _checked(schema: pa.Schema, columns: list[str] | None) -> list[str]:
    names = list(schema.names) if columns is None else list(dict.fromkeys(columns))
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise ArgumentError(f"the source has no column {', '.join(map(repr, missing))}; its columns are {schema.names}")
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1 and name in names})
    if twice:
        raise SchemaError(f"the source has several columns named {', '.join(map(repr, twice))}; rename them")
    return names
