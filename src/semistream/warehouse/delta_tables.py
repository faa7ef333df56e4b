"""A directory of Delta tables that takes each batch exactly once, written by delta-rs, so without any jar.

The tasks write their Parquet files into the tables' own directories; the driver's commit only adds their names to the
log, so a large batch does not pass through its memory. A commit of Delta is for one table. So each table's commit
carries the batch's number, and a table of our own, the ledger, is committed last: a batch is there wholly when the
ledger says so. After a crash between two tables the batch is committed again, and the tables that have it pass over it.

The ledger also remembers the last batch of each table: a table that was deleted or set back is missed.

>>> warehouse = DeltaWarehouse("/data/warehouse")  # doctest: +SKIP
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semistream.errors import MissingBatchesError, SinkError, local_path
from semistream.failpoints import reach
from semistream.warehouse import delta_log
from semistream.warehouse.contract import (
    LEDGER,
    BatchWrites,
    Form,
    Warehouse,
    Write,
    changed_keys,
    directory_name,
    made,
    staged_path,
)
from semistream.warehouse.delta_log import create_table, marks_in, open_table
from semistream.warehouse.marks import Marks, Streams, check_query, mirror_mark, mirror_marks, stale_mirror, table_mark
from semistream.warehouse.schemas import check_schema, stored_schema, types_of

if TYPE_CHECKING:
    from deltalake import DeltaTable

_LEDGER_SCHEMA = pa.schema([("batch", pa.int64())])  # it has no rows: its log holds the marks, and the counts to read


class DeltaWarehouse(Warehouse):
    """Delta tables under the directory ``root``, one a name. ``evolve`` lets `prepare` add columns to a table."""

    def __init__(self, root: str | os.PathLike[str], *, evolve: bool = False) -> None:
        self.root = local_path("root", root).absolute()
        self.evolve = evolve
        self._streams = Streams(str(root))

    def place(self, table: str) -> Path:
        """The table's own directory."""
        return made(self._path(table))

    def check(self, app: str, query: str, replaces: str | None = None) -> int:
        stream, query = self._streams.of(app, replaces), check_query(query)
        ledger = open_table(self.root / LEDGER)
        marks = marks_in(ledger, stream, query)
        stream.is_foreign(marks, query)
        if marks.owner is None and self.root.is_dir():  # a batch that was begun, or a ledger that was deleted
            for path in sorted(self.root.iterdir()):
                stream.is_foreign(marks_in(open_table(path), stream, query), query)
        return marks.done

    def prepare(self, table: str, schema: pa.Schema) -> None:
        path = self._path(table)
        there = open_table(path)
        if there is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            create_table(path, schema)
            there = open_table(path)
            assert there is not None
        may_add = schema if self.evolve else None
        new = check_schema(path, delta_log.types_in(there), types_of(schema), may_add=may_add)
        if new:
            from deltalake import Schema

            added = stored_schema(pa.schema([schema.field(name) for name in new]))
            there.alter.add_columns(Schema.from_arrow(added).fields)

    def check_table(self, table: str) -> None:
        """It must name a directory."""
        directory_name(table)

    def ready(self, batch: BatchWrites) -> None:
        delta_log.check_deltalake()
        stream = self._streams.of(batch.app)
        ledger = open_table(self.root / LEDGER)
        marks = marks_in(ledger, stream, batch.query)
        stream.check_new(marks, batch.query, batch.batch)
        for write in batch.writes:
            if write.changes and self._table_for(marks, ledger, batch, write) is None:
                raise stream.undecided(batch.batch, place=str(self._path(write.table)))

    def visible(self, batch: BatchWrites) -> list[str]:
        """Each table by its own log: they are written one after the other."""
        stream = self._streams.of(batch.app)
        names = (*(write.table for write in batch.writes), LEDGER)
        return [one for one in names if marks_in(open_table(self.root / one), stream, batch.query).done >= batch.batch]

    def commit(self, batch: BatchWrites) -> bool:
        """Commit table by table, then the ledger; see `Warehouse.commit`."""
        delta_log.check_deltalake()
        stream = self._streams.of(batch.app)
        ledger = open_table(self.root / LEDGER)
        if ledger is None:
            self.root.mkdir(parents=True, exist_ok=True)
            ledger = create_table(self.root / LEDGER, _LEDGER_SCHEMA)
        marks = marks_in(ledger, stream, batch.query)
        if stream.holds(marks, batch.query, batch.batch):
            return False
        # All are checked before the first is written.
        tables = [self._table_for(marks, ledger, batch, write) for write in batch.changed]
        for write, table in zip(batch.changed, tables, strict=True):
            if table is not None:
                self._commit(table, batch, write)
                reach("warehouse.table_written")
        reach("warehouse.before_commit")
        self._commit(ledger, batch, rows=json.dumps({write.table: write.rows for write in batch.changed}))
        reach("warehouse.committed")
        stream.seen[batch.query] = batch.batch
        return True

    def mirror(self, table: str, key: list[str], rows: pa.Table, version: int, *, store: str = "") -> bool:
        """Merge one version of a dimension, in one commit with its number; see `Warehouse.mirror`."""
        from deltalake.exceptions import CommitFailedError

        path = self._path(table)
        keys = changed_keys(table, key, rows)
        if version <= self.mirrored(table):
            return False
        self.prepare(table, rows.schema)
        there = open_table(path)
        assert there is not None
        before = there.transaction_version(mirror_mark(table))
        if before is not None and version <= before:
            return False
        properties = delta_log.marked(mirror_marks(table, version, store), {"mirror": str(version)})
        reach("mirror.before_commit")
        try:
            delta_log.replace_keys(there, keys, rows.cast(stored_schema(rows.schema)), properties)
        except CommitFailedError as error:
            now = self.mark(table, mirror_mark(table))
            if now not in (None, before):
                raise stale_mirror(path, version, now) from error
            raise SinkError(f"{path}: version {version} was not mirrored: {delta_log.first_line(error)}") from error
        reach("mirror.committed")
        return True

    def mark(self, table: str, name: str) -> int | None:
        there = open_table(self._path(table))
        return None if there is None else there.transaction_version(name)

    def files(self, table: str) -> set[str]:
        """The files that make up the table now."""
        there = open_table(self._path(table))
        return set() if there is None else {uri.rpartition("/")[2] for uri in there.file_uris()}

    def read(self, table: str) -> pa.Table:
        there = open_table(self._path(table))
        if there is None:
            raise SinkError(f"{self.root} has no Delta table {table!r}")
        return delta_log.rows_of(there)

    def describe(self) -> str:
        return f"Delta tables in {self.root}"

    def __repr__(self) -> str:
        return f"DeltaWarehouse({str(self.root)!r})"

    def _path(self, table: str) -> Path:
        return self.root / directory_name(table)

    def _table_for(
        self, marks: Marks, ledger: DeltaTable | None, batch: BatchWrites, write: Write
    ) -> DeltaTable | None:
        """The snapshot to write to; None when the table has the batch already."""
        stream, path = self._streams.of(batch.app), self._path(write.table)
        table = open_table(path)
        here = marks_in(table, stream, batch.query)
        if marks.owner is None:
            stream.is_foreign(here, batch.query)
        if here.done == batch.batch:
            return None
        if here.done > batch.batch:
            raise stream.stale(batch.batch, place=str(path))
        last = None if ledger is None else ledger.transaction_version(table_mark(batch.app, batch.query, write.table))
        if last is not None and here.done < last:
            raise MissingBatchesError(
                f"{path} {'is gone' if table is None else 'was set back'}: batch {last} of {batch.app!r} was written "
                "to it and is not there. Restore the table, or start again with a new checkpoint and an empty warehouse"
            )
        if table is None:
            raise SinkError(f"{path} is no Delta table; call prepare({write.table!r}, schema) first")
        check_schema(path, delta_log.types_in(table), types_of(write.schema), may_lack=self.evolve)
        for file in write.files:
            staged_path(path, file)
        return table

    def _commit(self, table: DeltaTable, batch: BatchWrites, write: Write | None = None, **about: str) -> None:
        """Commit to a table what the batch writes to it; without a write, to the ledger that all of it is done."""
        about |= {"app": batch.app, "query": batch.query, "batch": str(batch.batch)}
        actions: list[Any] = (
            [delta_log.add_action(self._path(write.table), file) for file in write.files] if write else []
        )
        # A replacement is for what this snapshot holds: rows that came in between must not survive it.
        mode, retries = ("overwrite", 0) if write and write.kind == "replace" else ("append", None)
        properties = delta_log.marked(batch.marks(tables=write is None), about, retries=retries)
        with delta_log.committing(table, self._streams.of(batch.app), batch.query, batch.batch, table.table_uri):
            table.create_write_transaction(actions, mode, table.schema(), commit_properties=properties)


def _open(value: str, home: Path, staging: Path) -> DeltaWarehouse:
    del staging  # the tables' own directories
    return DeltaWarehouse(home / local_path("delta", value))


FORM = Form("delta", _open)
