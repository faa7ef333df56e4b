"""From a declared pipeline to one that can run in this driver: source, keys seen, memory, order, schemas, tables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from semistream.changes.duplicates import SeenKeys
from semistream.errors import ArgumentError
from semistream.pipeline.batch import Batches
from semistream.pipeline.columns import PREFIX
from semistream.pipeline.decision import Decision
from semistream.pipeline.dimensions import Mirrored, check_mirror
from semistream.pipeline.inputs import check_not_moved
from semistream.pipeline.layout import Layout, analyse
from semistream.pipeline.ledger import Ledger
from semistream.pipeline.masters import Masters, find_newest
from semistream.pipeline.memory import arrange
from semistream.pipeline.probe import is_local, probe
from semistream.pipeline.sources import FILES, Source
from semistream.pipeline.steps import check_steps
from semistream.spark.frames import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from semistream.pipeline.pipeline import Pipeline


def read_source(pipeline: Pipeline, spark: SparkSession) -> tuple[DataFrame, Source | None]:
    """Declare to Spark what is read, nothing is yet; with the source, but for a DataFrame that the user made."""
    source = pipeline.source
    if isinstance(source, Source):
        # Parquet files bring their columns: those of the first one hold for the whole run.
        fixed = replace(source, schema=source.columns()) if source.format in FILES else source
        check_not_moved(fixed, pipeline.checkpoint)
        return fixed.read(spark), fixed
    frame = cast("DataFrame", source) if hasattr(source, "writeStream") else source(spark)
    if not getattr(frame, "isStreaming", False):
        raise ArgumentError(f"source={source!r} must be a streaming DataFrame (spark.readStream), or make one")
    return frame, None


def make_batches(pipeline: Pipeline, ledger: Ledger, frame: DataFrame) -> Batches:
    """Everything that a batch needs; the warehouse's tables are there afterwards."""
    found, _ = arrow_schema(frame)
    columns = pa.schema([item for item in found if not item.name.startswith(PREFIX)])  # without those put beside them
    if pipeline.columns() is None:  # only now the source's columns are known
        check_steps(pipeline.steps, columns)
    key = next((step.remembers for step in pipeline.steps if step.remembers), None)
    seen = None
    if key is not None:
        schema = pa.schema([columns.field(name) for name in key])
        seen = SeenKeys(ledger.root / "seen", schema, pipeline.driver_memory)
    layout = _lay_out(pipeline, frame, columns.names, seen, _passing(ledger.newest()))
    newest = {name: one.number for name, one in find_newest(layout.lookups, seen).items()}
    path = None if seen is None else seen.store.path
    schemas = analyse(layout, frame, Masters(newest, path, stores={}, many=False))
    warehouse = pipeline.sink
    tables = {layout.table_of(route): schema for route, schema in schemas.tables.items()}
    for table, schema in tables.items():
        warehouse.prepare(table, schema)
    for one in layout.dimensions:
        check_mirror(warehouse, one)
    if not is_local(frame.sparkSession):
        stores = {*(one.store for one in layout.lookups), *(one.store for one in layout.dimensions)}
        probe(frame.sparkSession, [ledger.root, *map(warehouse.place, tables)], stores)
    return Batches(layout, schemas, ledger, warehouse, seen, pipeline.clock)


def _lay_out(
    pipeline: Pipeline, frame: DataFrame, columns: list[str], seen: SeenKeys | None, passing: dict[str, float]
) -> Layout:
    tasks = max(1, int(frame.sparkSession.sparkContext.defaultParallelism))
    memory = pipeline.divide_memory(seen, tasks)
    return Layout(
        table=pipeline.table,
        steps=tuple(arrange(pipeline.steps, memory, passing)),
        memory=memory,
        original=columns,
        required=pipeline.required,
        max_bad_rate=pipeline.max_bad_rate,
        tasks=tasks,
        driver_memory=pipeline.driver_memory,
        dimensions=tuple(Mirrored(table, store) for table, store in pipeline.mirrored().items()),
        relief=pipeline.relief(columns, tasks),
        limits=pipeline.sink.limits,
    )


def _passing(last: Decision | None) -> dict[str, float]:
    """What share of the rows each lookup let through in the last batch."""
    asked = {name: (seen["matched"], seen["unmatched"]) for name, seen in (last.lookups if last else {}).items()}
    return {name: matched / (matched + missed) for name, (matched, missed) in asked.items() if matched + missed}
