"""Shed rows on disk: ``batch=N/part-P.parquet`` in a directory, each file complete or not there.

Its metadata say all that is needed to load it later (`ShedPart`). Parquet has checksums for its pages only: a bit
flipped elsewhere may give other rows without an error. So there are eight digits in the footer's metadata, where the
checksum of all other bytes is written when the file is complete. Other readers of Parquet pass over it.
"""

import contextlib
import io
import itertools
import json
import os
import re
import struct
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from semistream.durable import private, sync_directory
from semistream.errors import SchemaError, SheddingError
from semistream.lookup.spec import LookupSpec

_META = "semistream"
_SEAL = "semistream-seal"
_MARK, _OPEN = b"semistream-seal:", b"00000000"  # what is in the metadata until the checksum is known
_TAIL = struct.Struct("<I4s")  # how a Parquet file ends: the footer's length, and its magic
_CHUNK = 1 << 20
_FORMAT = 2
_BATCH = re.compile(r"batch=(\d+)")
_PART = re.compile(r"part-(\d+)\.parquet")


@dataclass(frozen=True)
class ShedPart:
    """What a file says of itself: the place of its rows in the stream, and the join that they have missed."""

    query: str
    batch: int
    part: int
    source: str  # "join" or "enrich"
    strategy: str
    store: str
    master_version: int
    spec: LookupSpec
    on_miss: str = "null"
    ignore_case: bool = False
    weight: str | None = None
    store_id: str = ""
    digest: int | None = None  # of the master's version
    rows_in: int = 0
    rows: int = 0
    path: Path = field(default=Path(), compare=False)


def check_storable(schema: pa.Schema) -> None:
    """Refuse columns that Parquet cannot hold, before the stream runs."""
    import pyarrow.parquet as pq

    twice = [name for name in schema.names if schema.names.count(name) > 1]
    if twice:
        raise SchemaError(
            f"the stream has several columns {twice[0]!r}, and rows that are shed are found again by name; rename or "
            "drop all but one of them"
        )
    for item in schema:
        try:
            pq.ParquetWriter(io.BytesIO(), pa.schema([item])).close()
        except (pa.ArrowException, NotImplementedError) as error:
            raise SchemaError(
                f"stream column {item.name!r} of type {item.type} cannot be shed, since Parquet cannot hold it "
                f"({error}); cast it, or leave it out of the stream"
            ) from error


