"""TPC-H at any scale factor: real data of the benchmark's own rules, made once by `tpchgen-cli` and kept on disk.

Two joins, as in the papers: ``partsupp`` as master and ``lineitem`` as stream on the part (MOIJ's experiment, four rows
a key), ``customer`` as master and ``orders`` as stream on the customer (SSCJ's, one row a key; a third of the customers
never orders). The papers use scale factor 100. The generator is a program of its own (Apache 2.0), which
``pip install 'semistream-lab[tpch]'`` brings along; once made, the data is read without it.

Tables lie as Parquet below the directory that the caller gives, ``sf1/lineitem/part-00000.parquet`` and so on. They are
made part by part, so memory stays bounded and an interrupted run goes on where it stopped; a table that bears its name
is complete. `stream` reads only the row groups that it needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import pyarrow as pa

from semistream.errors import ArgumentError, choose, local_path
from semistream_lab.workloads.numbered import BATCH_ROWS, slices
from semistream_lab.workloads.tpch_tables import Table, make_table

if TYPE_CHECKING:
    from semistream.stores.paged.store import Progress

MASTERS = ("partsupp", "customer")
_STREAMS = {"partsupp": "lineitem", "customer": "orders"}
_KEYS = {"partsupp": {"l_partkey": "ps_partkey"}, "customer": {"o_custkey": "c_custkey"}}


@dataclass(frozen=True)
class TpchWorkload:
    """A master table and its stream at a scale factor, in a directory that is made when it is not there."""

    name: ClassVar[str] = "tpch"
    idea: ClassVar[str] = "TPC-H: lineitem with partsupp, or orders with customer"
    aliases: ClassVar[Mapping[str, str]] = {"cache": "directory", "sf": "scale_factor"}

    directory: Path
    scale_factor: float = 1.0
    master_table: Literal["partsupp", "customer"] = "partsupp"

    def __post_init__(self) -> None:
        choose("master_table", self.master_table, MASTERS)
        if not 0.001 <= self.scale_factor < math.inf:
            raise ArgumentError(f"scale_factor={self.scale_factor} must be 0.001 or more; 1 is about 1 GB")

    @property
    def on(self) -> dict[str, str]:
        """The join: {stream column: master column}."""
        return dict(_KEYS[self.master_table])

    @property
    def key(self) -> list[str]:
        """The master's key column."""
        return list(self.on.values())

    @property
    def master_schema(self) -> pa.Schema:
        """Columns of the master."""
        return self._master.schema

    @property
    def stream_schema(self) -> pa.Schema:
        """Columns of the stream."""
        return self._stream.schema

    @property
    def master_rows(self) -> int:
        """Rows of the master."""
        return self._master.rows

    @property
    def stream_rows(self) -> int:
        """Rows of the stream."""
        return self._stream.rows

    def master(self, batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """All rows of the master, in key order."""
        return slices(self.master_slice, self.master_rows, batch_rows)

    def master_slice(self, start: int, count: int) -> pa.RecordBatch:
        """Rows ``start`` to ``start + count`` of the master."""
        return self._master.read(start, count)

    def stream(self, start: int, count: int) -> pa.RecordBatch:
        """Rows ``start`` to ``start + count`` of the stream, which ends with its table."""
        return self._stream.read(start, count)

    def prepare(self, progress: Progress | None = None) -> None:
        """Make both tables; at once when they are there."""
        for table in (self.master_table, _STREAMS[self.master_table]):
            make_table(self._place, table, self.scale_factor, progress)

    @property
    def _place(self) -> Path:
        return local_path("directory", self.directory) / f"sf{self.scale_factor:g}"

    @cached_property
    def _master(self) -> Table:
        self.prepare()
        return Table(self._place / self.master_table)

    @cached_property
    def _stream(self) -> Table:
        self.prepare()
        return Table(self._place / _STREAMS[self.master_table])
