"""The demo: a shop's sales arrive as files and go through a pipeline into Delta tables.

Each gets key, vendor and price of its product, the city of its store, its revenue, and the warehouse's key of its
customer, who is made when nobody knows him. It also tests the promises: the pipeline is stopped in the middle and
restarted from its checkpoint, every sale must be in the table once, every customer must have one key, and Spark's own
joins must give the same rows.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from semistream.budget import parse_bytes
from semistream.errors import ArgumentError
from semistream_lab.needs import PIPELINE, need

DEFAULT_DIRECTORY = Path("runs/demo")
_MARKER = ".semistream-demo"  # a directory with this file was made by the demo, and may be cleared by it


@dataclass(frozen=True)
class Settings:
    """How much is joined, and how fast it arrives."""

    products: int
    files: int = 40
    rows_per_file: int = 50_000
    files_per_second: float = 2.0
    files_per_batch: int = 4
    trigger_seconds: float = 1.0  # twice as many sales could be loaded as arrive: who falls behind can catch up
    memory: str = "10%"
    cores: int = 2
    stop_after_batch: int = 5
    native_batches: int = 6  # of Spark's own joins: two to warm up, four to measure
    native_seconds: float = 20.0
    compare_rates: bool = True
    duration: str = "about a minute"

    def __post_init__(self) -> None:
        if self.products < 1000:
            raise ArgumentError(f"products={self.products} is too few to show anything; give at least 1000")

    @property
    def rows(self) -> int:
        """All sales."""
        return self.files * self.rows_per_file

    @property
    def native_rows(self) -> int:
        """The first sales, which Spark's own joins get."""
        return min(self.rows, self.native_batches * self.files_per_batch * self.rows_per_file)

    @property
    def arrival_rate(self) -> float:
        """Sales that arrive per second."""
        return self.rows_per_file * self.files_per_second


@dataclass(frozen=True)
class Place:
    """Where everything of one run of the demo lies."""

    root: Path

    @property
    def master(self) -> Path:
        """The products as they come from their source system."""
        return self.root / "products.parquet"

    @property
    def store(self) -> Path:
        """The products as a store."""
        return self.root / "products.store"

    @property
    def stores(self) -> Path:
        """The shop's stores (its branches) as a store."""
        return self.root / "stores.store"

    @property
    def customers(self) -> Path:
        """The customers, as far as they were seen."""
        return self.root / "customers.dimension"

    @property
    def warehouse(self) -> Path:
        """The tables that our pipeline fills."""
        return self.root / "warehouse"

    @property
    def sales(self) -> Path:
        """Where the sales arrive."""
        return self.root / "sales"

    @property
    def log(self) -> Path:
        """What Spark has to say."""
        return self.root / "spark.log"

    def table(self, name: str) -> Path:
        """A Delta table."""
        return self.root / name

    def checkpoint(self, name: str) -> Path:
        """The checkpoint of the query that writes the table."""
        return self.root / f"{name}.checkpoint"

    def prepare(self) -> None:
        """An empty directory; one that the demo did not make is left alone."""
        if self.root.is_dir() and any(self.root.iterdir()):
            if not (self.root / _MARKER).is_file():
                raise ArgumentError(f"{self.root} is not empty and not of an earlier demo; choose another directory")
            shutil.rmtree(self.root)
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            (self.root / _MARKER).touch()
        except OSError as error:
            raise ArgumentError(f"{self.root} cannot be written to ({error}); choose another directory") from error


def run(directory: Path | None = None, products: int = 1_000_000, quick: bool = False) -> int:
    """Run the demo and return its exit code: 0 when every promise was kept.

    ``directory`` (default: runs/demo) keeps the table and is cleared by the next run. ``quick`` takes a few seconds of
    sales only: enough to see that everything works, too little to compare speeds.
    """
    settings = _quick(products) if quick else Settings(products)
    place = Place(Path(directory or DEFAULT_DIRECTORY).absolute())
    need("the demo", *PIPELINE)
    return _run(place, settings)


def _quick(products: int) -> Settings:
    return Settings(
        min(products, 200_000),
        files=12,
        rows_per_file=5_000,
        files_per_second=8,
        trigger_seconds=0.5,
        stop_after_batch=1,
        native_batches=3,
        compare_rates=False,
        duration="about half a minute",
    )


def _run(place: Place, settings: Settings) -> int:
    from semistream_lab.demo.checks import check
    from semistream_lab.demo.shop import Shop
    from semistream_lab.demo.summary import summary
    from semistream_lab.demo.view import View

    started = time.monotonic()
    place.prepare()
    view = View()
    view.opening(place, settings)
    shop = Shop(place, settings)
    try:
        with view.building() as progress:
            store = shop.build(progress)
        with view.waiting("Starting Spark"):
            shop.start_spark()
        budget = parse_bytes(settings.memory, whole=store.bytes)
        with view.live("semistream, while the sales arrive", settings.rows, budget) as live:
            ours = shop.load(store, live)
        natives = []
        for name in shop.natives:
            with view.live(f"{name}, on the same files", settings.native_rows) as live:
                natives.append(shop.native(name, live))
    finally:
        shop.close()
    with view.waiting("Comparing the tables"):
        verdict = check(settings.rows, ours, natives)
    view.console.print("", summary(place, settings, store, verdict, time.monotonic() - started), sep="\n")
    return 0 if verdict.good else 1
