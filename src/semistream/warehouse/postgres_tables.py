"""The tables of one schema of PostgreSQL in one transaction. Imported where psycopg is known to be there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from semistream.warehouse.contract import LEDGER
from semistream.warehouse.postgres_types import CHUNK_ROWS, csv_of

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


class Session:
    """One transaction. Values go in as literals, not as parameters, since a name may hold a '%'."""

    def __init__(self, cursor: psycopg.Cursor[Any], schema: str) -> None:
        self._cursor = cursor
        self.schema = schema

    def run(self, statement: str, table: str = "", **parts: object) -> psycopg.Cursor[Any]:
        """Execute a statement with its {parts} filled in; {table} and {ledger} are tables of the schema.

        A list is names of columns, a dictionary their names and types; texts and numbers are values.
        """
        names = {"table": sql.Identifier(self.schema, table), "ledger": sql.Identifier(self.schema, LEDGER)}
        filled = {name: _sql(part) for name, part in parts.items()}
        return self._cursor.execute(sql.SQL(statement).format(**names, **filled))

    def lock(self, name: str) -> None:
        """Wait until no other transaction holds this lock; it is given back at the end of the transaction."""
        number = int.from_bytes(hashlib.sha256(f"semistream\0{name}".encode()).digest()[:8], "big", signed=True)
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
        """A mark as it is now."""
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
        """The rows of these keys go, the new ones come."""
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
