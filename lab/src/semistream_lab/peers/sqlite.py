"""SQLite: a table clustered by its key, a thousand keys a statement; its page cache is the budget."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pyarrow as pa

from semistream_lab.cells import Cell, enriched
from semistream_lab.data import BenchData
from semistream_lab.peers.contract import Keys, LookupArm, Peer, in_process, rows_of

_AT_ONCE = 1000  # keys in a statement; a statement a key is ten times slower
_TYPES = {"price": "REAL", "description": "TEXT"}


def prepare(data: BenchData, columns: str) -> Path:
    """The database, with the columns that are asked for."""
    name = f"sqlite-{sqlite3.sqlite_version}-{columns}"
    with data.part(name) as draft:
        if draft is not None:
            connection = sqlite3.connect(draft / "master.db")
            names = enriched(columns)
            declared = ", ".join(f"{one} {_TYPES.get(one, 'INTEGER')}" for one in names)
            connection.execute(f"CREATE TABLE master (key INTEGER PRIMARY KEY, {declared})")
            marks = ", ".join("?" * (1 + len(names)))
            for batch in rows_of(data, columns):
                rows = zip(*(plain(column).to_pylist() for column in batch.columns), strict=True)
                connection.executemany(f"INSERT INTO master VALUES ({marks})", rows)  # noqa: S608 - marks only
            connection.commit()
            connection.close()
    return data.directory / name / "master.db"


def plain(column: pa.Array) -> pa.Array:
    """Moments as numbers: SQLite has no type for them."""
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


class SqliteArm(LookupArm):
    """One connection, read only."""

    def __init__(self, cell: Cell, data: BenchData, schema: pa.Schema) -> None:
        super().__init__(cell, data, schema)
        path = prepare(data, cell.params["columns"])
        self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        self._connection.execute(f"PRAGMA cache_size = -{max(1, self.budget // 1024)}")
        self._names = ", ".join(self.added.names)

    def get(self, keys: Keys) -> list[pa.Array]:
        """See `LookupArm.get`."""
        rows: list[tuple[object, ...]] = []
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE].tolist()
            marks = ",".join("?" * len(some))
            query = f"SELECT {self._names} FROM master WHERE key IN ({marks}) ORDER BY key"  # noqa: S608 - marks only
            rows += self._connection.execute(query, some).fetchall()
        found = []
        for values, field in zip(zip(*rows, strict=True), self.added, strict=True):
            if pa.types.is_string(field.type):
                found.append(pa.array(values, field.type))
            else:
                found.append(pa.array(np.array(values)).cast(field.type))
        return found


PEER = Peer(
    "SQLite, a table clustered by its key, a thousand keys a statement; its page cache is the budget",
    prepare,
    in_process(SqliteArm),
)
