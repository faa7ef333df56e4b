"""DuckDB: a table of its own with a primary key, one query a batch."""

from __future__ import annotations

from pathlib import Path

from semistream_lab.arms_duckdb import TableArm
from semistream_lab.data import BenchData
from semistream_lab.peers.contract import Peer, in_process


def prepare(data: BenchData, columns: str) -> Path:
    """The database; it has all columns, and reads those that are asked for."""
    del columns
    return data.duckdb_table()


PEER = Peer(
    "DuckDB, its own table with a primary key, one thread; its memory limit is the budget, doubled until it serves",
    prepare,
    in_process(TableArm),
)
