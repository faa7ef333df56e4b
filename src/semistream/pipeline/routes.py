"""The ways that rows of a batch may go, as its tasks must know them: which columns and types, into which files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from semistream.pipeline import columns as names
from semistream.pipeline.held import SINCE, TIME, key_column
from semistream.pipeline.staging import FACT, KEYS, UNRESOLVED, Route, Stage
from semistream.pipeline.steps import Lookup

if TYPE_CHECKING:
    from semistream.pipeline.batch import Job
    from semistream.pipeline.ledger import Ledger
    from semistream.pipeline.shape import Shape
    from semistream.warehouse.contract import Warehouse


def stage_of(shape: Shape, ledger: Ledger, warehouse: Warehouse, job: Job, started: float) -> Stage:
    """For one batch."""
    now = int(started * 1_000_000)
    staging = str(ledger.staging(job.label))
    stamped = {"_batch": job.number, "_time": now}
    routes = [
        Route(FACT, tuple(shape.taken.values()), shape.facts, str(warehouse.place(shape.table))),
        Route(
            names.QUARANTINE,
            (names.RECORD, names.SOURCE, names.REASON, "batch", "time"),
            shape.quarantine,
            str(warehouse.place(shape.quarantine_table)),
            {"batch": job.number, "time": now, names.SOURCE: None},
        ),
    ]
    if shape.unmatched is not None:
        routes.append(
            Route(
                names.UNMATCHED,
                (*shape.carried, names.REASON, *stamped),
                shape.unmatched,
                str(warehouse.place(shape.unmatched_table)),
                stamped,
            )
        )
    if shape.shed is not None:
        place = str(warehouse.place(shape.shed_table))
        routes.append(Route(names.SHED, (*shape.original, *stamped), shape.shed, place, stamped))
    unresolved = [(n, one) for n, one in enumerate(shape.steps) if isinstance(one, Lookup) and one.on_miss == "infer"]
    if unresolved:
        beside = [name for n, one in unresolved for name in names.asked_columns(n, len(one.on))]
        beside += [names.status_column(n) for n, _ in unresolved]
        fields = [*shape.facts, *(pa.field(name, shape.hidden[name]) for name in beside)]
        routes.append(Route(UNRESOLVED, (*shape.taken.values(), *beside), pa.schema(fields), staging))
    for number, one in enumerate(shape.steps):
        if isinstance(one, Lookup) and one.on_miss == "hold":
            routes.append(_held(shape, number, one, staging, started))
    if shape.deduplicates is not None:
        keys = shape.deduplicates.key
        routes.append(Route(KEYS, keys, pa.schema([pa.field(name, shape.hidden[name]) for name in keys]), staging))
    return Stage(
        prefix=job.prefix,
        routes=tuple(routes),
        route=names.ROUTE,
        statuses={one.name: names.status_column(n) for n, one in enumerate(shape.steps) if isinstance(one, Lookup)},
        unresolved=tuple(one.name for _, one in unresolved),
        identity=names.IDENTITY if shape.many else None,
    )


def _held(shape: Shape, number: int, step: Lookup, staging: str, started: float) -> Route:
    asked = names.asked_columns(number, len(step.on))
    fields = [pa.field(name, shape.hidden[name]) for name in shape.carried]
    fields += [pa.field(key_column(n), shape.hidden[name]) for n, name in enumerate(asked)]
    taken = [*shape.carried, *asked]
    if step.as_of is not None:
        fields.append(pa.field(TIME, shape.hidden[names.time_column(number)]))
        taken.append(names.time_column(number))
    schema = pa.schema([*fields, pa.field(SINCE, pa.float64())])
    return Route(f"{names.HELD}:{step.name}", (*taken, SINCE), schema, staging, {SINCE: started})
