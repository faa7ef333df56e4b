"""What the papers' experiments join: Zipf streams, and the real data sets where their workload is there.

One contract serves all: ``master()`` gives batches, ``stream(start, count)`` a batch, ``key`` names the column.
Until a data set's workload is there, a Zipf stream of the same shape stands in for it, and the figure says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import semistream.workloads
from semistream.lab.cells import enriched
from semistream.lab.data import BenchData
from semistream.workloads.zipf import ZipfWorkload

LONGITUDES = 36_000  # values of the cloud reports' join attribute
TPCH_ROWS = {"customer-orders": 150_000, "partsupp-lineitem": 800_000}  # of the master, at scale factor 1
_FAR = 1 << 40  # the master's keys are drawn from another part of the same sequence than the stream's


@dataclass(frozen=True)
class ManyToMany:
    """A master whose keys repeat: ``rows`` keys over ``domain`` values by Zipf's law, and a stream over the same."""

    rows: int
    domain: int
    skew: float
    master_skew: float
    key: str = "key"

    @property
    def columns(self) -> list[str]:
        """The master's columns that are added."""
        return enriched("three")

    def master(self) -> Iterator[pa.RecordBatch]:
        """120-byte rows, as in the plain workload, with keys that repeat."""
        keys, start = ZipfWorkload(self.domain, skew=self.master_skew), _FAR
        for batch in ZipfWorkload(self.rows).master():
            drawn = pa.array(keys.keys(start, batch.num_rows))
            yield batch.set_column(0, "key", drawn)
            start += batch.num_rows

    def stream(self, start: int, count: int) -> pa.RecordBatch:
        """20-byte rows."""
        return ZipfWorkload(self.domain, skew=self.skew).stream(start, count)


def there(name: str) -> bool:
    """Is there a workload of this name?"""
    return name in getattr(semistream.workloads, "WORKLOADS", {})


def load_of(params: dict[str, Any]) -> Any:
    """The workload of a cell; None for the plain one, which `bench joins` runs too."""
    name = params["workload"]
    if name == "zipf":
        return None
    if name == "many":
        return ManyToMany(params["rows"], params["domain"], params["skew"], params["master_skew"])
    return semistream.workloads.WORKLOADS[name](**params["options"])  # type: ignore[attr-defined]


@dataclass(frozen=True)
class LabData(BenchData):
    """The data of a cell; the plain workload's store is the one that the benchmarks have."""

    params: dict[str, Any] = field(default_factory=dict)

    @property
    def load(self) -> Any:
        """The generator that the master comes from."""
        return load_of(self.params) or super().load

    @property
    def key(self) -> str:
        """The master's key column."""
        key = self.load.key if self.params["workload"] != "zipf" else "key"
        return key if isinstance(key, str) else key[0]

    @property
    def directory(self) -> Path:
        """Where it lies."""
        params = self.params
        if params["workload"] == "zipf":
            return super().directory
        if params["workload"] == "many":
            return self.root / f"many-{self.rows}-{params['domain']}-{params['master_skew']:g}"
        options = "-".join(f"{name}{value}" for name, value in sorted(params["options"].items()))
        return self.root / f"{params['workload']}-{options}"


def weather(scale: Any) -> tuple[dict[str, Any], str]:
    """Parameters of the cloud reports at a scale, and what a reader must know of them."""
    rows = min(scale.rows, 20_000_000)
    if there("weather"):
        note = "The cloud reports are generated in their format; the originals cannot be shipped."
        return scale.cell(workload="weather", rows=rows, options={"rows": rows}), note
    note = "The cloud reports' workload is not there yet: a Zipf stream over 36,000 values, many-to-many, stands in."
    return scale.cell(workload="many", rows=rows, domain=LONGITUDES, master_skew=0.5, skew=0.5), note


def tpch(scale: Any, tables: str) -> tuple[dict[str, Any], str]:
    """As `weather`, for two tables of TPC-H."""
    if there("tpch"):
        factor = max(0.01, scale.rows / TPCH_ROWS[tables])
        return scale.cell(workload="tpch", options={"tables": tables, "scale_factor": factor}), f"TPC-H, {tables}."
    return scale.cell(), f"TPC-H's workload ({tables}) is not there yet: Zipf with skew 1 stands in."
