"""What a batch's input is: told apart on replay, and compared with the declared schema."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq

from semistream.errors import SchemaError, StateError
from semistream.pipeline.sources import Source


def input_of(checkpoint: Path, number: int) -> str:
    """A digest of what Spark's log says that a batch reads.

    A batch that was decided is not computed again; so its number must never stand for other rows, as it would after
    an older copy of the checkpoint was put back.
    """
    offsets = (checkpoint / "offsets" / str(number)).read_text(encoding="utf-8").splitlines()
    said = "\n".join(offsets[2:]) + "".join(files_of(checkpoint, number))  # after version and the time of the batch
    return hashlib.sha256(said.encode()).hexdigest()[:32]


def files_of(checkpoint: Path, number: int) -> list[str]:
    found = []
    for log in sorted((checkpoint / "sources").glob("[0-9]*")):
        for file in (log / str(number), log / f"{number}.compact"):
            if file.exists():
                found += [entry["path"] for entry in _entries(file) if entry["batchId"] == number]
    return sorted(found)


def check_not_moved(source: Source, checkpoint: Path) -> None:
    """Refuse another directory than the one whose files Spark has read: it knows them by their whole path.

    Of the last batch it wants to see the files again when it starts; others of the same names it would load once more.
    """
    log = sorted((checkpoint / "sources" / "0").glob("[0-9]*"), key=lambda file: int(file.name.partition(".")[0]))
    read = [_local(entry["path"]) for file in log[-1:] for entry in _entries(file)]
    if source.path is None or not read or read[-1].is_relative_to(os.path.normpath(source.path)):
        return
    raise StateError(
        f"path={str(source.path)!r} is not the directory that was read so far: {read[-1]} was loaded, and Spark knows "
        "files by their whole path. Give the old path; if its files were moved, put a link to them there"
    )


def check_drift(source: Source, checkpoint: Path, number: int, new_columns: str) -> None:
    """Refuse Parquet files whose columns are not the declared ones; Spark would read NULLs in their place."""
    declared = source.columns() if source.format == "parquet" else None
    if declared is None:
        return
    for uri in files_of(checkpoint, number):
        path = _local(uri)
        try:
            found = pq.read_schema(path)
        except (OSError, pa.ArrowException) as error:
            raise SchemaError(
                f"{path} cannot be read as Parquet ({error}). Nothing of batch {number} is written; mend the file"
            ) from error
        said = [f"{item.name} ({item.type}) is gone" for item in declared if item.name not in found.names]
        said += [
            f"{item.name} was {item.type} and is {found.field(item.name).type}"
            for item in declared
            if item.name in found.names and not _same(item.type, found.field(item.name).type)
        ]
        if new_columns == "refuse":
            said += [f"{item.name} ({item.type}) is new" for item in found if item.name not in declared.names]
        if said:
            raise SchemaError(
                f"{path}: its columns are not those of the source: {'; '.join(said)}. Nothing of batch {number} is "
                "written; mend the file, or declare the new schema and start again (new columns can be let pass by "
                "new_columns='ignore')"
            )


def _entries(file: Path) -> list[dict[str, Any]]:
    entries = map(json.loads, file.read_text(encoding="utf-8").splitlines()[1:])
    # Other sources keep other things there: the rate source a number, Kafka its offsets.
    return [entry for entry in entries if isinstance(entry, dict) and "path" in entry and "batchId" in entry]


def _local(uri: str) -> Path:
    return Path(unquote(urlparse(uri).path))


def _same(declared: pa.DataType, found: pa.DataType) -> bool:
    if pa.types.is_timestamp(declared) and pa.types.is_timestamp(found):
        return (declared.tz is None) == (found.tz is None)
    return bool(declared.equals(found))
