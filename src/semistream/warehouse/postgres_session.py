"""Transactions on a schema of PostgreSQL, errors without the password. Imported late, since psycopg may be missing."""

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, quote_plus

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from semistream.errors import ArgumentError, SinkError
from semistream.warehouse.contract import LEDGER
from semistream.warehouse.postgres_types import CHUNK_ROWS, csv_of

_OLDEST = 150000  # MERGE came with PostgreSQL 15
# A server that is gone without a word is noticed: unless the address says otherwise, within a minute.
_DEFAULTS = {"connect_timeout": "10", "tcp_user_timeout": "60000", "keepalives_idle": "20", "keepalives_interval": "10"}
_LOCK_SECONDS = 120
_COLUMNS = """
    SELECT a.attname, format_type(a.atttypid, a.atttypmod)
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = {schema} AND c.relname = {name} AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum"""
# The n-th row that comes takes the place of the n-th that is there; whoever is left over is inserted or deleted.
_MERGE = """
    MERGE INTO {table} t USING (
        SELECT o.__at, n.* FROM (
            SELECT t.ctid AS __at, row_number() OVER (PARTITION BY {t_key} ORDER BY {t_order}) AS __o, {k_key}
            FROM {table} t JOIN __keys k ON ({t_key}) = ({k_key})
        ) o FULL JOIN (
            SELECT r.*, row_number() OVER (PARTITION BY {r_key} ORDER BY {r_order}) AS __n FROM __rows r
        ) n ON ({o_key}) = ({n_key}) AND o.__o = n.__n
    ) s ON t.ctid = s.__at
    WHEN MATCHED AND s.__n IS NULL THEN DELETE
    WHEN MATCHED THEN UPDATE SET ({columns}) = ROW ({values})
    WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({values})"""


class Server:
    """Where the database is, how it is reached, and the schema of its tables. Its text never shows the password."""

    def __init__(self, address: str, tries: int, schema: str = "public") -> None:
        try:
            parts = conninfo_to_dict(address)
        except psycopg.Error:
            # Not chained: what libpq says of an address that it cannot read repeats pieces of it.
            raise ArgumentError(
                "the address of the database cannot be read; write 'host=db dbname=shop user=etl' or "
                "'postgresql://etl@db/shop', and keep the password in PGPASSWORD or ~/.pgpass"
            ) from None
        if "@" in str(parts.get("host", "")):  # half a password, most likely: it must not be shown
            raise ArgumentError(
                "the address of the database has an '@' in its host; write an '@' of the password as %40, or keep "
                "the password in PGPASSWORD or ~/.pgpass"
            )
        if tries < 1:
            raise ArgumentError(f"connect_tries={tries} is too few; give 1 or more")
        self._options: dict[str, Any] = {**_DEFAULTS, **parts, "client_encoding": "utf8"}
        self._tries = tries
        self.schema = schema

    def describe(self) -> str:
        host = self._options.get("host") or self._options.get("hostaddr") or "the local socket"
        port = f":{self._options['port']}" if "port" in self._options else ""
        user = f" as {self._options['user']}" if "user" in self._options else ""
        return f"database {self._options.get('dbname', '(default)')!r} on {host}{port}{user}"

    @contextmanager
    def transaction(self) -> "Iterator[Session]":
        """All or nothing: committed when the block ends, rolled back when it raises."""
        connection = self._connect()
        try:
            with connection:
                connection.execute(
                    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; "  # after a wait for a lock the newest mark counts
                    f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'; SET LOCAL TimeZone = 'GMT'; "  # which needs no file
                    "SET LOCAL DateStyle = 'ISO, YMD'; SET LOCAL client_min_messages = 'error'"
                )
                yield Session(connection.cursor(), self.schema)
        except psycopg.errors.LockNotAvailable as error:
            raise SinkError(
                f"{self.describe()}: for {_LOCK_SECONDS} s another run has held what this one needs; stop one of them"
            ) from error
        except psycopg.Error as error:
            what = "failed"
            if isinstance(error, psycopg.OperationalError) and (error.sqlstate or "08")[:3] in ("08", "080", "57P"):
                what = "the connection was lost, and whether the change is there the next attempt sees"
            raise SinkError(f"{self.describe()}: {what}: {self._said(error)}") from self._clean(error)

    def _connect(self) -> psycopg.Connection[Any]:
        for attempt in range(self._tries):
            try:
                connection = psycopg.connect(**self._options)
                break
            except psycopg.OperationalError as error:
                if attempt + 1 == self._tries:
                    raise SinkError(
                        f"no connection to {self.describe()} after {self._tries} attempts: {self._said(error)}"
                    ) from self._clean(error)
            time.sleep(0.2 * 2**attempt)
        if connection.info.server_version < _OLDEST:
            version = connection.info.server_version // 10000
            connection.close()
            raise SinkError(f"{self.describe()} is PostgreSQL {version}; semistream needs 15 or newer")
        return connection

    def _said(self, error: Exception) -> str:
        """The first line of an error, and where in the data PostgreSQL met it."""
        diag = getattr(error, "diag", None)
        text = getattr(diag, "message_primary", None) or str(error).strip().partition("\n")[0]
        where = (getattr(diag, "context", None) or "").partition("\n")[0]
        return self._hidden(f"{text} ({where})" if where else text)

    def _clean(self, error: Exception) -> Exception | None:
        """The cause, unless it shows the password."""
        return error if self._hidden(str(error)) == str(error) else None

    def _hidden(self, text: str) -> str:
        password = str(self._options.get("password") or "")
        for form in {password, quote(password), quote(password, safe=""), quote_plus(password)} - {""}:
            text = text.replace(form, "***")
        return text