class PartWriter:
    """One file in the making."""

    def __init__(self, root: Path, about: ShedPart, schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        directory = root / f"batch={about.batch}"
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.about = about
        self.path = directory / f"part-{about.part}.parquet"
        self.rows = self.rows_in = 0
        self._draft = directory / f".{self.path.name}.{uuid.uuid4().hex[:12]}"
        self._file = open(self._draft, "x+b", opener=private)  # noqa: SIM115 - closed by publish or close
        self._writer = pq.ParquetWriter(self._file, schema)

    def add(self, rows: pa.RecordBatch, rows_in: int) -> None:
        """The rows shed of ``rows_in`` rows that came in."""
        self.rows += rows.num_rows
        self.rows_in += rows_in
        if rows.num_rows:
            self._writer.write_batch(rows)

    def publish(self) -> None:
        """Make the file durable and visible. One that is there already must hold the same: it is of a replay."""
        about = {item.name: getattr(self.about, item.name) for item in fields(self.about) if item.name != "path"}
        about |= {"spec": self.about.spec.as_json(), "rows_in": self.rows_in, "rows": self.rows, "format": _FORMAT}
        self._writer.add_key_value_metadata({_META: json.dumps(about), _SEAL: (_MARK + _OPEN).decode()})
        self._writer.close()
        place = _seal_place(self._file)
        digits = _checksum(self._file, place)
        self._file.seek(place)
        self._file.write(digits)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if self.path.exists():
            self._compare()
        os.rename(self._draft, self.path)  # noqa: PTH104
        sync_directory(self.path.parent)
        sync_directory(self.path.parent.parent)

    def _compare(self) -> None:
        old, new = read_part(self.path), read_part(self._draft)
        if (old.query, old.rows_in, old.rows) == (new.query, new.rows_in, new.rows):
            pairs = itertools.zip_longest(read_rows(self.path), read_rows(self._draft))
            if all(a is not None and b is not None and a.serialize().equals(b.serialize()) for a, b in pairs):
                return  # equal bytes: NaN is the same as NaN here
        raise SheddingError(
            f"{self.path} is there already and holds other rows (query {old.query}, {old.rows:,} shed of "
            f"{old.rows_in:,}) than this run would shed (query {new.query}, {new.rows:,} of {new.rows_in:,}). Either "
            "the directory belongs to another query: reconcile it and give this one its own. Or the batch is replayed "
            "and its rows come in another order or other partitions (a shuffle before enrich, another number of "
            f"cores): run it as before; if the warehouse has nothing of batch {new.batch}, delete "
            f"{self.path.parent} and start again"
        )

    def close(self) -> None:
        """Leave nothing half-written behind; after `publish` there is nothing to do."""
        if not self._file.closed:
            with contextlib.suppress(Exception):
                self._writer.close()
            self._file.close()
        self._draft.unlink(missing_ok=True)


def batches_in(root: Path) -> dict[int, list[Path]]:
    """The files of each batch, by its number."""
    found: dict[int, list[Path]] = {}
    for directory in root.iterdir() if root.is_dir() else ():
        if match := _BATCH.fullmatch(directory.name):
            parts = [(int(m.group(1)), p) for p in directory.iterdir() if (m := _PART.fullmatch(p.name))]
            found[int(match.group(1))] = [path for _, path in sorted(parts)]
    return dict(sorted(found.items()))


def read_part(path: Path, *, whole: bool = True) -> ShedPart:
    """What a file says of itself; without ``whole`` only its footer is read, and the checksum is not verified."""
    with _readable(path, whole=whole) as file:
        about = json.loads((file.metadata.metadata or {})[_META.encode()])
        if about["format"] != _FORMAT:
            raise SheddingError(f"{path} has format {about['format']}; this semistream reads format {_FORMAT}")
        del about["format"]
        return ShedPart(**about | {"spec": LookupSpec.from_json(about["spec"]), "path": path})


def read_rows(path: Path) -> Iterator[pa.RecordBatch]:
    """The rows of a file."""
    with _readable(path) as file:
        for batch in file.iter_batches():
            yield batch.replace_schema_metadata(None)


@contextlib.contextmanager
def _readable(path: Path, *, whole: bool = True) -> Iterator[Any]:
    import pyarrow.parquet as pq

    with path.open("rb") as bytes_of_file:
        try:
            if whole:
                place = _seal_place(bytes_of_file)
                bytes_of_file.seek(place)
                if bytes_of_file.read(len(_OPEN)) != _checksum(bytes_of_file, place):
                    raise ValueError("its checksum does not fit")
            with pq.ParquetFile(bytes_of_file) as file:
                yield file
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            raise SheddingError(f"{path} is damaged or holds no shed rows ({error}); restore it from a copy") from error


def _seal_place(file: IO[bytes]) -> int:
    """Where the digits of the checksum are: after the last mark in the footer."""
    size = file.seek(0, os.SEEK_END)
    if size < _TAIL.size:
        raise ValueError("it is cut short")
    file.seek(size - _TAIL.size)
    length, _ = _TAIL.unpack(file.read(_TAIL.size))
    start = size - _TAIL.size - length
    if start < 0:
        raise ValueError("its footer is cut short")
    file.seek(start)
    found = file.read(length).rfind(_MARK)
    if found < 0:
        raise ValueError("it has no checksum, so semistream did not write it")
    return start + found + len(_MARK)


def _checksum(file: IO[bytes], place: int) -> bytes:
    """Of all bytes but its own eight digits."""
    check = 0
    for start, end in ((0, place), (place + len(_OPEN), file.seek(0, os.SEEK_END))):
        file.seek(start)
        for size in range(end - start, 0, -_CHUNK):
            check = zlib.crc32(file.read(min(_CHUNK, size)), check)
    return f"{check:08x}".encode()
