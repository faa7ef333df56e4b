"""The moving parts of the demo: files that arrive, queries that join them, and what their batches took."""

from __future__ import annotations

import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semistream.errors import SemistreamError
from semistream.sinks import DeltaSink
from semistream.stats import Stats
from semistream.workloads.retail import RetailWorkload, write_files, write_master

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from semistream.demo import Place, Settings
    from semistream.demo.view import LiveQuery
    from semistream.spark import Metrics
    from semistream.stores import MasterStore
    from semistream.stores.paged import Progress

KEY = {"product": "product_id"}
COLUMNS = ["product_key", "vendor", "price"]
_LOOK_SECONDS = 0.25
_PATIENCE_SECONDS = 10.0
WARM_UP = 2  # batches that compile code, start workers and fill caches; they do not count in a rate


class Arrivals(threading.Thread):
    """Writes the sales, a file at a time and at a steady pace, whether or not anybody keeps up."""

    def __init__(self, place: Path, shop: RetailWorkload, settings: Settings) -> None:
        super().__init__(name="arrivals", daemon=True)
        batches = (shop.sales(n * settings.rows_per_file, settings.rows_per_file) for n in range(settings.files))
        self._files = write_files(batches, place)
        self._pause = 1 / settings.files_per_second
        self._ended = threading.Event()
        self.times: list[float] = []
        self.error: Exception | None = None

    def run(self) -> None:
        """Until all files are there, or `stop` is called."""
        try:
            for _ in self._files:
                self.times.append(time.monotonic())
                due = self.times[0] + len(self.times) * self._pause
                if self._ended.wait(max(0.0, due - time.monotonic())):
                    return
        except Exception as error:  # noqa: BLE001 - raised again where the demo waits
            self.error = error

    def stop(self) -> None:
        """No further file."""
        self._ended.set()
        self.join()


@dataclass(frozen=True)
class Reading:
    """One look at a running query."""

    rows: int
    batch: int
    batch_rows: int
    batch_seconds: float
    files_behind: int
    seconds_behind: float
    stats: Stats | None = None


@dataclass
class Outcome:
    """What a query did: rows and seconds of its batches, and for ours the counters."""

    name: str
    table: Path
    batches: list[tuple[int, float]] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    replayed: int = 0

    @property
    def rate(self) -> float:
        """Rows in a second while batches run, without the first ones."""
        counted = self.batches[WARM_UP:] or self.batches
        return sum(rows for rows, _ in counted) / max(1e-9, sum(seconds for _, seconds in counted))

    @property
    def batch_seconds(self) -> float:
        """The median time of a batch."""
        return statistics.median(seconds for _, seconds in self.batches[WARM_UP:] or self.batches)


Show = Callable[[Reading], None]


class Shop:
    """The parts together: master, arrivals, Spark and its queries."""

    def __init__(self, place: Place, settings: Settings) -> None:
        self.place = place
        self.settings = settings
        self.workload = RetailWorkload(products=settings.products)
        self.arrivals = Arrivals(place.sales, self.workload, settings)
        self.natives = {
            "Spark's join": self._plain,
            "Spark's join, broadcast": self._broadcast,
        }

    def build(self, progress: Progress) -> MasterStore:
        """Write the products, and build the store from them."""
        from semistream.stores import MasterStore

        write_master(self.place.master, self.workload)
        return MasterStore.build(self.place.master, self.place.store, key="product_id", progress=progress)

    def start_spark(self) -> None:
        """Start Spark; what it prints goes to a file."""
        from pyspark.errors import PySparkException

        from semistream.spark.session import local_session

        try:
            with _stderr_to(self.place.log):
                self.spark = local_session(
                    "semistream demo",
                    f"local[{self.settings.cores},4]",
                    spark__sql__session__timeZone="UTC",
                    spark__sql__warehouse__dir=str(self.place.root / "warehouse"),
                )
        except PySparkException as error:
            raise SemistreamError(f"Spark did not start: {error} (more in {self.place.log})") from error

    def enrich(self, store: MasterStore, show: LiveQuery) -> Outcome:
        """Our query, while the sales arrive; stopped once in the middle, then restarted from its checkpoint."""
        from semistream.spark import Metrics, enrich

        metrics = Metrics(self.spark, run_log=self.place.root / "metrics.jsonl")
        frame = enrich(
            self._sales(), store, on=KEY, how="left", memory=self.settings.memory, columns=COLUMNS, metrics=metrics
        )
        outcome = Outcome("semistream", self.place.table("enriched"))
        query = _Query(self, frame, outcome, metrics)
        self.arrivals.start()
        query.follow(show.update, self.settings.rows, stop_after=self.settings.stop_after_batch)
        show.stopped(query.seen, query.forget_last_commit())
        query.follow(show.update, self.settings.rows)
        outcome.stats = metrics.total
        outcome.replayed = query.sink.skipped
        metrics.close()
        return outcome

    def native(self, name: str, show: LiveQuery) -> Outcome:
        """One of Spark's own joins over the first of the same files, which have all arrived by now."""
        outcome = Outcome(name, self.place.table(f"spark-{list(self.natives).index(name) + 1}"))
        _Query(self, self.natives[name](), outcome).follow(
            show.update, self.settings.native_rows, enough_seconds=self.settings.native_seconds
        )
        return outcome

    def close(self) -> None:
        """Stop what runs."""
        if self.arrivals.is_alive():
            self.arrivals.stop()
        if hasattr(self, "spark"):
            self.spark.stop()

    def _sales(self) -> DataFrame:
        schema = "sale_id BIGINT, sold_at TIMESTAMP, store INT, product STRING, quantity INT"
        self.place.sales.mkdir(exist_ok=True)
        stream = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", self.settings.files_per_batch)
        return stream.parquet(str(self.place.sales))

    def _plain(self, hint: str | None = None) -> DataFrame:
        products = self.spark.read.parquet(str(self.place.master)).select("product_id", *COLUMNS)
        if hint:
            products = products.hint(hint)
        sales = self._sales()
        return sales.join(products, sales["product"] == products["product_id"], "left").drop("product_id")

    def _broadcast(self) -> DataFrame:
        return self._plain("broadcast")


