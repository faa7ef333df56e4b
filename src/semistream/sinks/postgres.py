"""Tables in PostgreSQL that take each batch exactly once.

The rows of all tables and the batch's number are written in one transaction: a batch is there wholly or not at all. The
tasks' Parquet files are read by the driver, a piece at a time, and go in by COPY. Batches of one stream wait for each
other at a lock that ends with the transaction; whoever finds, once it has the lock, that the stream moved on, gets a
StaleWriterError. The marks are rows of the table ``_semistream_ledger`` in the same schema.

A version of a dimension goes in by one MERGE: rows that stay are updated in place, so that foreign keys to them hold.

>>> PostgresWarehouse("host=db dbname=shop user=etl", staging="/data/staging")  # doctest: +SKIP
PostgresWarehouse(database 'shop' on db as etl, schema 'public')
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from semistream.failpoints import reach
from semistream.sinks import MissingBatchesError, SinkError, StaleWriterError
from semistream.sinks._marks import Find, Streams, check_query, mirror_mark, stream_marks, table_mark
from semistream.sinks._postgres_session import Server, Session, composed, literal, names
from semistream.sinks._postgres_types import arrow_type, check_name, csv_of, sql_types
from semistream.sinks._schemas import check_new_columns, check_schema
from semistream.sinks.warehouse import RESERVED, BatchWrites, Write, changed_keys, inside, staged_path

if TYPE_CHECKING:
    from psycopg import sql

_LEDGER = f"{RESERVED}_ledger"
_CHUNK_ROWS = 16_384
_COLUMNS = """
    SELECT a.attname, format_type(a.atttypid, a.atttypmod)
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = {schema} AND c.relname = {table} AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum"""
# The n-th row that comes takes the place of the n-th that is there; whoever is left over is inserted or deleted.
_MERGE = """
    MERGE INTO {table} t USING (
        SELECT o.__at, n.* FROM (
            SELECT t.ctid AS __at, row_number() OVER (PARTITION BY {key_t} ORDER BY {order_t}) AS __o, {key_o}
            FROM {table} t JOIN __keys k ON {same_k}
        ) o FULL JOIN (
            SELECT r.*, row_number() OVER (PARTITION BY {key} ORDER BY {order}) AS __n FROM __rows r
        ) n ON {same_o} AND o.__o = n.__n
    ) s ON t.ctid = s.__at
    WHEN MATCHED AND s.__n IS NULL THEN DELETE
    WHEN MATCHED THEN UPDATE SET {sets}
    WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({values})"""


class PostgresWarehouse:
    """The tables of one schema of a PostgreSQL database.

    ``address`` is libpq's: "host=db dbname=shop user=etl" or a URL; better kept out of it, the password comes from
    PGPASSWORD or ~/.pgpass. ``staging`` is a local directory for the tasks' files, which are deleted once they are in.
    ``evolve`` lets `prepare` add columns to a table.
    """

    def __init__(
        self,
        address: str,
        *,
        staging: str | os.PathLike[str],
        schema: str = "public",
        evolve: bool = False,
        connect_tries: int = 5,
    ) -> None:
        self.schema = check_name("schema", schema)
        self.staging = Path(staging)
        self.evolve = evolve
        self._server = Server(address, connect_tries)
        self._streams = Streams(self.describe())

    def place(self, table: str) -> Path:
        """A directory of its own under the staging directory; any name of a table gives a safe one."""
        check_name("table", table)
        safe = "".join(c if c.isalnum() and c.isascii() else f"={ord(c):x}=" for c in table)
        path = self.staging / safe  # of 63 bytes at most, so of 252 letters at most
        path.mkdir(parents=True, exist_ok=True)
        return path

    def check(self, app: str, query: str, replaces: str | None = None) -> int:
        """The last batch of the stream; see `Warehouse.check`."""
        stream, query = self._streams.of(app, replaces), check_query(query)
        with self._server.transaction() as session:
            marks = stream.marks(self._find(session), query)
        stream.is_foreign(marks, query)
        return marks.done

    def prepare(self, table: str, schema: pa.Schema) -> None:
        """Make the table, or check its columns."""
        check_name("table", table)
        wanted = sql_types(schema)
        with self._server.transaction() as session:
            session.lock(f"{self.schema}\0prepare")  # CREATE … IF NOT EXISTS alone fails when two do it at once
            self._make_ledger(session)
            there = self._columns(session, table)
            if not there:
                self._check_never_written(session, table)
                session.run("CREATE TABLE {table} ({columns})", table=self._name(table), columns=_defined(wanted))
                session.run(
                    "DELETE FROM {ledger} WHERE mark = {mark}",  # of a table of that name that was dropped
                    ledger=self._name(_LEDGER),
                    mark=literal(mirror_mark(table)),
                )
                return
            new = check_schema(self._shown(table), there, wanted, may_add=self.evolve)
            check_new_columns(self._shown(table), schema, new)
            for name in new:
                session.run(
                    "ALTER TABLE {table} ADD COLUMN {column}",
                    table=self._name(table),
                    column=_defined({name: wanted[name]}),
                )

    def commit(self, batch: BatchWrites) -> bool:
        """All tables and the batch's number in one transaction; see `Warehouse.commit`."""
        stream = self._streams.of(batch.app)
        with self._server.transaction() as session:
            before = stream.marks(self._find(session), batch.query)
            there = stream.holds(before, batch.query, batch.batch)
            if not there:
                session.lock(f"{self.schema}\0{batch.app}")
                if stream.marks(self._find(session), batch.query) != before:
                    raise stream.stale(batch.batch)
                self._write_all(session, batch)
                reach("warehouse.before_commit")
                stream.seen.pop(batch.query, None)  # should the answer to COMMIT be lost, the database tells
        if not there:
            reach("warehouse.committed")
            stream.seen[batch.query] = batch.batch
        for write in batch.writes:
            for file in write.files:
                inside(self.place(write.table), file).unlink(missing_ok=True)
        return not there

    def mirror(self, table: str, key: list[str], rows: pa.Table, deleted: pa.Table | None, version: int) -> bool:
        """Merge one version of a dimension, with its number in the same transaction; see `Warehouse.mirror`."""
        keys = changed_keys(table, key, rows, deleted)
        if version <= self.mirrored(table):
            return False
        self.prepare(table, rows.schema)
        with self._server.transaction() as session:
            before = self._find(session)(mirror_mark(table))
            session.lock(f"{self.schema}\0mirror\0{table}")
            now = self._find(session)(mirror_mark(table))
            if now != before:
                raise StaleWriterError(
                    f"{self._shown(table)}: another run mirrored version {now} while version {version} was on its way, "
                    "so this one was not written. Stop one of the two"
                )
            if now is not None and version <= now:
                return False
            self._merge(session, table, keys, rows)
            session.set_marks(self._name(_LEDGER), {mirror_mark(table): version})
            reach("mirror.before_commit")
        reach("mirror.committed")
        return True

    def mirrored(self, table: str) -> int:
        """The version that the table mirrors, -1 for none."""
        with self._server.transaction() as session:
            version = self._find(session)(mirror_mark(check_name("table", table)))
            return -1 if version is None or not self._columns(session, table) else version

    def read(self, table: str) -> pa.Table:
        """All rows of a table; they pass through Python."""
        with self._server.transaction() as session:
            columns = self._columns(session, check_name("table", table))
            if not columns:
                raise SinkError(f"{self._shown(table)} is not there")
            found = session.run(
                "SELECT {columns} FROM {table}", columns=names(list(columns)), table=self._name(table)
            ).fetchall()
        kinds = pa.schema([(name, arrow_type(name, text)) for name, text in columns.items()])
        arrays = [pa.array([row[at] for row in found], field.type) for at, field in enumerate(kinds)]
        return pa.table(arrays, schema=kinds)

    def describe(self) -> str:
        """Where it is, for people; without the password."""
        return f"{self._server.describe()}, schema {self.schema!r}"

    def __repr__(self) -> str:
        return f"PostgresWarehouse({self.describe()})"

    def _name(self, table: str) -> sql.Composable:
        from psycopg import sql

        return sql.Identifier(self.schema, table)

    def _shown(self, table: str) -> str:
        return f"table {table!r} of {self.describe()}"

    def _columns(self, session: Session, table: str) -> dict[str, str]:
        """Names and types, none when the table is not there. A text with a limit is a text."""
        found = session.run(_COLUMNS, schema=literal(self.schema), table=literal(table)).fetchall()
        return {name: "text" if kind.startswith("character varying") else kind for name, kind in found}

    def _find(self, session: Session) -> Find:
        """Look marks up, as they are now."""
        if not self._columns(session, _LEDGER):
            return lambda _: None

        def find(mark: str) -> int | None:
            found: Any = session.run(
                "SELECT value FROM {ledger} WHERE mark = {mark}", ledger=self._name(_LEDGER), mark=literal(mark)
            ).fetchone()
            return None if found is None else int(found[0])

        return find

    def _make_ledger(self, session: Session) -> None:
        from psycopg import sql

        if self._columns(session, _LEDGER):
            return
        if not session.run("SELECT 1 FROM pg_namespace WHERE nspname = {s}", s=literal(self.schema)).fetchone():
            session.run("CREATE SCHEMA {schema}", schema=sql.Identifier(self.schema))
        session.run(
            "CREATE TABLE {ledger} (mark text PRIMARY KEY, value bigint NOT NULL, "
            "changed_at timestamptz NOT NULL DEFAULT now())",
            ledger=self._name(_LEDGER),
        )

    def _check_never_written(self, session: Session, table: str) -> None:
        """A table that is gone although batches were written to it must not be made again, empty."""
        found: Any = session.run(
            "SELECT mark, value FROM {ledger} WHERE position('@' in mark) > 1 "
            "AND substr(mark, position('@' in mark) + 37) = {table} LIMIT 1",
            ledger=self._name(_LEDGER),
            table=literal(f"/{table}"),
        ).fetchone()
        if found is not None:
            raise MissingBatchesError(
                f"{self._shown(table)} is gone: batch {found[1]} of {found[0].partition('@')[0]!r} was written to it. "
                f"Restore it, or delete the marks of the stream from {_LEDGER} and start with a new checkpoint"
            )

    def _write_all(self, session: Session, batch: BatchWrites) -> None:
        self._make_ledger(session)
        for write in batch.writes:
            self._write(session, write)
            reach("warehouse.table_written")
        marks = stream_marks(batch.app, batch.query, batch.batch)
        written = [write.table for write in batch.writes if write.changes]
        marks |= {table_mark(batch.app, batch.query, table): batch.batch for table in written}
        session.set_marks(self._name(_LEDGER), marks)

    def _write(self, session: Session, write: Write) -> None:
        there = self._columns(session, write.table)
        if not there:
            raise SinkError(f"{self._shown(write.table)} is not there; call prepare({write.table!r}, schema) first")
        check_schema(self._shown(write.table), there, sql_types(write.schema), may_lack=self.evolve)
        if write.kind == "replace":
            session.run("DELETE FROM {table}", table=self._name(write.table))
        for file in write.files:
            path = staged_path(self.place(write.table), file)
            count = self._copy(session, self._name(write.table), write.schema.names, _batches(path, write.schema.names))
            if count != file.rows:
                raise SinkError(f"{path} is damaged: it has {count} rows, and had {file.rows} when it was written")

    def _copy(self, session: Session, table: sql.Composable, columns: list[str], rows: Iterator[pa.RecordBatch]) -> int:
        statement = composed("COPY {table} ({columns}) FROM STDIN (FORMAT csv)", table=table, columns=names(columns))
        return session.copy(statement, (csv_of(batch) for batch in rows))

    def _merge(self, session: Session, table: str, keys: pa.Table, rows: pa.Table) -> None:
        from psycopg import sql

        there = self._columns(session, table)
        columns, key = rows.column_names, keys.column_names
        for name, part in (("__keys", keys), ("__rows", rows)):
            wanted = {column: there[column] for column in part.column_names}
            session.run(
                "CREATE TEMPORARY TABLE {name} ({columns}) ON COMMIT DROP",
                name=sql.Identifier(name),
                columns=_defined(wanted),
            )
            self._copy(session, sql.Identifier(name), part.column_names, iter(part.to_batches(_CHUNK_ROWS)))
        session.run("ANALYZE __keys, __rows")
        others = [name for name in columns if name not in key] or key
        sets = [composed("{c} = s.{c}", c=sql.Identifier(name)) for name in columns]
        session.run(
            _MERGE,
            table=self._name(table),
            key=names(key, "r"),
            order=names(others, "r"),
            key_t=names(key, "t"),
            order_t=names(others, "t"),
            key_o=names(key, "k"),
            same_k=_same(key, "t", "k"),
            same_o=_same(key, "o", "n"),
            sets=sql.SQL(", ").join(sets),
            columns=names(columns),
            values=names(columns, "s"),
        )


def _same(key: list[str], one: str, other: str) -> sql.Composable:
    from psycopg import sql

    pairs = [composed("{a} = {b}", a=sql.Identifier(one, name), b=sql.Identifier(other, name)) for name in key]
    return sql.SQL(" AND ").join(pairs)


def _defined(columns: dict[str, str]) -> sql.Composable:
    """Names and types; the types are words of PostgreSQL's own."""
    from psycopg import sql

    return sql.SQL(", ").join(composed(f"{{name}} {kind}", name=sql.Identifier(name)) for name, kind in columns.items())


def _batches(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for batch in file.iter_batches(_CHUNK_ROWS, columns=columns):
                yield batch.select(columns)  # they come in the file's order
    except (OSError, pa.ArrowException) as error:
        raise SinkError(f"{path} is damaged: {error}") from error
