"""What a warehouse promises: it takes a batch of several tables exactly once.

The tasks of a batch write Parquet files into `Warehouse.place`; nobody sees them. The driver then hands over their
names, `BatchWrites`, and `Warehouse.commit` makes them visible together with the batch's number. `BatchWrites` goes
into a redo log first: after a crash it is committed again, and a commit that is there already changes nothing.

>>> write = Write("sales", (StagedFile("part-0.parquet", rows=2, bytes=1204),), pa.schema([("id", pa.int64())]))
>>> batch = BatchWrites("shop", "0b7f61f3-d9f5-4942-945a-e7a65429d651", 7, (write,))
>>> BatchWrites.from_json(batch.to_json()) == batch
True
"""

import base64
import os
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from semistream.durable import sync_directory
from semistream.errors import ArgumentError, SchemaError, SinkError, choose
from semistream.stores.paged.manifest import StoreVersion
from semistream.warehouse.marks import check_app, check_query, mirror_mark, stream_marks, table_mark
from semistream.warehouse.schemas import stored_schema

Kind = Literal["append", "replace"]
RESERVED = "_semistream"  # tables of our own begin with it
LEDGER = f"{RESERVED}_ledger"


@dataclass(frozen=True)
class Limits:
    """What the columns of a warehouse can keep; rows beyond it go to a pipeline's quarantine."""

    years: tuple[int, int] | None = None  # of dates and times, both included
    nul: bool = True  # may a text hold a NUL, and bytes that are no UTF-8?
    field_bytes: int | None = None  # of a text or of bytes


@dataclass(frozen=True)
class StagedFile:
    """A Parquet file that a task wrote, not yet visible; its path may be relative to `Warehouse.place`."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class Write:
    """What a batch does to one table. After a "replace" the table holds just these rows."""

    table: str
    files: tuple[StagedFile, ...]
    schema: pa.Schema
    kind: Kind = "append"

    def __post_init__(self) -> None:
        choose("kind", self.kind, ("append", "replace"))

    @property
    def rows(self) -> int:
        """Rows in all files."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True)