class _Stopped(Exception):  # noqa: N818 - no error
    """Raised inside the query to end it before a batch: from outside, a stop may come in the middle of one."""


class _Query:
    """A streaming query into a Delta table, with all that the demo does to it."""

    def __init__(self, shop: Shop, frame: DataFrame, outcome: Outcome, metrics: Metrics | None = None) -> None:
        self.shop = shop
        self.frame = frame
        self.outcome = outcome
        self.metrics = metrics
        self.checkpoint = shop.place.checkpoint(outcome.table.name)
        self.sink = DeltaSink(outcome.table, app="sales")
        self.seen = -1
        self.looked_in_vain = 0
        self.running: Any = None

    def follow(
        self, show: Show, until_rows: int, stop_after: int | None = None, enough_seconds: float = math.inf
    ) -> None:
        """Start the query, show how it does, and stop it when so many rows are through, or after a batch.

        A slow one is stopped when it has run for ``enough_seconds`` and there are batches to judge it by.
        """
        started = time.monotonic()

        def write(batch: Any, batch_id: int) -> None:
            if stop_after is not None and batch_id > stop_after:
                raise _Stopped
            self.sink(batch, batch_id)

        writer = self.frame.writeStream.foreachBatch(write).option("checkpointLocation", str(self.checkpoint))
        self.running = writer.trigger(processingTime=f"{self.shop.settings.trigger_seconds} seconds").start()
        try:
            while self._look(show) < until_rows and self.seen != stop_after:
                self._check()
                if time.monotonic() - started > enough_seconds and len(self.outcome.batches) > WARM_UP:
                    break
                time.sleep(_LOOK_SECONDS)
        finally:
            self.running.stop()

    def _check(self) -> None:
        if self.shop.arrivals.error is not None:
            raise SemistreamError(f"the sales cannot be written: {self.shop.arrivals.error}")
        failure = self.running.exception()
        if failure is not None and _Stopped.__name__ not in str(failure):
            raise SemistreamError(
                f"{self.outcome.name} failed: {str(failure).strip().splitlines()[0]} (more in {self.shop.place.log})"
            )

    def _look(self, show: Show) -> int:
        batches = self.outcome.batches
        for progress in self.running.recentProgress:
            if progress.batchId > self.seen and progress.numInputRows:
                if not self._counted(len(batches) + 1):
                    break
                self.seen = progress.batchId
                batches.append((progress.numInputRows, progress.durationMs["triggerExecution"] / 1000))
        rows = sum(count for count, _ in batches)
        arrived, done = list(self.shop.arrivals.times), rows // self.shop.settings.rows_per_file
        behind = max(0, len(arrived) - done)
        waiting = time.monotonic() - arrived[done] if behind else 0.0
        stats = self.metrics.last if self.metrics and self.metrics.batches else None
        show(Reading(rows, self.seen, *(batches[-1] if batches else (0, 0.0)), behind, waiting, stats))
        return rows

    def _counted(self, batches: int) -> bool:
        """Have the counters of so many batches come in? They follow a moment after the batch; lost ones, never."""
        if self.metrics is None or self.metrics.batches >= batches:
            self.looked_in_vain = 0
            return True
        self.looked_in_vain += 1
        return self.looked_in_vain * _LOOK_SECONDS > _PATIENCE_SECONDS

    def forget_last_commit(self) -> int:
        """Put the checkpoint back to just before Spark noted the last batch, as a crash leaves it; returns the rows."""
        last = self.seen
        for part, number in (("commits", last), ("offsets", last + 1), ("sources/0", last + 1)):
            for name in (f"{number}", f".{number}.crc"):
                (self.checkpoint / part / name).unlink(missing_ok=True)
        return rows_in(self.outcome.table)


def rows_in(table: Path) -> int:
    """Rows that the Delta table holds, by its log."""
    from deltalake import DeltaTable

    return int(DeltaTable(table).count()) if DeltaTable.is_deltatable(str(table)) else 0


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Whatever is started meanwhile writes its errors to a file, for as long as it lives."""
    sys.stderr.flush()
    kept = os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(file, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(file)
