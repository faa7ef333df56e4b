"""How each arm of `bench spark` joins; see `arms_spark` for what they are and how they are run."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semistream import kernels
from semistream.stats import Stats
from semistream_lab.cells import Cell, enriched
from semistream_lab.data import BUCKETS, BenchData
from semistream_lab.errors import BenchmarkError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_METRICS_SECONDS = 120.0


class Arm:
    """What an arm does to the streaming frame, and to each batch; here nothing, which is the arm `source`."""

    joins = False
    in_python = False
    each_joins = False

    def __init__(self, spark: SparkSession, cell: Cell, data: BenchData, place: Path) -> None:
        self.spark, self.data, self.place = spark, data, place
        self.columns = enriched(cell.params["columns"])
        self.memory: str = cell.params.get("memory", "10%")
        self.reads: Path | None = None

    def whole(self, stream: DataFrame) -> DataFrame:
        """The streaming frame that the query writes."""
        return stream

    def each(self, batch: DataFrame) -> DataFrame:
        """What is done to a batch in `foreachBatch`."""
        return batch

    def counting(self, stream: DataFrame) -> DataFrame:
        """The frame of the rehearsal, with counters if there are any."""
        return self.whole(stream)

    def details(self, timed: range) -> dict[str, Any]:
        """What the rehearsal counted; ``timed`` are the numbers of the timed batches."""
        del timed
        return {}


class PassThrough(Arm):
    """Through Python and back."""

    in_python = True

    def whole(self, stream: DataFrame) -> DataFrame:
        """See `Arm.whole`."""
        return stream.mapInArrow(unchanged, stream.schema)


class Plain(Arm):
    """Spark's own plan."""

    joins = True

    def __init__(self, spark: SparkSession, cell: Cell, data: BenchData, place: Path) -> None:
        super().__init__(spark, cell, data, place)
        self.reads = data.master()
        self.master = spark.read.parquet(str(self.reads)).select("key", *self.columns)

    def whole(self, stream: DataFrame) -> DataFrame:
        """See `Arm.whole`."""
        return stream.join(self.master, "key", "left")


class Bucketed(Arm):
    """The master lies in buckets, so only the batch is shuffled, and it is the side that is hashed."""

    joins = True

    def __init__(self, spark: SparkSession, cell: Cell, data: BenchData, place: Path) -> None:
        super().__init__(spark, cell, data, place)
        self.reads = data.bucketed()
        columns = spark.read.parquet(str(self.reads)).schema
        declared = ", ".join(f"`{column.name}` {column.dataType.simpleString()}" for column in columns)
        spark.sql(
            f"CREATE TABLE master ({declared}) USING parquet "
            f"CLUSTERED BY (key) SORTED BY (key) INTO {BUCKETS} BUCKETS LOCATION '{self.reads}'"
        )
        self.master = spark.table("master").select("key", *self.columns)

    def whole(self, stream: DataFrame) -> DataFrame:
        """See `Arm.whole`."""
        return stream.hint("shuffle_hash").join(self.master, "key", "left")


class BroadcastStream(Plain):
    """The batch goes to the master."""

    each_joins = True

    def whole(self, stream: DataFrame) -> DataFrame:
        """See `Arm.whole`."""
        return stream

    def each(self, batch: DataFrame) -> DataFrame:
        """See `Arm.each`."""
        from pyspark.sql.functions import broadcast

        return self.master.join(broadcast(batch), "key")


class Semistream(Arm):
    """`enrich` with a share of the master as memory."""

    joins = True
    in_python = True

    def __init__(self, spark: SparkSession, cell: Cell, data: BenchData, place: Path) -> None:
        super().__init__(spark, cell, data, place)
        from semistream.spark import Metrics

        self.store = self.reads = data.store(cell.params["columns"])  # it has a column group of what is added
        self.run_log = place / "run.jsonl"
        self.metrics = Metrics(spark, self.run_log)

    def whole(self, stream: DataFrame) -> DataFrame:
        """See `Arm.whole`; the cache of the rehearsal goes first, so that this query fills its own."""
        from semistream.spark.area import remove_files
        from semistream.spark.prepare import FrameFacts

        remove_files(FrameFacts.of(stream).application)
        return self._enriched(stream)

    def counting(self, stream: DataFrame) -> DataFrame:
        """See `Arm.counting`."""
        return self._enriched(stream, metrics=self.metrics)

    def _enriched(self, stream: DataFrame, **more: Any) -> DataFrame:
        from semistream.spark import enrich

        options: dict[str, Any] = {"memory": self.memory, "columns": self.columns, **more}
        return enrich(stream, self.store, on="key", how="left", **options)

    def details(self, timed: range) -> dict[str, Any]:
        """The budget, and the counters of the timed batches once they have arrived."""
        from semistream.budget import parse_bytes
        from semistream.stores import MasterStore
        from semistream_lab.arms_core import counted

        end = time.monotonic() + _METRICS_SECONDS
        while time.monotonic() < end and self.metrics.batches <= timed.stop:
            time.sleep(0.05)
        if self.metrics.problem is not None:
            raise self.metrics.problem
        names = {item.name for item in fields(Stats)}
        total, seen = Stats(), 0
        for line in map(json.loads, self.run_log.read_text(encoding="utf-8").splitlines()):
            if line["batch"] in timed:
                total, seen = total + Stats(**{name: line[name] for name in names}), seen + 1
        if seen != len(timed):
            raise BenchmarkError(f"counters of {seen} of {len(timed)} timed batches arrived")
        return {
            "budget_bytes": parse_bytes(self.memory, MasterStore.open(self.store).bytes),
            **counted(total),
        }


def unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The identity, as a function that workers import by its name."""
    yield from batches


def load_code(spark: SparkSession, workers: int) -> None:
    """Start all workers and let them load what they will use: then their memory is that of an idle worker."""
    frame = spark.range(0, workers, 1, workers)
    for _ in range(2):  # twice: the first start is slow, and one worker might have served all
        frame.mapInArrow(with_code, "id long").collect()


def with_code(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The identity, slowly, after loading all kernels."""
    kernels.load_all()
    for module in ("semistream.spark", "semistream.lookup.run"):
        importlib.import_module(module)
    for batch in batches:
        time.sleep(0.5)  # so that no worker is free for a second task
        yield batch


ARMS: dict[str, Callable[[SparkSession, Cell, BenchData, Path], Arm]] = {
    "source": Arm,
    "passthrough": PassThrough,
    "plain": Plain,
    "bucketed": Bucketed,
    "broadcast_stream": BroadcastStream,
    "semistream": Semistream,
}
