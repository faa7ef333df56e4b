"""Plain Parquet files that take each batch exactly once, for readers of their manifest.

    /data/warehouse/
      manifests/000000000001.json …     one a commit: files of all tables and the batch's number
      sales/part-….parquet              written by the tasks, a part of the table once a manifest names it

One manifest is one commit, for all tables of a batch at once. Whoever reads the directory instead of the manifest also
sees files of batches that were not committed, or that a retry replaced: use `read` or `files_of`.

>>> from semistream.warehouse import parquet
>>> parquet.read("/data/warehouse/sales")  # doctest: +SKIP
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.errors import ArgumentError, local_path
from semistream.failpoints import reach
from semistream.warehouse import SinkError, StaleWriterError
from semistream.warehouse.contract import (
    BatchWrites,
    Limits,
    StagedFile,
    changed_keys,
    decode_schema,
    directory_name,
    encode_schema,
    made,
    stage,
    staged_path,
)
from semistream.warehouse.marks import (
    Marks,
    Streams,
    check_query,
    mirror_mark,
    mirror_marks,
    mirror_store_mark,
    stream_marks,
)
from semistream.warehouse.parquet_files import absent, read_file
from semistream.warehouse.parquet_log import EMPTY, Content, State, load, publish
from semistream.warehouse.schemas import check_new_columns, check_schema, stored_schema, types_of

_TRIES = 20  # another stream's commit takes milliseconds


class ParquetWarehouse:
    """Parquet tables under the directory ``root``. ``evolve`` lets `prepare` add columns to a table."""

    limits = Limits()

    def __init__(self, root: str | os.PathLike[str], *, evolve: bool = False) -> None:
        self.root = local_path("root", root).absolute()
        self.evolve = evolve
        self._streams = Streams(str(root))
        self._known = EMPTY

    def place(self, table: str) -> Path:
        """The table's own directory."""
        return made(self.root / _table_name(table))

    def check(self, app: str, query: str, replaces: str | None = None) -> int:
        """The last batch of the stream; see `Warehouse.check`."""
        stream, query = self._streams.of(app, replaces), check_query(query)
        marks = stream.marks(self._state().marks.get, query)
        stream.is_foreign(marks, query)
        return marks.done

    def prepare(self, table: str, schema: pa.Schema) -> None:
        """Make the table, or check its columns."""
        path = self.place(table)

        def change(state: State) -> State | None:
            there = state.tables.get(table)
            if there is None:
                return state.changed({}, {table: Content(encode_schema(stored_schema(schema)))})
            columns = decode_schema(there.schema)
            new = check_schema(path, types_of(columns), types_of(schema), may_add=self.evolve)
            check_new_columns(path, schema, new)
            if not new:
                return None
            for name in new:
                columns = columns.append(stored_schema(schema).field(name))
            return state.changed({}, {table: Content(encode_schema(columns), there.files)})

        self._publish(change, {"prepare": table})

    def check_table(self, table: str) -> None:
        """It must name a directory."""
        _table_name(table)

    def ready(self, batch: BatchWrites) -> None:
        """All that `commit` checks; see `Warehouse.ready`."""
        stream, state = self._streams.of(batch.app), self._state()
        stream.check_new(stream.marks(state.marks.get, batch.query), batch.query, batch.batch)
        self._written(state, batch)

    def visible(self, batch: BatchWrites) -> list[str]:
        """All of them or none: a manifest is one commit."""
        marks = self._streams.of(batch.app).marks(self._state().marks.get, batch.query)
        return [write.table for write in batch.writes] if marks.done >= batch.batch else []

    def commit(self, batch: BatchWrites) -> bool:
        """One manifest for all tables; see `Warehouse.commit`."""
        stream = self._streams.of(batch.app)
        before: Marks | None = None

        def change(state: State) -> State | None:
            nonlocal before
            marks = stream.marks(state.marks.get, batch.query)
            if before is not None and marks != before:
                raise stream.stale(batch.batch)
            if stream.holds(marks, batch.query, batch.batch):
                return None
            before = marks
            return state.changed(stream_marks(batch.app, batch.query, batch.batch), self._written(state, batch))

        about = {"app": batch.app, "query": batch.query, "batch": batch.batch}
        if not self._publish(change, about, "warehouse"):
            return False
        stream.seen[batch.query] = batch.batch
        return True

    def mirror(
        self, table: str, key: list[str], rows: pa.Table, deleted: pa.Table | None, version: int, *, store: str = ""
    ) -> bool:
        """Write anew the files that hold changed keys; see `Warehouse.mirror`."""
        keys = changed_keys(table, key, rows, deleted)
        if version <= self.mirrored(table):
            return False
        self.prepare(table, rows.schema)
        before: int | None = None

        def change(state: State) -> State | None:
            nonlocal before
            mirrored = state.marks.get(mirror_mark(table), -1)
            if before is not None and mirrored != before:
                raise StaleWriterError(
                    f"{self.root}: another run mirrored version {mirrored} of {table!r} while version {version} was on "
                    "its way, so this one was not written. Stop one of the two"
                )
            if version <= mirrored:
                return None
            before = mirrored
            content = self._merged(table, state.tables[table], keys, rows)
            return state.changed(mirror_marks(table, version, store), {table: content})

        return self._publish(change, {"mirror": table, "version": version}, "mirror")

    def mirrored(self, table: str) -> int:
        """The version that the table mirrors, -1 for none."""
        return self._state().marks.get(mirror_mark(_table_name(table)), -1)

    def mirrored_store(self, table: str) -> int | None:
        """The store that the table mirrors; see `Warehouse.mirrored_store`."""
        return self._state().marks.get(mirror_store_mark(_table_name(table)))

    def files(self, table: str) -> set[str]:
        """The files that make up the table now."""
        there = self._state().tables.get(_table_name(table))
        return set() if there is None else {Path(file.path).name for file in there.files}

    def read(self, table: str) -> pa.Table:
        """All rows of a table."""
        return _read_table(self.root, self._state(), table)

    def describe(self) -> str:
        """Where it is, for people."""
        return f"Parquet files in {self.root}"

    def __repr__(self) -> str:
        return f"ParquetWarehouse({str(self.root)!r})"

    def _state(self) -> State:
        self._known = load(self.root, self._known)
        return self._known

    def _publish(self, change: Callable[[State], State | None], about: Mapping[str, Any], point: str = "") -> bool:
        """Apply a change to the newest state and make the result the next one; again when a writer came between."""
        for _ in range(_TRIES):
            state = self._state()
            after = change(state)
            if after is None:
                return False
            if point:
                reach(f"{point}.before_commit")
            try:
                publish(self.root, state, after, about)
            except FileExistsError:
                continue
            except OSError as error:
                raise SinkError(f"{self.root} cannot be written ({error.strerror}); nothing of it changed") from error
            if point:
                reach(f"{point}.committed")
            self._known = after
            return True
        raise SinkError(f"{self.root}: {_TRIES} times another writer came first; are there many of them?")

    def _written(self, state: State, batch: BatchWrites) -> dict[str, Content]:
        tables = {}
        for write in batch.writes:
            path = self.place(write.table)
            there = state.tables.get(write.table)
            if there is None:
                raise SinkError(f"{path} is no table; call prepare({write.table!r}, schema) first")
            check_schema(path, types_of(decode_schema(there.schema)), types_of(write.schema), may_lack=self.evolve)
            come = tuple(
                StagedFile(str(staged_path(path, file).relative_to(path)), file.rows, file.bytes)
                for file in write.files
            )
            tables[write.table] = Content(there.schema, come if write.kind == "replace" else there.files + come)
        return tables

    def _merged(self, table: str, there: Content, keys: pa.Table, rows: pa.Table) -> Content:
        """The files without the rows of these keys, and a new one with the rows that come; other files stay."""
        path, schema = self.place(table), decode_schema(there.schema)
        files: list[StagedFile] = []
        for file in there.files:
            stays = absent(read_file(path, file, schema, columns=keys.column_names), keys)
            if stays.all():
                files.append(file)
            elif stays.any():
                files.append(stage(path, read_file(path, file, schema).filter(pa.array(stays)), schema))
        if rows.num_rows:
            files.append(stage(path, rows, rows.schema))
        return Content(there.schema, tuple(files))


def read(path: str | os.PathLike[str]) -> pa.Table:
    """All rows of the table in the directory ``path``, as the newest manifest of its warehouse has them."""
    place = local_path("path", path)
    return _read_table(place.parent, load(place.parent), place.name)


def files_of(path: str | os.PathLike[str]) -> list[Path]:
    """The files that make up the table in the directory ``path`` now, for any reader of Parquet."""
    place = local_path("path", path)
    return [place / file.path for file in _content(place.parent, load(place.parent), place.name).files]


def _table_name(table: str) -> str:
    if table == "manifests":
        raise ArgumentError("table='manifests' is the directory of the manifests; choose another name")
    return directory_name(table)


def _content(root: Path, state: State, table: str) -> Content:
    if table not in state.tables:
        listed = ", ".join(sorted(state.tables)) or "none"
        raise SinkError(f"{root} has no Parquet table {table!r}; its manifests know: {listed}")
    return state.tables[table]


def _read_table(root: Path, state: State, table: str) -> pa.Table:
    content = _content(root, state, table)
    schema = decode_schema(content.schema)
    parts = [read_file(root / table, file, schema) for file in content.files]
    return pa.concat_tables(parts) if parts else schema.empty_table()
