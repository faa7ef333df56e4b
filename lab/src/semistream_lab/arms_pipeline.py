"""The arms of `bench pipeline`: sales get keys and attributes of three masters and go into a Delta table, exactly once.

    semistream   a `Pipeline` with three lookups
    spark        the same pipeline without lookups, whose source is joined with the three masters, as Parquet, by
                 Spark's stream-static left joins, as Spark plans them by itself

Reading, the computed column, the files that tasks write, the ledger and Delta's commits are the same in both. Every arm
has two phases. *Backlog*: all batches wait, and what is measured is rows over the time from the last warm-up batch's
commit to that of the last batch. *Closed loop*: a batch arrives when Spark has noted the one before as done, and what
is measured is the time from its arrival to its commit in the table. At the end the table is read and summed up.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from semistream.budget import parse_bytes
from semistream.pipeline import Decision, Pipeline, Source, Step, compute, lookup, select, source
from semistream.stores import MasterStore
from semistream_lab.cells import Cell
from semistream_lab.data import FILES_A_BATCH, BenchData, linked, warm_page_cache
from semistream_lab.data_pipeline import ADDED, GROUP, KEYS, REVENUE, SALE, TABLE, SalesData, batch_name
from semistream_lab.errors import BenchmarkError
from semistream_lab.memory import MemoryCurve

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from semistream.pipeline import Running

ARMS = ("semistream", "spark")
_NAME = "sales"
_STALLED_SECONDS = 300.0


def run(cell: Cell, data: BenchData) -> dict[str, Any]:
    """Run one cell in this process."""
    from semistream_lab.arms_spark import session

    with tempfile.TemporaryDirectory(prefix="semistream-bench-") as place:
        spark = session(Path(place))
        try:
            return run_in(spark, cell, SalesData(data.root, data.rows), Path(place))
        finally:
            spark.stop()


def run_in(spark: SparkSession, cell: Cell, data: SalesData, place: Path) -> dict[str, Any]:
    """Run one cell in a session; ``place`` is a directory for what is not kept."""
    if cell.arm.startswith("soak"):
        from semistream_lab.soak import soak

        return soak(spark, cell, data, place)
    if cell.arm not in ARMS:
        raise BenchmarkError(f"arm {cell.arm!r} is not known; choose from {', '.join(ARMS)}")
    params = cell.params
    first, timed, closed = params["warmup"], params["batches"], params["closed"]
    sales = data.sales(first + timed + closed, params["batch_rows"])
    for master in data.masters().values():
        warm_page_cache(master.store(GROUP) if cell.arm == "semistream" else master.master())
    warm_page_cache(sales)
    job = Job(spark, data, place, params.get("memory"), natively=cell.arm == "spark")
    for number in range(first + timed):
        job.arrive(sales / batch_name(number), batch_name(number))
    with MemoryCurve() as memory, job:
        job.wait_for(first + timed)
        waits = [job.one(sales / batch_name(number)) for number in range(first + timed, first + timed + closed)]
    return {
        **job.summary(first, timed, waits),
        "checksum": job.checksum(),
        "pss_peak_bytes": max(memory.sizes, default=None),
    }


@dataclass(frozen=True)
class Committed:
    """A batch that is in the table."""

    rows: int
    at: float


class Job:
    """A pipeline at work on batches that arrive as directories."""

    def __init__(
        self,
        spark: SparkSession,
        data: SalesData,
        place: Path,
        memory: str | None,
        *,
        natively: bool = False,
        stores: dict[str, Path] | None = None,
    ) -> None:
        self.spark, self.data, self.place = spark, data, place
        self.incoming = place / "incoming"
        self.incoming.mkdir()
        self.done: list[Committed] = []
        self.last: Decision | None = None
        self._changed = threading.Condition()
        self._running: Running | None = None
        self._stores = stores or {}  # in place of those of the data
        self.pipeline = self._spark_pipeline() if natively else self._pipeline(memory or "10%")

    # -- the two pipelines -------------------------------------------------------------------------------------------

    def _pipeline(self, memory: str) -> Pipeline:
        stores = {name: self._stores.get(name) or master.store(GROUP) for name, master in self.data.masters().items()}
        whole = sum(MasterStore.open(path).bytes for path in stores.values())
        steps: list[Step] = [
            lookup(path, on={KEYS[name]: "key"}, columns=list(ADDED[name]), rename=ADDED[name], name=name)
            for name, path in stores.items()
        ]
        return self._made(self._source(), steps, memory=parse_bytes(memory, whole=whole))

    def _spark_pipeline(self) -> Pipeline:
        read = self._source()

        def joined(spark: SparkSession) -> DataFrame:
            from pyspark.sql import functions

            frame = read.read(spark)
            for name, master in self.data.masters().items():
                added = [functions.col(old).alias(new) for old, new in ADDED[name].items()]
                table = spark.read.parquet(str(master.master()))
                frame = frame.join(table.select(functions.col("key").alias(KEYS[name]), *added), KEYS[name], "left")
            return frame

        return self._made(joined, [])

    def _source(self) -> Source:
        return source("parquet", self.incoming, schema=SALE, maxFilesPerTrigger=FILES_A_BATCH, recursiveFileLookup=True)

    def _made(self, read: Source | Callable[[SparkSession], DataFrame], steps: list[Step], **more: Any) -> Pipeline:
        from semistream.warehouse.delta_tables import DeltaWarehouse

        steps = [*steps, compute(revenue=REVENUE), select(*TABLE)]
        warehouse = DeltaWarehouse(self.place / "warehouse")
        return Pipeline(read, steps, warehouse, table=_NAME, state=self.place / "state", **more)

    # -- at work -------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._running = self.pipeline.start(self.spark, told=self._told)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._running is not None
        self._running.stop()

    def _told(self, decision: Decision) -> None:
        with self._changed:
            self.last = decision
            self.done.append(Committed(decision.counts["rows_in"], time.time()))
            self._changed.notify_all()

    def arrive(self, batch: Path, name: str) -> float:
        """Let a batch arrive, at once, both files of it. When it was there."""
        draft = self.place / f"draft-{name}"
        shutil.copytree(batch, draft, copy_function=linked)
        arrived = time.time()
        draft.rename(self.incoming / name)
        return arrived

    def wait_for(self, batches: int) -> None:
        """Until so many batches are in the table and Spark has noted them; raises what stops the stream before."""
        assert self._running is not None
        seen, since = -1, time.monotonic()
        while len(self.done) < batches or not (self.pipeline.checkpoint / "commits" / str(batches - 1)).exists():
            with self._changed:
                self._changed.wait(0.005 if len(self.done) >= batches else 0.2)
            if len(self.done) != seen:
                seen, since = len(self.done), time.monotonic()
            self.look()
            if time.monotonic() - since > _STALLED_SECONDS:
                raise BenchmarkError(f"no batch was done for {_STALLED_SECONDS:.0f} s, after {seen} batches")

    def look(self) -> None:
        """Raise what stopped the stream, if something did."""
        assert self._running is not None
        if self._running.error is not None or not self._running.is_active:
            self._running.wait(10.0)
            raise BenchmarkError("the stream ended before its time")

    def one(self, batch: Path) -> float:
        """Let a batch arrive and wait for it; the seconds from its arrival to its commit in the table."""
        number = len(self.done)
        arrived = self.arrive(batch, batch.name)
        self.wait_for(number + 1)
        return self.done[number].at - arrived

    # -- what came out -------------------------------------------------------------------------------------------------

    def summary(self, first: int, timed: int, waits: list[float]) -> dict[str, Any]:
        """Rates of the backlog after ``first`` batches, and the waits of the closed loop."""
        seconds = np.diff([one.at for one in self.done[first - 1 : first + timed]])
        rows = sum(one.rows for one in self.done[first : first + timed])
        return {
            "timed": [self.done[first - 1].at, self.done[-1].at],
            "rows_per_second": rows / float(seconds.sum()),
            "batch_seconds": float(np.median(seconds)),
            "rows": rows,
            "latency_p50": float(np.quantile(waits, 0.5)),
            "latency_p99": float(np.quantile(waits, 0.99)),
            "latencies": [round(one, 4) for one in waits],
            "batches_seconds": [round(float(one), 4) for one in seconds],
            "accounted": self.accounted(),
        }

    def accounted(self) -> bool:
        """Is every row that came in the table, once, by the ledger and by Delta's log?"""
        from deltalake import DeltaTable

        assert self.last is not None
        totals, came = self.last.totals, sum(one.rows for one in self.done)
        others = [totals[name] for name in totals if name not in ("rows_in", "enriched")]
        there = int(DeltaTable(self.pipeline.sink.place(_NAME)).count())
        return totals["rows_in"] == totals["enriched"] == came == there and not any(others)

    def checksum(self) -> dict[str, str]:
        """Count and sum of row hashes of the table; by the number of rows, so that like is compared with like."""
        from deltalake import DeltaTable
        from pyspark.sql import functions

        files = DeltaTable(self.pipeline.sink.place(_NAME)).file_uris()
        mixed = functions.xxhash64(*TABLE).cast("decimal(38,0)")
        table = self.spark.read.parquet(*files)
        row = table.agg(functions.count("*").alias("rows"), functions.sum(mixed).alias("mixed")).first()
        assert row is not None
        came = sum(one.rows for one in self.done)
        if row["rows"] != came:
            raise BenchmarkError(f"{came:,} rows came in and {row['rows']:,} are in the table")
        return {f"0+{came}": f"{row['rows']}:{row['mixed']}"}
