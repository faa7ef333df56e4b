"""What the papers' experiments join: Zipf streams, and their data sets.

One contract serves all: ``master()`` gives batches, ``stream(start, count)`` a batch, ``key`` names the master's
columns and ``on`` the join. Where TPC-H's generator is missing, a Zipf stream stands in, and the figure says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semistream.errors import SemistreamError
from semistream_lab.cells import enriched
from semistream_lab.data import BenchData
from semistream_lab.workloads import make_workload
from semistream_lab.workloads.tpch_tables import find_program
from semistream_lab.workloads.zipf import ZipfWorkload

if TYPE_CHECKING:
    from semistream_lab.papers.figures import Scale

_FAR = 1 << 40  # the master's keys are drawn from another part of the same sequence than the stream's
_MASTER_ROWS = {"customer": 150_000, "partsupp": 800_000}  # of TPC-H, at scale factor 1
_MOST_FACTOR = 100.0  # the papers' own


@dataclass(frozen=True)
class ManyToMany:
    """A master whose keys repeat: ``rows`` keys over ``domain`` values by Zipf's law, and a stream over the same."""

    rows: int
    domain: int
    skew: float
    master_skew: float

    key = ("key",)
    on = "key"
    stream_rows = None

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


class Endless:
    """A workload whose stream begins anew when it has ended; batches are of one size."""

    def __init__(self, load: Any) -> None:
        self.load = load
        self.key, self.on, self.master = load.key, load.on, load.master

    def stream(self, start: int, count: int) -> pa.RecordBatch:
        """As the workload's own, as long as that goes."""
        whole = max(1, self.load.stream_rows // count)
        return self.load.stream(start // count % whole * count, min(count, self.load.stream_rows))


def tpch_there() -> bool:
    """Is the program there that makes the tables of TPC-H?"""
    try:
        find_program()
    except SemistreamError:
        return False
    return True


def load_of(params: dict[str, Any], root: Path) -> Any:
    """The workload of a cell; None for the plain one, which `bench joins` runs too."""
    name = params["workload"]
    if name == "zipf":
        return None
    if name == "many":
        return ManyToMany(params["rows"], params["domain"], params["skew"], params["master_skew"])
    place = {"directory": root / "tpch"} if name == "tpch" else {}
    load = make_workload(name, **params["options"], **place)
    return load if load.stream_rows is None else Endless(load)


@dataclass(frozen=True)
class LabData(BenchData):
    """The data of a cell; the plain workload's store is the one that the benchmarks have."""

    params: dict[str, Any] = field(default_factory=dict)

    @property
    def load(self) -> Any:
        """The generator that the master comes from."""
        return load_of(self.params, self.root) or super().load

    @property
    def key(self) -> list[str]:
        """The master's key columns."""
        return ["key"] if self.params["workload"] == "zipf" else list(self.load.key)

    @property
    def directory(self) -> Path:
        """Where it lies."""
        params = self.params
        if params["workload"] == "zipf":
            return super().directory
        if params["workload"] == "many":
            return self.root / f"many-{self.rows}-{params['domain']}-{params['master_skew']:g}"
        options = "-".join(f"{value}" for _, value in sorted(params["options"].items()))
        return self.root / f"{params['workload']}-{options}"


def weather(scale: Scale) -> tuple[dict[str, Any], str]:
    """Parameters of the cloud reports at a scale, and what a reader must know of them."""
    rows = min(scale.rows, 20_000_000)
    note = "The cloud reports are generated in the format of the originals, which cannot be shipped."
    return scale.cell(workload="weather", rows=rows, skew=0.5, options={"rows": rows}), note


def stands_in(params: dict[str, Any]) -> bool:
    """Are these the parameters of a stand-in for a data set?"""
    return params["workload"] not in ("weather", "tpch")


def tpch(scale: Scale, master: str) -> tuple[dict[str, Any], str]:
    """As `weather`, for a master table of TPC-H and its stream."""
    stream = {"customer": "orders", "partsupp": "lineitem"}[master]
    if tpch_there():
        factor = min(_MOST_FACTOR, max(0.01, scale.rows / _MASTER_ROWS[master]))
        options = {"master_table": master, "scale_factor": round(factor, 4)}
        note = f"TPC-H's {master} and {stream}, scale factor {options['scale_factor']:g}; its keys are uniform."
        rows = round(_MASTER_ROWS[master] * factor)
        return scale.cell(workload="tpch", rows=rows, skew=0.0, options=options), note
    return scale.cell(), f"The generator of TPC-H ({master}, {stream}) is not there: Zipf with skew 1 stands in."
