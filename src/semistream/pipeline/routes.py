"""The ways that rows of a batch may go, as its tasks must know them: which columns and types, into which files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from semistream.pipeline import columns as names
from semistream.pipeline.limits import as_text
from semistream.pipeline.staging import FACT, UNRESOLVED, Route, Stage
from semistream.pipeline.ways import MOST_FIELD_BYTES
from semistream.spark.frames import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from semistream.pipeline.batch import BatchId
    from semistream.pipeline.layout import Layout, Schemas
    from semistream.warehouse.contract import Warehouse


def make_stage(
    layout: Layout, schemas: Schemas, warehouse: Warehouse, batch: BatchId, staging: str, started: float, *, many: bool
) -> Stage:
    """For one batch; files that no table gets go into ``staging``."""
    now = int(started * 1_000_000)
    stamped = {"_batch": batch.number, "_time": now}
    columns: dict[str, tuple[str, tuple[str, ...], dict[str, int | None]]] = {
        layout.table: (FACT, tuple(schemas.taken.values()), {}),
        layout.unmatched_table: (names.UNMATCHED, (*layout.carried, names.REASON, *stamped), {**stamped}),
        layout.shed_table: (names.SHED, (*layout.original, *stamped), {**stamped}),
        layout.quarantine_table: (
            names.QUARANTINE,
            (names.RECORD, names.SOURCE, names.REASON, "batch", "time"),
            {"batch": batch.number, "time": now, names.SOURCE: None},
        ),
    }
    routes = []
    for table, schema in schemas.tables.items():
        route, taken, constants = columns[table]
        routes.append(Route(route, taken, schema, str(warehouse.place(table)), constants))
    unresolved = [(number, one) for number, one in layout.numbered if one.on_miss == "infer"]
    if unresolved:
        beside = [name for number, one in unresolved for name in names.asked_columns(number, len(one.keys))]
        beside += [names.status_column(number) for number, _ in unresolved]
        fields = [*schemas.tables[layout.table], *(pa.field(name, schemas.hidden[name]) for name in beside)]
        routes.append(Route(UNRESOLVED, (*schemas.taken.values(), *beside), pa.schema(fields), staging))
    for number, step in enumerate(layout.steps):
        routes += step.routes(number, layout, schemas, staging, started)
    return Stage(
        prefix=batch.prefix,
        routes=tuple(routes),
        route=names.ROUTE,
        statuses={one.name: names.status_column(number) for number, one in layout.numbered},
        unresolved=tuple(one.name for _, one in unresolved),
        identity=names.IDENTITY if many else None,
    )


def choose_columns(frame: DataFrame, stage: Stage, layout: Layout) -> DataFrame:
    """Only the columns that some route writes cross to Python; what tells of a bad record only where there is one."""
    record = f"to_json(struct({', '.join(map(quoted, layout.original))}))"
    if names.BROKEN in frame.columns:
        record = f"coalesce({names.BROKEN}, {record})"
    told = {names.RECORD: as_text(f"substring({record}, 1, {MOST_FIELD_BYTES})", layout.limits)}
    if names.SOURCE in frame.columns:
        told[names.SOURCE] = names.SOURCE
    wanted = [quoted(name) for name in stage.columns if name in frame.columns and name not in (*told, names.REASON)]
    wanted.append(f"{as_text(names.REASON, layout.limits)} AS {names.REASON}")
    bad = f"{names.ROUTE} = '{names.QUARANTINE}'"
    return frame.selectExpr(*wanted, *[f"CASE WHEN {bad} THEN {text} END AS {name}" for name, text in told.items()])
