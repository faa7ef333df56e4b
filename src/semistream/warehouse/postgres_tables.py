"""Columns and rows of PostgreSQL's tables: looked up, copied in, exchanged by key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from semistream.errors import SinkError
from semistream.warehouse.postgres_session import Session, composed, literal, names
from semistream.warehouse.postgres_types import csv_of

if TYPE_CHECKING:
    from psycopg import sql

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


def columns_of(session: Session, schema: str, table: str) -> dict[str, str]:
    """Names and types, none when the table is not there. A text with a limit is a text."""
    found = session.run(_COLUMNS, schema=literal(schema), table=literal(table)).fetchall()
    return {name: "text" if kind.startswith("character varying") else kind for name, kind in found}


def copy_rows(session: Session, table: sql.Composable, columns: list[str], rows: Iterator[pa.RecordBatch]) -> int:
    """Add rows to a table; their number."""
    statement = composed("COPY {table} ({columns}) FROM STDIN (FORMAT csv)", table=table, columns=names(columns))
    return session.copy(statement, (csv_of(batch) for batch in rows))


def exchange_rows(
    session: Session, table: sql.Composable, there: dict[str, str], keys: pa.Table, rows: pa.Table
) -> None:
    """The rows of these keys go, the new ones come. ``there`` are the table's columns and types."""
    from psycopg import sql

    columns, key = rows.column_names, keys.column_names
    found: Any = session.run("SELECT EXISTS (SELECT FROM {table})", table=table).fetchone()
    if not found[0]:
        copy_rows(session, table, columns, iter(rows.to_batches(_CHUNK_ROWS)))
        return
    for name, part in (("__keys", keys), ("__rows", rows)):
        made = defined({column: there[column] for column in part.column_names})
        session.run("CREATE TEMPORARY TABLE {name} ({made}) ON COMMIT DROP", name=sql.Identifier(name), made=made)
        copy_rows(session, sql.Identifier(name), part.column_names, iter(part.to_batches(_CHUNK_ROWS)))
    session.run("ANALYZE __keys, __rows")
    others = [name for name in columns if name not in key] or key
    session.run(
        _MERGE,
        table=table,
        key=names(key, "r"),
        order=names(others, "r"),
        key_t=names(key, "t"),
        order_t=names(others, "t"),
        key_o=names(key, "k"),
        same_k=_same(key, "t", "k"),
        same_o=_same(key, "o", "n"),
        sets=sql.SQL(", ").join(composed("{c} = s.{c}", c=sql.Identifier(name)) for name in columns),
        columns=names(columns),
        values=names(columns, "s"),
    )


def _same(key: list[str], one: str, other: str) -> sql.Composable:
    from psycopg import sql

    pairs = [composed("{a} = {b}", a=sql.Identifier(one, name), b=sql.Identifier(other, name)) for name in key]
    return sql.SQL(" AND ").join(pairs)


def defined(columns: dict[str, str]) -> sql.Composable:
    """Names and types; the types are words of PostgreSQL's own."""
    from psycopg import sql

    return sql.SQL(", ").join(composed(f"{{name}} {kind}", name=sql.Identifier(name)) for name, kind in columns.items())


def batches_of(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file, a piece at a time."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for batch in file.iter_batches(_CHUNK_ROWS, columns=columns):
                yield batch.select(columns)  # they come in the file's order
    except (OSError, pa.ArrowException) as error:
        raise SinkError(f"{path} is damaged: {error}") from error
