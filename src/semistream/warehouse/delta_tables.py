"""A directory of Delta tables that takes each batch exactly once, written by delta-rs, so without any jar.

The tasks write their Parquet files into the tables' own directories; the driver's commit only adds their names to the
log, so a large batch does not pass through its memory. A commit of Delta is for one table. So each table's commit
carries the batch's number, and a table of our own, the ledger, is committed last: a batch is there wholly when the
ledger says so. After a crash between two tables the batch is committed again, and the tables that have it pass over it.
The ledger also remembers the last batch of each table: a table that was deleted or set back is missed.
"""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semistream.errors import MissingBatchesError, SinkError, local_path
from semistream.failpoints import reach
from semistream.stores.paged.manifest import StoreVersion
from semistream.warehouse import delta
from semistream.warehouse.contract import (
    LEDGER,
    BatchWrites,
    Warehouse,
    WarehouseForm,
    Write,
    changed_keys,
    directory_name,
    made,
    staged_path,
)
from semistream.warehouse.marks import Find, Marks, Streams, mirror_mark, mirror_marks, stale_mirror, table_mark
from semistream.warehouse.schemas import stored_schema

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
        return made(self._path(table))

    def check(self, app: str, query: str, replaces: str | None = None) -> int:
        find = delta.find_in(delta.open_table(self.root / LEDGER))
        done = self._streams.check(find, app, query, replaces)
        if find(app) is None and self.root.is_dir():  # a batch that was begun, or a ledger that was deleted
            for path in sorted(self.root.iterdir()):
                self._streams.check(delta.find_in(delta.open_table(path)), app, query)
        return done

    def prepare(self, table: str, schema: pa.Schema) -> None:
        path = self._path(table)
        if delta.open_table(path) is None:
            delta.create_table(path, schema)
        there = delta.open_table(path)  # the newest: another run may have made the table first, and gone on
        assert there is not None
        if new := delta.check_columns(path, there, schema, may_add=self.evolve):
            from deltalake import Schema

            added = stored_schema(pa.schema([schema.field(name) for name in new]))
            there.alter.add_columns(Schema.from_arrow(added).fields)

    def check_table(self, table: str) -> None:
        directory_name(table)

    def ready(self, batch: BatchWrites) -> None:
        delta.check_deltalake()
        find = delta.find_in(delta.open_table(self.root / LEDGER))
        self._streams.check_new(Marks.of(find, batch.app, batch.query), batch)
        for write in batch.changed:
            if self._table_for(find, batch, write) is None:
                raise self._streams.undecided(batch, self._path(write.table))

    def visible(self, batch: BatchWrites) -> list[str]:
        """Each table by its own log: they are written one after the other."""
        names = (*(write.table for write in batch.writes), LEDGER)
        tables = {name: delta.find_in(delta.open_table(self.root / name)) for name in names}
        return [name for name, find in tables.items() if Marks.of(find, batch.app, batch.query).done >= batch.batch]

    def commit(self, batch: BatchWrites) -> bool:
        delta.check_deltalake()
        ledger = delta.open_table(self.root / LEDGER) or delta.create_table(self.root / LEDGER, _LEDGER_SCHEMA)
        find = delta.find_in(ledger)
        if self._streams.holds(Marks.of(find, batch.app, batch.query), batch):
            return False
        # All are checked before the first is written.
        tables = [self._table_for(find, batch, write) for write in batch.changed]
        for write, table in zip(batch.changed, tables, strict=True):
            if table is not None:
                self._commit(table, batch, write)
                reach("warehouse.table_written")
        reach("warehouse.before_commit")
        self._commit(ledger, batch, rows=json.dumps({write.table: write.rows for write in batch.changed}))
        reach("warehouse.committed")
        self._streams.wrote(batch)
        return True

    def mirror(
        self, table: str, key: list[str], rows: pa.Table, version: int, *, store: StoreVersion | None = None
    ) -> bool:
        path, keys = self._path(table), changed_keys(table, key, rows)
        known = self.mirrored(table)
        self.prepare(table, rows.schema)
        there = delta.open_table(path)
        assert there is not None
        mark, marks = mirror_mark(table), mirror_marks(table, version, store)
        before = there.transaction_version(mark)
        if before is None and known >= 0:
            raise stale_mirror(path, version, None)
        if before is not None and version <= before:
            return False
        reach("mirror.before_commit")
        with delta.committing(
            path, there, marks, {"mirror": str(version)}, lambda find: stale_mirror(path, version, find(mark))
        ) as properties:
            delta.replace_keys(there, keys, rows.cast(stored_schema(rows.schema)), properties)
        reach("mirror.committed")
        return True

    def mark(self, table: str, name: str) -> int | None:
        return delta.find_in(delta.open_table(self._path(table)))(name)

    def files(self, table: str) -> set[str]:
        there = delta.open_table(self._path(table))
        return set() if there is None else {uri.rpartition("/")[2] for uri in there.file_uris()}

    def read(self, table: str) -> pa.Table:
        there = delta.open_table(self._path(table))
        if there is None:
            raise SinkError(f"{self.root} has no Delta table {table!r}")
        return delta.rows_of(there)

    def describe(self) -> str:
        return f"Delta tables in {self.root}"

    def __repr__(self) -> str:
        return f"DeltaWarehouse({str(self.root)!r})"

    def _path(self, table: str) -> Path:
        return self.root / directory_name(table)

    def _table_for(self, ledger: Find, batch: BatchWrites, write: Write) -> "DeltaTable | None":
        """The snapshot to write to; None when the table has the batch already."""
        path = self._path(write.table)
        table = delta.open_table(path)
        here = delta.find_in(table)
        if ledger(batch.app) is None:
            self._streams.check(here, batch.app, batch.query)
        done = Marks.of(here, batch.app, batch.query).done
        if done == batch.batch:
            return None
        if done > batch.batch:
            raise self._streams.stale(batch, path)
        last = ledger(table_mark(batch.app, batch.query, write.table))
        if last is not None and done < last:
            raise MissingBatchesError(
                f"{path} {'is gone' if table is None else 'was set back'}: batch {last} of {batch.app!r} was written "
                "to it and is not there. Restore the table, or start again with a new checkpoint and an empty warehouse"
            )
        if table is None:
            raise SinkError(f"{path} is no Delta table; call prepare({write.table!r}, schema) first")
        delta.check_columns(path, table, write.schema, may_lack=self.evolve)
        for file in write.files:
            staged_path(path, file)
        return table

    def _commit(self, table: "DeltaTable", batch: BatchWrites, write: Write | None = None, **about: str) -> None:
        """Commit to a table what the batch writes to it; without a write, to the ledger that all of it is done."""
        about |= {"app": batch.app, "query": batch.query, "batch": str(batch.batch)}
        path = self.root / (write.table if write else LEDGER)
        actions: list[Any] = [delta.add_action(path, file) for file in write.files] if write else []
        # A replacement is for what this snapshot holds: rows that came in between must not survive it.
        mode, retries = ("overwrite", 0) if write and write.kind == "replace" else ("append", None)
        marks = batch.marks(tables=write is None)
        with delta.committing(
            path, table, marks, about, lambda _: self._streams.stale(batch, path), retries=retries
        ) as properties:
            table.create_write_transaction(actions, mode, table.schema(), commit_properties=properties)


# Files are staged in the tables' own directories.
FORM = WarehouseForm("delta", lambda value, home, _staging: DeltaWarehouse(home / local_path("delta", value)))
