"""Tables in PostgreSQL that take each batch exactly once.

The rows of all tables and the batch's number are written in one transaction: a batch is there wholly or not at all. The
tasks' Parquet files are read by the driver, a piece at a time, and go in by COPY. Batches of one stream wait for each
other at a lock that ends with the transaction; whoever finds, once it has the lock, that the stream moved on, gets a
StaleWriterError. The marks are rows of the table ``_semistream_ledger`` in the same schema.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pyarrow as pa

from semistream.errors import ArgumentError, MissingBatchesError, SinkError, local_path
from semistream.failpoints import reach
from semistream.stores.paged.manifest import StoreVersion
from semistream.warehouse.contract import (
    LEDGER,
    BatchWrites,
    Limits,
    Warehouse,
    WarehouseForm,
    Write,
    changed_keys,
    inside,
    made,
    staged_path,
)
from semistream.warehouse.marks import MIRRORS, Marks, Streams, mirror_mark, mirror_marks, stale_mirror
from semistream.warehouse.postgres_types import arrow_type, batches_of, check_name, sql_types
from semistream.warehouse.schemas import check_schema

if TYPE_CHECKING:
    from semistream.warehouse.postgres_session import Session

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_URL = re.compile(r"(\w+://)([^@]*)(@.*)", re.DOTALL)  # who comes before the '@' of the template
_VALUE = re.compile(r"(=\s*)(')?\$\{(\w+)\}(?(2)')|\$\{(\w+)\}")


class PostgresWarehouse(Warehouse):
    """The tables of one schema of a PostgreSQL database.

    ``address`` is libpq's: "host=db dbname=shop user=etl" or a URL; better kept out of it, the password comes from
    PGPASSWORD or ~/.pgpass. ``staging`` is a local directory for the tasks' files, which are deleted once they are in.
    ``evolve`` lets `prepare` add columns to a table.
    """

    # What COPY reads as text: other years have no form that both sides know, and a field takes a part of 1 GB.
    limits = Limits(years=(1, 9999), nul=False, field_bytes=1 << 28)

    def __init__(
        self,
        address: str,
        *,
        staging: str | os.PathLike[str],
        schema: str = "public",
        evolve: bool = False,
        connect_tries: int = 5,
    ) -> None:
        try:
            from semistream.warehouse.postgres_session import Server
        except ImportError as error:
            raise SinkError(
                f"PostgreSQL needs the package psycopg ({error}); run: pip install 'semistream[postgres]'"
            ) from None
        self._server = Server(address, connect_tries, check_name("schema", schema))
        self.schema = schema
        self.staging = local_path("staging", staging).absolute()
        self.evolve = evolve
        self._streams = Streams(self.describe())

    def place(self, table: str) -> Path:
        """A directory of its own under the staging directory; any name of a table gives a safe one."""
        check_name("table", table)
        safe = "".join(c if c.isalnum() and c.isascii() else f"={ord(c):x}=" for c in table)
        return made(self.staging / safe)  # of 63 bytes at most, so of 252 letters at most

    def check(self, app: str, query: str, replaces: str | None = None) -> int:
        with self._server.transaction() as session:
            return self._streams.check(session.find, app, query, replaces)

    def prepare(self, table: str, schema: pa.Schema) -> None:
        check_name("table", table)
        wanted = sql_types(schema)
        with self._server.transaction() as session:
            session.lock("prepare")  # CREATE … IF NOT EXISTS alone fails when two do it at once
            session.make_ledger()
            there = session.columns(table)
            if not there:
                self._check_never_written(session, table)
                session.run("CREATE TABLE {table} ({columns})", table, columns=wanted)
                for kind in MIRRORS:  # of a table of that name that was dropped
                    session.run("DELETE FROM {ledger} WHERE mark = {mark}", mark=mirror_mark(table, kind))
                return
            for name in check_schema(self._shown(table), there, wanted, may_add=schema if self.evolve else None):
                session.run("ALTER TABLE {table} ADD COLUMN {column}", table, column={name: wanted[name]})

    def check_table(self, table: str) -> None:
        check_name("table", table)

    def ready(self, batch: BatchWrites) -> None:
        """All that `commit` checks but the rows themselves."""
        with self._server.transaction() as session:
            self._streams.check_new(Marks.of(session.find, batch.app, batch.query), batch)
            for write in batch.writes:
                self._check_columns(session, write)
                for file in write.files:
                    staged_path(self.place(write.table), file)

    def visible(self, batch: BatchWrites) -> list[str]:
        """All of them or none: a batch is one transaction. One that is about to end is waited for."""
        with self._server.transaction() as session:
            session.lock(batch.app)
            done = Marks.of(session.find, batch.app, batch.query).done
        return [write.table for write in batch.writes] if done >= batch.batch else []

    def commit(self, batch: BatchWrites) -> bool:
        with self._server.transaction() as session:
            before = Marks.of(session.find, batch.app, batch.query)
            there = self._streams.holds(before, batch)
            if not there:
                session.lock(batch.app)
                if Marks.of(session.find, batch.app, batch.query) != before:
                    raise self._streams.stale(batch)
                session.make_ledger()
                for write in batch.writes:
                    self._write(session, write)
                    reach("warehouse.table_written")
                session.set_marks(batch.marks(tables=True))
                reach("warehouse.before_commit")
                # Should the answer to COMMIT be lost, the database tells.
                self._streams.left.pop((batch.app, batch.query), None)
        if not there:
            reach("warehouse.committed")
            self._streams.wrote(batch)
        for write in batch.writes:
            for file in write.files:
                inside(self.place(write.table), file).unlink(missing_ok=True)
        return not there

    def mirror(
        self, table: str, key: list[str], rows: pa.Table, version: int, *, store: StoreVersion | None = None
    ) -> bool:
        keys = changed_keys(table, key, rows)
        known = self.mirrored(table)
        self.prepare(table, rows.schema)
        with self._server.transaction() as session:
            before = session.find(mirror_mark(table))
            session.lock(f"mirror\0{table}")
            now = session.find(mirror_mark(table))
            if now != before or (now is None and known >= 0):
                raise stale_mirror(self._shown(table), version, now)
            if now is not None and version <= now:
                return False
            session.exchange(table, keys, rows)
            if now is None:  # from now on few keys change at a time, and are looked up
                session.run("CREATE INDEX ON {table} ({key})", table, key=key)
                session.run("ANALYZE {table}", table)
            session.set_marks(mirror_marks(table, version, store))
            reach("mirror.before_commit")
        reach("mirror.committed")
        return True

    def mark(self, table: str, name: str) -> int | None:
        with self._server.transaction() as session:
            return session.find(name) if session.columns(check_name("table", table)) else None

    def files(self, table: str) -> set[str]:
        """None: rows are in the database, files only on their way to it."""
        check_name("table", table)
        return set()

    def read(self, table: str) -> pa.Table:
        """All rows of a table; they pass through Python."""
        with self._server.transaction() as session:
            columns = session.columns(check_name("table", table))
            if not columns:
                raise SinkError(f"{self._shown(table)} is not there")
            found = session.run("SELECT {columns} FROM {table}", table, columns=list(columns)).fetchall()
        schema = pa.schema([(name, arrow_type(name, kind)) for name, kind in columns.items()])
        return pa.Table.from_pylist([dict(zip(columns, row, strict=True)) for row in found], schema)

    def describe(self) -> str:
        return f"{self._server.describe()}, schema {self.schema!r}"

    def __repr__(self) -> str:
        return f"PostgresWarehouse({self.describe()})"

    def _shown(self, table: str) -> str:
        return f"table {table!r} of {self.describe()}"

    def _check_never_written(self, session: "Session", table: str) -> None:
        """A table that is gone although batches were written to it must not be made again, empty."""
        found = session.run(
            "SELECT mark, value FROM {ledger} WHERE position('@' in mark) > 1 "
            "AND substr(mark, position('@' in mark) + 37) = {end} LIMIT 1",
            end=f"/{table}",
        ).fetchone()
        if found is not None:
            raise MissingBatchesError(
                f"{self._shown(table)} is gone: batch {found[1]} of {found[0].partition('@')[0]!r} was written to it. "
                f"Restore it, or delete the marks of the stream from {LEDGER} and start with a new checkpoint"
            )

    def _check_columns(self, session: "Session", write: Write) -> None:
        there = session.columns(write.table)
        if not there:
            raise SinkError(f"{self._shown(write.table)} is not there; call prepare({write.table!r}, schema) first")
        check_schema(self._shown(write.table), there, sql_types(write.schema), may_lack=self.evolve)

    def _write(self, session: "Session", write: Write) -> None:
        self._check_columns(session, write)
        if write.kind == "replace":
            session.run("DELETE FROM {table}", write.table)
        columns = write.schema.names
        for file in write.files:
            path = staged_path(self.place(write.table), file)
            count = session.copy(write.table, columns, batches_of(path, columns))
            if count != file.rows:
                raise SinkError(f"{path} is damaged: it has {count} rows, and had {file.rows} when it was written")


def filled(template: str, environment: Mapping[str, str]) -> str:
    """The address of a database, with each ``${NAME}`` taken from the environment, whatever it holds.

    A password with an '@' must not become half a password and another host, for hosts are shown.

    >>> filled("postgresql://load:${WORD}@db/shop", {"WORD": "a@b"})
    'postgresql://load:a%40b@db/shop'
    """

    def value(found: re.Match[str]) -> str:
        name = found.group(found.lastindex or 0)
        if name not in environment:
            raise ArgumentError(f"the environment has no variable {name}, which postgres = … names")
        return environment[name]

    if url := _URL.fullmatch(template):
        scheme, who, rest = url.groups()
        return scheme + _VARIABLE.sub(lambda found: quote(value(found), safe=""), who) + _VARIABLE.sub(value, rest)
    if "://" in template:
        return _VARIABLE.sub(value, template)

    def quoted(found: re.Match[str]) -> str:
        text, before = value(found), found.group(1)
        escaped = re.sub(r"(['\\])", r"\\\1", text)
        return text if before is None else f"{before}'{escaped}'"

    return _VALUE.sub(quoted, template)  # in one pass: a value that looks like a variable is none


def _open(value: str, _home: Path, staging: Path, *, schema: str = "public") -> PostgresWarehouse:
    return PostgresWarehouse(filled(value, os.environ), staging=staging, schema=schema or "public")


FORM = WarehouseForm("postgres", _open, ("schema",))
