"""DuckDB as an arm: each batch joined by SQL with Parquet files, or with its own table that has a primary key.

It gets what helps it: the batch registered as Arrow without a copy, the order of rows given up, results taken as Arrow
from the relation. Its memory limit is our budget; where that is too little for it, the limit is doubled until the batch
goes through, and the result says which limit it was.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import duckdb
import pyarrow as pa

from semistream.budget import parse_bytes
from semistream.stats import Stats
from semistream.stores import MasterStore
from semistream_lab.cells import Cell, enriched
from semistream_lab.data import BenchData


class _DuckArm:
    """One connection; `_master` is what stands behind FROM."""

    def __init__(self, cell: Cell, data: BenchData, database: str, master: str) -> None:
        self._budget = parse_bytes(cell.params["memory"], whole=MasterStore.open(data.store()).bytes)
        self._limit = self._budget
        self._stats = Stats()
        self._spill = tempfile.TemporaryDirectory(prefix="semistream-duckdb-")
        self._connection = duckdb.connect(
            database,
            read_only=database != ":memory:",
            config={
                "threads": cell.params["threads"],
                "preserve_insertion_order": False,
                "temp_directory": self._spill.name,
            },
        )
        self._connection.execute("SET enable_progress_bar = false")
        self._set_limit()
        names = enriched(cell.params["columns"])
        self._never_null = names[0]  # where there is a match
        added = ", ".join(f"m.{name}" for name in names)
        self._query = f"SELECT s.*, {added} FROM batch s LEFT JOIN {master} m ON s.key = m.key"  # noqa: S608

    def _set_limit(self) -> None:
        self._connection.execute(f"SET memory_limit = '{self._limit}B'")

    def join(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One query a batch."""
        for batch in batches:
            yield from self._one(batch)

    def _one(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self._connection.register("batch", pa.Table.from_batches([batch]))
        while True:
            try:
                result = self._connection.sql(self._query).to_arrow_table()
                break
            except duckdb.OutOfMemoryException:
                self._limit *= 2
                self._set_limit()
        self._stats.rows_in += batch.num_rows
        self._stats.matched += batch.num_rows - result.column(self._never_null).null_count
        yield from result.to_batches()

    def counters(self) -> Stats:
        """Rows and matches; DuckDB's reads are its own affair."""
        return self._stats.copy()

    def details(self) -> dict[str, Any]:
        """The budget, and the limit that DuckDB could work in."""
        return {"budget_bytes": self._budget, "memory_limit_bytes": self._limit}


class ParquetArm(_DuckArm):
    """Joins with the master's Parquet files."""

    def __init__(self, cell: Cell, data: BenchData, schema: pa.Schema) -> None:
        del schema
        super().__init__(cell, data, ":memory:", f"read_parquet('{data.master()}/*.parquet')")


class TableArm(_DuckArm):
    """Joins with a table of its own, indexed by its primary key."""

    def __init__(self, cell: Cell, data: BenchData, schema: pa.Schema) -> None:
        del schema
        super().__init__(cell, data, str(data.duckdb_table()), "master")


ARMS: dict[str, Callable[[Cell, BenchData, pa.Schema], Any]] = {"duckdb_parquet": ParquetArm, "duckdb_table": TableArm}