class BatchWrites:
    """All that a batch does to a warehouse. ``app`` names the stream, ``query`` is the id of Spark's query."""

    app: str
    query: str
    batch: int
    writes: tuple[Write, ...]

    def __post_init__(self) -> None:
        check_app(self.app)
        object.__setattr__(self, "query", check_query(self.query))
        names = [write.table for write in self.writes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ArgumentError(f"batch {self.batch} writes twice to {', '.join(twice)}; give each table one Write")

    @property
    def changed(self) -> list[Write]:
        """What it does to the tables that differ afterwards."""
        return [write for write in self.writes if write.files or write.kind == "replace"]

    def marks(self, *, tables: bool) -> dict[str, int]:
        """What its commit leaves behind; the last one says of every table too how far it has come."""
        written = {table_mark(self.app, self.query, write.table): self.batch for write in self.changed if tables}
        return {**stream_marks(self.app, self.query, self.batch), **written}

    def to_json(self) -> dict[str, Any]:
        """As plain dictionaries, lists, strings and numbers."""
        writes = [
            {**vars(write), "files": [vars(file) for file in write.files], "schema": encode_schema(write.schema)}
            for write in self.writes
        ]
        return {**vars(self), "writes": writes}

    @staticmethod
    def from_json(body: dict[str, Any]) -> "BatchWrites":
        writes = []
        for write in body["writes"]:
            files = tuple(StagedFile(**file) for file in write["files"])
            writes.append(Write(**{**write, "files": files, "schema": decode_schema(write["schema"])}))
        return BatchWrites(**{**body, "writes": tuple(writes)})


class Warehouse(Protocol):
    """Tables that take each batch of a stream exactly once. Adding one is a file and a line: adding_a_warehouse.md."""

    limits: Limits = Limits()

    def place(self, table: str) -> Path:
        """The local directory into which tasks write a table's Parquet files (see `stage`)."""

    def check(self, app: str, query: str, replaces: str | None = None) -> int:
        """The last batch of the stream that is there wholly, -1 for none; refuses when another query owns it.
        ``replaces`` is the id, or its beginning, of the query whose place this one may take, in later commits too.
        """

    def prepare(self, table: str, schema: pa.Schema) -> None:
        """Make the table, or refuse a schema that does not fit the one that is there."""

    def check_table(self, table: str) -> None:
        """Refuse a name that no table can have; nothing is made."""

    def ready(self, batch: BatchWrites) -> None:
        """Refuse a batch that `commit` would refuse, or that is there; nothing is written. Asked before a redo log."""

    def visible(self, batch: BatchWrites) -> list[str]:
        """The tables that show the batch, wholly or in part."""

    def commit(self, batch: BatchWrites) -> bool:
        """Make a batch visible in all its tables; False when it was there. What a crash left half done is finished."""

    def mirror(
        self, table: str, key: list[str], rows: pa.Table, version: int, *, store: StoreVersion | None = None
    ) -> bool:
        """Bring a dimension to a version, which is this one of the ``store``: ``rows`` replace all rows with their
        keys. False when the table mirrors that version or a later one already.
        """

    def mark(self, table: str, name: str) -> int | None:
        """A mark that is kept with a table; a table that is gone has none."""

    def mirrored(self, table: str) -> int:
        """The version that the table mirrors, -1 for none."""
        version = self.mark(table, mirror_mark(table))
        return -1 if version is None else version

    def mirrored_store(self, table: str) -> int | None:
        """The number that stands for the store that the table mirrors (`marks.store_number`), if it is known."""
        return self.mark(table, mirror_mark(table, "store"))

    def mirrored_digest(self, table: str, version: int) -> int | None:
        """The checksum of this version of the store, if the table mirrors it and it is known."""
        content = self.mark(table, mirror_mark(table, "digest"))
        return None if content is None or content >> 32 != version else content & 0xFFFF_FFFF

    def files(self, table: str) -> set[str]:
        """The names of the files in `place` that are part of the table: they must not be removed."""

    def read(self, table: str) -> pa.Table:
        """All rows of a table, for people and tests."""

    def describe(self) -> str:
        """Where it is, for people; never a password."""


@dataclass(frozen=True)
class WarehouseForm:
    """A warehouse in a pipeline's file: a word of its own in the table ``sink``, and settings beside it."""

    word: str
    open: Callable[..., Warehouse]  # by the word's value, the file's directory, one for staged files, the settings
    settings: tuple[str, ...] = ()


def stage(
    directory: Path, rows: pa.Table | Iterable[pa.RecordBatch], schema: pa.Schema, prefix: str = "part"
) -> StagedFile:
    """Write rows into a new Parquet file of ``directory``, durable when this returns. For tasks and tests."""
    path = directory / f"{prefix}-{uuid.uuid4().hex}.parquet"
    columns, written = stored_schema(schema), 0
    with path.open("xb") as file:
        with pq.ParquetWriter(file, columns, compression="zstd", write_page_checksum=True) as writer:
            for batch in rows.to_batches() if isinstance(rows, pa.Table) else rows:
                writer.write_table(pa.Table.from_batches([batch]).select(columns.names).cast(columns))
                written += batch.num_rows
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    sync_directory(directory)
    return StagedFile(path.name, written, size)


def made(path: Path) -> Path:
    """A directory for staged files, which is made if it is not there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SinkError(
            f"{path} cannot be made ({error.strerror}); give a directory in which this user may write"
        ) from error
    return path


def inside(place: Path, file: StagedFile) -> Path:
    """Where a staged file should be; an error when its path leads out of ``place``."""
    path = place / file.path
    # The parent is resolved, not the file: a link in its place would be read instead of what the task wrote.
    if path.is_symlink() or not path.parent.resolve().is_relative_to(place.resolve()) or path.name in ("", ".", ".."):
        raise SinkError(f"{file.path} is not a file under {place}, where the tasks write")
    return path


def staged_path(place: Path, file: StagedFile) -> Path:
    """Where a staged file is; an error when it is gone or not as the task left it."""
    path = inside(place, file)
    try:
        size = path.stat().st_size
    except OSError as error:
        raise SinkError(
            f"{path} cannot be read ({error.strerror}), and the batch needs it. Restore it, or, "
            "if it is gone for good, take the batch back with `semistream undo`"
        ) from error
    if size != file.bytes:
        raise SinkError(f"{path} is damaged: it has {size} bytes, and had {file.bytes} when it was written")
    return path


def directory_name(table: str) -> str:
    """A table's name that may name a directory, or an error. What URLs and shells give a meaning to is left out."""
    plain = isinstance(table, str) and all(c.isalnum() or c in " -._" for c in table)
    if not plain or not table or table[0] in "._- " or table[-1] in " ." or len(table.encode()) > 200:
        raise ArgumentError(
            f"table={table!r} cannot name a directory; use letters, digits, space, '-', '_' and '.', beginning with a "
            "letter or a digit, at most 200 bytes"
        )
    return table


def changed_keys(table: str, key: list[str], rows: pa.Table) -> pa.Table:
    """The distinct keys that a mirrored version touches, as the table keeps them; NULL is no key."""
    missing = [name for name in key if name not in rows.column_names]
    if missing or not key:
        raise SchemaError(f"{table}: the rows to be mirrored have no key column {', '.join(missing) or '(none given)'}")
    columns = stored_schema(pa.schema([rows.schema.field(name) for name in key]))
    keys = rows.select(key).cast(columns).group_by(key, use_threads=False).aggregate([])
    nulls = [name for name in key if keys.column(name).null_count]
    if nulls:
        raise SchemaError(f"{table}: key column {', '.join(nulls)} holds NULL, which is no key; leave those rows out")
    return keys


def encode_schema(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def decode_schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
