"""A workload as files: ``master/`` and ``stream/`` with numbered files, and ``workload.json`` that says what they are.

Every file bears its name once it is complete, so a stream may be read while it is written. Files are written batch by
batch: memory holds one batch, whatever the number of rows.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from semistream.errors import ArgumentError, choose, local_path
from semistream_lab.workloads.contract import Workload
from semistream_lab.workloads.json_lines import json_lines
from semistream_lab.workloads.numbered import slices
from semistream_lab.workloads.registry import settings
from semistream_lab.workloads.reports import write_reports

if TYPE_CHECKING:
    from semistream.stores.paged.store import Progress

FORMATS = ("parquet", "csv", "json", "reports")
_BATCH_ROWS = 1 << 17
_SUFFIXES = {"parquet": ".parquet", "csv": ".csv", "json": ".json", "reports": ".txt"}


def write_workload(
    workload: Workload,
    directory: str | Path,
    stream_rows: int,
    file_format: str = "parquet",
    *,
    rows_per_file: int = 1_000_000,
    replace: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write the master and the first ``stream_rows`` rows of the stream; the directory.

    ``file_format="reports"`` is the fixed-width format of weather reports, for that workload only.
    """
    choose("file_format", file_format, FORMATS)
    if file_format == "reports" and workload.name != "weather":
        raise ArgumentError(f"file_format='reports' is for the workload weather, not for {workload.name}")
    for name, value, least in (("stream_rows", stream_rows, 0), ("rows_per_file", rows_per_file, 1)):
        if value < least:
            raise ArgumentError(f"{name}={value} must be at least {least}")
    workload.prepare(progress)
    if workload.stream_rows is not None and stream_rows > workload.stream_rows:
        raise ArgumentError(
            f"stream_rows={stream_rows:,}: the stream of this workload has {workload.stream_rows:,} rows"
        )
    directory = local_path("directory", directory)
    _make_room(directory, replace=replace)
    parts = (("master", workload.master_slice, workload.master_rows), ("stream", workload.stream, stream_rows))
    for part, read, rows in parts:
        _write_part(directory / part, part, read, rows, rows_per_file, file_format, progress)
    _describe(workload, directory, stream_rows, file_format)
    return directory


def _make_room(directory: Path, *, replace: bool) -> None:
    ours = [directory / name for name in ("master", "stream", "workload.json")]
    there = [path for path in ours if path.exists()]
    if there and not replace:
        raise ArgumentError(f"{there[0]} is there already; give another directory, or replace=True")
    for path in there:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    directory.mkdir(parents=True, exist_ok=True)


def _write_part(
    place: Path,
    name: str,
    read: Callable[[int, int], pa.RecordBatch],
    rows: int,
    rows_per_file: int,
    file_format: str,
    progress: Progress | None,
) -> None:
    place.mkdir()
    done = 0

    def counted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        nonlocal done
        for batch in batches:
            yield batch
            done += batch.num_rows
            if progress is not None:
                progress(name, done, rows)

    for number, start in enumerate(range(0, rows, rows_per_file)):
        batches = counted(slices(read, min(rows_per_file, rows - start), _BATCH_ROWS, start))
        _write_file(place / f"part-{number:05d}{_SUFFIXES[file_format]}", read(0, 0).schema, batches, file_format)


def _write_file(path: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch], file_format: str) -> None:
    if file_format == "reports":
        write_reports(batches, path)
        return
    draft = path.with_name(f".{path.name}.part")  # Spark and Arrow pass over names that begin with a dot
    with draft.open("wb") as file:
        write = {"parquet": _parquet, "csv": _csv, "json": _json}[file_format]
        write(file, schema, batches)
    draft.rename(path)


def _parquet(file: IO[bytes], schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    with pq.ParquetWriter(file, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _csv(file: IO[bytes], schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    with pyarrow.csv.CSVWriter(file, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _json(file: IO[bytes], _: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    for batch in batches:
        file.write(json_lines(batch))


def _describe(workload: Workload, directory: Path, stream_rows: int, file_format: str) -> None:
    said: dict[str, Any] = {
        "workload": workload.name,
        "settings": settings(workload),
        "master_rows": workload.master_rows,
        "stream_rows": stream_rows,
        "format": file_format,
        "key": workload.key,
        "on": workload.on,
    }
    (directory / "workload.json").write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
