"""From a declared pipeline to one that can run in this driver: source, keys seen, memory, order, schemas, tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from semistream.errors import ArgumentError
from semistream.pipeline.batch import Batches
from semistream.pipeline.columns import PREFIX
from semistream.pipeline.decision import Decision
from semistream.pipeline.dimensions import Mirrored, check_mirror
from semistream.pipeline.inputs import check_not_moved
from semistream.pipeline.layout import Layout, analyse
from semistream.pipeline.ledger import Ledger
from semistream.pipeline.masters import Masters, find_newest
from semistream.pipeline.order import arrange
from semistream.pipeline.probe import is_local, probe
from semistream.pipeline.sources import FILES, Source
from semistream.pipeline.steps import check_steps
from semistream.spark.frames import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from semistream.changes.duplicates import SeenKeys
    from semistream.pipeline.pipeline import Pipeline


@dataclass(frozen=True)
class Incoming:
    """The rows that come in."""

    frame: DataFrame
    source: Source | None  # None for a DataFrame that the user made

    @property
    def columns(self) -> list[str]:
        """The user's, without those that the pipeline puts beside them."""
        return [name for name in self.frame.columns if not name.startswith(PREFIX)]


def read_source(pipeline: Pipeline, spark: SparkSession) -> Incoming:
    """Declare to Spark what is read; nothing is yet."""
    source = pipeline.source
    if isinstance(source, Source):
        # Parquet files bring their columns: those of the first one hold for the whole run.
        fixed = replace(source, schema=source.columns()) if source.format in FILES else source
        check_not_moved(fixed, pipeline.checkpoint)
        return Incoming(fixed.read(spark), fixed)
    frame = cast("DataFrame", source) if hasattr(source, "writeStream") else source(spark)
    if not getattr(frame, "isStreaming", False):
        raise ArgumentError(f"source={source!r} must be a streaming DataFrame (spark.readStream), or make one")
    return Incoming(frame, None)


def make_batches(pipeline: Pipeline, ledger: Ledger, incoming: Incoming) -> Batches:
    """Everything that a batch needs; the warehouse's tables are there afterwards."""
    from semistream.spark.frames import arrow_schema

    if pipeline.columns() is None:  # only now the source's columns are known
        check_steps(pipeline.steps, arrow_schema(incoming.frame.select(*map(quoted, incoming.columns)))[0])
    spark = incoming.frame.sparkSession
    seen = _open_seen(pipeline, ledger, incoming)
    layout = _lay_out(pipeline, incoming, seen, _passing(ledger.newest()))
    newest = {name: one.number for name, one in find_newest(layout.lookups, seen).items()}
    path = None if seen is None else seen.store.path
    schemas = analyse(layout, incoming.frame, Masters(newest, path, stores={}, many=False))
    warehouse = pipeline.sink
    for table, schema in schemas.tables.items():
        warehouse.prepare(table, schema)
    for one in layout.dimensions:
        check_mirror(warehouse, one)
    if not is_local(spark):
        places = [ledger.root, *(warehouse.place(table) for table in schemas.tables)]
        probe(spark, places, {*(one.store for one in layout.lookups), *(one.store for one in layout.dimensions)})
    return Batches(layout, schemas, ledger, warehouse, seen, pipeline.clock)


def _open_seen(pipeline: Pipeline, ledger: Ledger, incoming: Incoming) -> SeenKeys | None:
    key = next((step.remembers for step in pipeline.steps if step.remembers), None)
    if key is None:
        return None
    from semistream.changes.duplicates import SeenKeys
    from semistream.spark.frames import arrow_schema

    schema = arrow_schema(incoming.frame)[0]
    return SeenKeys(ledger.root / "seen", pa.schema([schema.field(name) for name in key]), pipeline.driver_memory)


def _lay_out(pipeline: Pipeline, incoming: Incoming, seen: SeenKeys | None, passing: dict[str, float]) -> Layout:
    """The steps in the order that costs least, each with its memory."""
    tasks = max(1, int(incoming.frame.sparkSession.sparkContext.defaultParallelism))
    memory = pipeline.divide_memory(seen, tasks)
    return Layout(
        table=pipeline.table,
        steps=tuple(arrange(pipeline.steps, memory, passing)),
        memory=memory,
        original=incoming.columns,
        required=pipeline.required,
        max_bad_rate=pipeline.max_bad_rate,
        tasks=tasks,
        driver_memory=pipeline.driver_memory,
        dimensions=tuple(Mirrored(table, store) for table, store in pipeline.mirrored().items()),
        relief=pipeline.relief(incoming.columns, tasks),
        limits=pipeline.sink.limits,
    )


def _passing(last: Decision | None) -> dict[str, float]:
    """What share of the rows each lookup let through in the last batch."""
    known = last.lookups if last else {}
    return {
        name: seen["matched"] / (seen["matched"] + seen["unmatched"])
        for name, seen in known.items()
        if seen["matched"] + seen["unmatched"]
    }