class Session:
    """One transaction. Values go in as literals, not as parameters, since a name may hold a '%'."""

    def __init__(self, cursor: psycopg.Cursor[Any], schema: str) -> None:
        self._cursor = cursor
        self.schema = schema

    def run(self, statement: str, table: str = "", **parts: object) -> psycopg.Cursor[Any]:
        """Execute a statement with its {parts} filled in; {table} and {ledger} are tables of the schema. A list is
        names of columns, a dictionary their names and types; texts and numbers are values.
        """
        names = {"table": sql.Identifier(self.schema, table), "ledger": sql.Identifier(self.schema, LEDGER)}
        filled = {name: _sql(part) for name, part in parts.items()}
        return self._cursor.execute(sql.SQL(statement).format(**names, **filled))

    def lock(self, name: str) -> None:
        """Wait until no other transaction holds this lock of the schema; the end of the transaction gives it back."""
        text = f"semistream\0{self.schema}\0{name}"
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)
        self.run("SELECT pg_advisory_xact_lock({number})", number=number)

    def columns(self, table: str) -> dict[str, str]:
        """Names and types, none when the table is not there. A text with a limit is a text."""
        found = self.run(_COLUMNS, schema=self.schema, name=table).fetchall()
        return {name: "text" if kind.startswith("character varying") else kind for name, kind in found}

    def make_ledger(self) -> None:
        """The table of the marks, and the schema, where they are missing."""
        if self.columns(LEDGER):
            return
        if not self.run("SELECT 1 FROM pg_namespace WHERE nspname = {schema}", schema=self.schema).fetchone():
            self.run("CREATE SCHEMA {schema}", schema=[self.schema])
        self.run(
            "CREATE TABLE {ledger} (mark text PRIMARY KEY, value bigint NOT NULL, "
            "changed_at timestamptz NOT NULL DEFAULT now())"
        )

    def find(self, mark: str) -> int | None:
        if not self.columns(LEDGER):
            return None
        found = self.run("SELECT value FROM {ledger} WHERE mark = {mark}", mark=mark).fetchone()
        return None if found is None else int(found[0])

    def set_marks(self, marks: Mapping[str, int]) -> None:
        """Write marks, the old values give way."""
        self.run(
            "INSERT INTO {ledger} (mark, value) VALUES {rows} "
            "ON CONFLICT (mark) DO UPDATE SET value = EXCLUDED.value, changed_at = now()",
            rows=sql.SQL(", ").join(sql.SQL("({}, {})").format(mark, value) for mark, value in marks.items()),
        )

    def copy(self, table: str, columns: list[str], rows: Iterable[pa.RecordBatch], *, temporary: bool = False) -> int:
        """Add rows to a table; their number."""
        place = sql.Identifier(*(() if temporary else (self.schema,)), table)
        with self._cursor.copy(sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(place, _names(columns))) as copy:
            for batch in rows:
                copy.write(csv_of(batch))
        return self._cursor.rowcount

    def exchange(self, table: str, keys: pa.Table, rows: pa.Table) -> None:
        """The rows of these keys go, the new ones come; what stays is updated in place: foreign keys to it hold."""
        columns, key = rows.column_names, keys.column_names
        if self.run("SELECT 1 FROM {table} LIMIT 1", table).fetchone() is None:
            self.copy(table, columns, rows.to_batches(CHUNK_ROWS))
            return
        there = self.columns(table)
        for name, part in (("__keys", keys), ("__rows", rows)):
            made = {column: there[column] for column in part.column_names}
            self.run("CREATE TEMPORARY TABLE {name} ({made}) ON COMMIT DROP", name=[name], made=made)
            self.copy(name, part.column_names, part.to_batches(CHUNK_ROWS), temporary=True)
        self.run("ANALYZE __keys, __rows")
        others = [name for name in columns if name not in key] or key
        self.run(
            _MERGE,
            table,
            **{f"{of}_key": _names(key, of) for of in "tkorn"},
            **{f"{of}_order": _names(others, of) for of in "tr"},
            columns=columns,
            values=_names(columns, "s"),
        )


def _sql(part: object) -> object:
    if isinstance(part, list):
        return _names(part)
    if isinstance(part, dict):  # the types are words of PostgreSQL's own
        return sql.SQL(", ").join(sql.SQL(f"{{}} {kind}").format(sql.Identifier(name)) for name, kind in part.items())
    return part


def _names(columns: list[str], *of: str) -> sql.Composable:
    return sql.SQL(", ").join(sql.Identifier(*of, name) for name in columns)
