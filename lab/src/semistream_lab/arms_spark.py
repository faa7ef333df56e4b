"""The arms of `bench spark`: the same micro-batches through Spark's own joins and through `enrich`.

    source            read the stream and drop it: what Spark takes without us
    passthrough       the stream through `mapInArrow` and back, unchanged: the bound of what goes through Python whole
    plain             a stream-static left join, as Spark plans it by itself
    bucketed          the same with a master bucketed and sorted by the key, and the batch hashed (`shuffle_hash`)
    broadcast_stream  the batch broadcast to the master in `foreachBatch`. Spark cannot broadcast the preserved side of
                      an outer join, so this is an inner join, equal here since every key has a match, as is checked
    semistream        `enrich`

Every arm runs one query: large batches that fill caches, a few of the size measured, timed ones and a last one. All are
written in `foreachBatch`, those timed to the `noop` sink; of the others every second is checked by count and sum of row
hashes. The time of a batch is that of its trigger, planning and commit included. Arms that go through Python run the
query twice and are timed the second time, with a cache of its own for `enrich`; the first gives counters and memory.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semistream_lab.cells import Cell, enriched
from semistream_lab.data import BUCKETS, FILES_A_BATCH, BenchData, Stream, warm_page_cache
from semistream_lab.errors import BenchmarkError
from semistream_lab.memory import MemorySampler
from semistream_lab.spark_joins import ARMS, load_code

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WORKERS = 2
_JOIN_NODES = re.compile(
    r"\b((?:BroadcastHash|SortMerge|ShuffledHash|BroadcastNestedLoop)Join|MapInArrow|ArrowEvalPython)\b"
)


def stream_plan(params: dict[str, Any]) -> Stream:
    """The micro-batches of a cell: large ones, warm-up, timed, and one to check."""
    count = params["warmup"] + params["batches"] + 1
    return Stream(params["stream"] == "wide", params["batch_rows"], count, params["large_rows"], params["large"])


def session(directory: Path) -> SparkSession:
    """A session, the same for all arms; what it writes goes to ``directory``."""
    from semistream.spark.session import local_session

    os.environ["PYSPARK_PYTHON"] = sys.executable
    return local_session(
        "semistream bench",
        f"local[{_WORKERS}]",
        spark__driver__memory="4g",
        spark__local__dir=str(directory / "local"),
        spark__sql__execution__arrow__maxRecordsPerBatch="50000",
        spark__sql__shuffle__partitions=str(_WORKERS),
        spark__sql__warehouse__dir=str(directory / "warehouse"),
        spark__ui__enabled="false",
    )


def run(cell: Cell, data: BenchData) -> dict[str, Any]:
    """Run one cell in this process."""
    with tempfile.TemporaryDirectory(prefix="semistream-bench-") as place:
        spark = session(Path(place))
        try:
            return run_in(spark, cell, data, Path(place))
        finally:
            spark.stop()


def run_in(spark: SparkSession, cell: Cell, data: BenchData, place: Path) -> dict[str, Any]:
    """Run one cell in a session; ``place`` is a directory for what is not kept."""
    if cell.arm == "make_bucketed":
        return make_bucketed(spark, data)
    if cell.arm not in ARMS:
        raise BenchmarkError(f"arm {cell.arm!r} is not known; choose from {', '.join(ARMS)}")
    return _Run(spark, cell, data, place).result()


def make_bucketed(spark: SparkSession, data: BenchData) -> dict[str, Any]:
    """Write Spark's bucketed and sorted table; its definition is made again in every session, its files stay."""
    draft = data.bucketed().with_name(f".draft-{os.getpid()}-{data.bucketed().name}")
    master = spark.read.parquet(str(data.master()))
    writer = master.repartition(BUCKETS, "key").write.bucketBy(BUCKETS, "key").sortBy("key")
    writer.option("path", str(draft)).saveAsTable("draft")
    draft.rename(data.bucketed())
    return {}


