"""The moving parts of the demo: products, sales that arrive as files, Spark, and the joins."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from semistream.demo.query import Outcome, Query
from semistream.errors import SemistreamError
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
        query = self._query(frame, outcome, metrics)
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
        self._query(self.natives[name](), outcome).follow(
            show.update, self.settings.native_rows, enough_seconds=self.settings.native_seconds
        )
        return outcome

    def close(self) -> None:
        """Stop what runs."""
        if self.arrivals.is_alive():
            self.arrivals.stop()
        if hasattr(self, "spark"):
            with contextlib.suppress(Exception):  # it may be gone
                self.spark.stop()

    def _query(self, frame: DataFrame, outcome: Outcome, metrics: Metrics | None = None) -> Query:
        return Query(frame, outcome, self.place, self.settings, self.arrivals, metrics)

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


@contextlib.contextmanager
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
