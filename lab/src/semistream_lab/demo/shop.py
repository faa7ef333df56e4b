"""The moving parts of the demo: master data, sales that arrive as files, Spark, our pipeline and Spark's joins."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from semistream.budget import parse_bytes
from semistream.errors import SemistreamError
from semistream_lab.demo.query import Load, Native, Outcome, rows_in
from semistream_lab.workloads.retail import STORES, RetailWorkload, write_files, write_master

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from semistream.pipeline import Pipeline
    from semistream.stores import MasterStore
    from semistream.stores.paged.store import Progress
    from semistream_lab.demo import Place, Settings
    from semistream_lab.demo.view import LiveQuery

KEY = {"product": "product_id"}
COLUMNS = ["product_key", "vendor", "price"]
SALE = {
    "sale_id": "bigint",
    "sold_at": "timestamp",
    "store": "int",
    "product": "string",
    "quantity": "int",
    "customer": "string",
}
REVENUE = "quantity * price"
TABLE = [*SALE, *COLUMNS, "city", "revenue"]
CUSTOMERS = 20_000  # nobody has a list of them
_MEMORY = {"stores": "4MB", "customers": "12MB"}  # besides that of the products; nobody is a customer at first
_CITIES = ["Oslo", "Rome", "Lima", "Accra", "Osaka", "Quito", "Perth", "Lyon"]


class Arrivals(threading.Thread):
    """Lets the sales arrive, a file at a time and at a steady pace, whether or not anybody keeps up."""

    def __init__(self, place: Path, shop: RetailWorkload, settings: Settings) -> None:
        super().__init__(name="arrivals", daemon=True)
        batches = (shop.sales(n * settings.rows_per_file, settings.rows_per_file) for n in range(settings.files))
        self._place = place
        self._files = write_files(map(with_customers, batches), place.with_name(f"{place.name}-to-come"))
        self._ready: list[Path] = []
        self._pause = 1 / settings.files_per_second
        self._ended = threading.Event()
        self.times: list[float] = []
        self.error: Exception | None = None

    def run(self) -> None:
        """Until all files are there, or `stop` is called."""
        try:
            for file in self._ready:
                file.rename(self._place / file.name)
                self.times.append(time.monotonic())
                due = self.times[0] + len(self.times) * self._pause
                if self._ended.wait(max(0.0, due - time.monotonic())):
                    return
        except Exception as error:  # noqa: BLE001 - raised again where the demo waits
            self.error = error

    def write(self) -> None:
        """Make up the sales beforehand: while they arrive, the machine is left to those who load them."""
        self._place.mkdir(parents=True, exist_ok=True)
        self._ready = list(self._files)

    def stop(self) -> None:
        """No further file."""
        self._ended.set()
        self.join()


def with_customers(sales: pa.RecordBatch) -> pa.RecordBatch:
    """Sales with the card that the customer showed."""
    number = pc.cast(pc.subtract(sales.column("sale_id"), _rounded(sales.column("sale_id"))), pa.string())
    return sales.append_column("customer", pc.binary_join_element_wise("C", pc.utf8_lpad(number, 6, "0"), ""))


def _rounded(numbers: pa.Array) -> pa.Array:
    """The next multiple of the number of customers that is not above."""
    return pc.multiply(pc.divide(numbers, CUSTOMERS), CUSTOMERS)


class Shop:
    """The parts together: masters, arrivals, Spark and its queries."""

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
        """Write products, stores and sales, and build what our pipeline looks up; the store of the products."""
        import pyarrow.parquet as pq

        from semistream.dimensions import Dimension
        from semistream.stores import MasterStore

        write_master(self.place.master, self.workload)
        self.arrivals.write()
        cities = [_CITIES[n % len(_CITIES)] for n in range(STORES)]
        stores = pa.table({"number": pa.array(range(1, STORES + 1), pa.int32()), "city": cities})
        pq.write_table(stores, self.place.root / "stores.parquet")
        MasterStore.build(stores, self.place.stores, key="number")
        Dimension.create(
            self.place.customers,
            key=pa.schema({"customer": pa.string()}),
            attributes=pa.schema({"name": pa.string()}),
            surrogate="customer_key",
        )
        return MasterStore.build(self.place.master, self.place.store, key="product_id", progress=progress)

    def start_spark(self) -> None:
        """Start Spark; what it prints goes to a file."""
        from pyspark.errors import PySparkException

        from semistream.spark.session import local_session

        try:
            self.spark = local_session(
                "semistream demo",
                f"local[{self.settings.cores},4]",
                log=self.place.log,
                spark__sql__session__timeZone="UTC",
                spark__sql__warehouse__dir=str(self.place.root / "spark-warehouse"),
            )
        except PySparkException as error:
            raise SemistreamError(f"Spark did not start: {error} (more in {self.place.log})") from error

    def pipeline(self, store: MasterStore) -> Pipeline:
        """The way of a sale into the warehouse."""
        from semistream.pipeline import Pipeline, assign_keys, compute, lookup, select, source
        from semistream.warehouse import DeltaWarehouse

        lookups = parse_bytes(self.settings.memory, whole=store.bytes) + sum(map(parse_bytes, _MEMORY.values()))
        return Pipeline(
            source("parquet", self.place.sales, schema=SALE, maxFilesPerTrigger=self.settings.files_per_batch),
            [
                lookup(store.path, on=KEY, columns=COLUMNS, name="products"),
                lookup(self.place.stores, on={"store": "number"}, name="stores", memory=_MEMORY["stores"]),
                assign_keys(
                    self.place.customers,
                    on="customer",
                    name="customers",
                    infer_members=True,
                    memory=_MEMORY["customers"],
                ),
                compute(revenue=REVENUE),
                select(*TABLE, "customer_key"),
            ],
            DeltaWarehouse(self.place.warehouse),
            table="sales",
            state=self.place.root / "state",
            memory=-(-lookups * 8 // 7),  # an eighth is for what the driver reads
            trigger=f"{self.settings.trigger_seconds} seconds",
        )

    def load(self, store: MasterStore, show: LiveQuery) -> Outcome:
        """Our pipeline, while the sales arrive; stopped once in the middle, then restarted from its checkpoint."""
        warehouse = self.place.warehouse
        outcome = Outcome("semistream", warehouse / "sales", customers=warehouse / "customers")
        query = Load(self.pipeline(store), self.spark, outcome, self.place, self.settings, self.arrivals)
        self.arrivals.start()
        query.follow(show.update, self.settings.rows, stop_after=self.settings.stop_after_batch)
        show.stopped(*query.forget_last_commit())
        query.follow(show.update, self.settings.rows, replays=1)
        show.finished(rows_in(outcome.table))
        return query.finished()

    def native(self, name: str, show: LiveQuery) -> Outcome:
        """One of Spark's own joins over the first of the same files, which have all arrived by now."""
        outcome = Outcome(name, self.place.table(f"spark-{list(self.natives).index(name) + 1}"))
        query = Native(self.natives[name](), outcome, self.place, self.settings, self.arrivals)
        query.follow(show.update, self.settings.native_rows, enough_seconds=self.settings.native_seconds)
        show.finished(rows_in(outcome.table))
        return outcome

    def close(self) -> None:
        """Stop what runs."""
        if self.arrivals.is_alive():
            self.arrivals.stop()
        if hasattr(self, "spark"):
            with contextlib.suppress(Exception):  # it may be gone
                self.spark.stop()

    def _plain(self, hint: str | None = None) -> DataFrame:
        from pyspark.sql import functions

        products = self.spark.read.parquet(str(self.place.master)).select("product_id", *COLUMNS)
        if hint:
            products = products.hint(hint)
        stores = self.spark.read.parquet(str(self.place.root / "stores.parquet"))
        schema = ", ".join(f"{name} {kind}" for name, kind in SALE.items())
        stream = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", self.settings.files_per_batch)
        sales = stream.parquet(str(self.place.sales))
        joined = sales.join(products, sales["product"] == products["product_id"], "left")
        joined = joined.join(stores, joined["store"] == stores["number"], "left")
        return joined.withColumn("revenue", functions.expr(REVENUE)).select(*TABLE)

    def _broadcast(self) -> DataFrame:
        return self._plain("broadcast")