class _Run:
    """One query of one arm."""

    def __init__(self, spark: SparkSession, cell: Cell, data: BenchData, place: Path) -> None:
        self.spark, self.params, self.place = spark, cell.params, place
        self.arm = ARMS[cell.arm](spark, cell, data, place)
        self.plan = stream_plan(cell.params)
        self.source = data.stream(self.plan)
        self.schema = spark.read.parquet(str(self.source)).schema
        self.columns = list(self.schema.names)
        if self.arm.joins:
            self.columns += enriched(cell.params["columns"])
        self.first_timed = self.plan.large + self.params["warmup"]
        self.after_timed = self.first_timed + self.params["batches"]
        self.checks: dict[str, str] = {}
        self.nodes: list[str] = []
        for path in (self.source, self.arm.reads):
            if path is not None:
                warm_page_cache(path)

    def result(self) -> dict[str, Any]:
        """Arms that go through Python rehearse first: the memory of their workers is sampled, and counters are taken,
        when nothing is timed, for both cost something.
        """
        stream = self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", FILES_A_BATCH)
        details: dict[str, Any] = {}
        if self.arm.in_python:
            with MemorySampler(os.getpid(), workers=True) as sampler:
                load_code(self.spark, _WORKERS)
                sampler.mark_idle()
                self._query(self.arm.counting(stream.parquet(str(self.source))), "rehearsal")
                details = self.arm.details(range(self.first_timed, self.after_timed))
            details |= self._memory(sampler)
        summary = self._query(self.arm.whole(stream.parquet(str(self.source))), "checkpoint")
        return {**summary, "plan": list(dict.fromkeys(self.nodes)), **details}

    def _query(self, frame: DataFrame, checkpoint: str) -> dict[str, Any]:
        """Run a query to its end and sum it up. Spark forgets all but the last hundred progress reports by default."""
        self.spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(len(self.plan.sizes) + 1))
        writer = frame.writeStream.foreachBatch(self._write).option("checkpointLocation", str(self.place / checkpoint))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        if not self.nodes:
            self.nodes = _JOIN_NODES.findall(query._jsq.explainInternal(False))  # noqa: SLF001 - its text, not printed
        return self._summary([json.loads(one.json) for one in query.recentProgress])

    def _summary(self, progress: list[dict[str, Any]]) -> dict[str, Any]:
        took = {one["batchId"]: one["durationMs"]["triggerExecution"] / 1000 for one in progress if one["numInputRows"]}
        expected = len(self.plan.sizes)
        if len(took) != expected:
            raise BenchmarkError(f"the query made {len(took)} batches instead of {expected}")
        seconds = [took[number] for number in range(self.first_timed, self.after_timed)]
        rows = self.params["batch_rows"] * len(seconds)
        started = {one["batchId"]: datetime.fromisoformat(one["timestamp"]).timestamp() for one in progress}
        last = self.after_timed - 1
        return {
            "timed": [started[self.first_timed], started[last] + took[last]],
            "rows_per_second": rows / sum(seconds),
            "batch_seconds": statistics.median(seconds),
            "rows": rows,
            "checksum": self.checks,
        }

    def _memory(self, sampler: MemorySampler) -> dict[str, Any]:
        usage = sampler.usage
        return {
            "workers": usage.processes,
            "pss_growth_bytes": usage.growth if usage.processes else None,
            "pss_growth_at_once_bytes": usage.growth_at_once if usage.processes else None,
            "pss_idle_bytes": usage.idle if usage.processes else None,
            "shared_memory_growth_bytes": usage.shared_memory_growth,
        }

    def _is_checked(self, number: int) -> bool:
        return number == self.after_timed or (number < self.first_timed and number % 2 == 0)

    def _write(self, batch: DataFrame, number: int) -> None:
        joined = self.arm.each(batch).select(*self.columns)
        if not self._is_checked(number):
            joined.write.format("noop").mode("overwrite").save()
            return
        from pyspark.sql import functions

        if number == 0 and self.arm.each_joins:
            self.nodes = _JOIN_NODES.findall(joined._jdf.queryExecution().executedPlan().toString())  # noqa: SLF001
        mixed = functions.xxhash64(*self.columns).cast("decimal(38,0)")
        row = joined.agg(functions.count("*").alias("rows"), functions.sum(mixed).alias("mixed")).first()
        if row is None or row["rows"] != self.plan.sizes[number]:
            raise BenchmarkError(f"{row} came out of {self.plan.sizes[number]:,} rows; every key has one match here")
        # By rows of the stream, not by number: arms may have other batches before those that are timed.
        start = sum(self.plan.sizes[:number])
        self.checks[f"{start}+{row['rows']}"] = f"{row['rows']}:{row['mixed']}"
