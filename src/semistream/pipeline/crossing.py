"""Lookups that stand side by side, in one crossing to Python; each says where rows without a match go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from semistream.errors import SchemaError
from semistream.pipeline.columns import (
    DROPPED,
    EXPIRED,
    FAILED,
    HELD,
    QUARANTINE,
    ROUTE,
    UNMATCHED,
    asked_columns,
    carrier_column,
    status_column,
    time_column,
)
from semistream.pipeline.routes import Departure, leave_by
from semistream.spark.frames import quoted, spark_arrow
from semistream.spark.lookups import CrossingLookup, look_up_all
from semistream.spark.prepare import FrameFacts, prepare
from semistream.spark.spec import EnrichSpec

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Column, DataFrame

    from semistream.pipeline.steps.lookup import Lookup
    from semistream.stores import MasterStore

_ROUTES = {"drop": DROPPED, "fail": FAILED, "redirect": UNMATCHED, "hold": HELD}


@dataclass(frozen=True)
class PlacedLookup:
    """A lookup of the pipeline with its place among the steps, the version that it reads and the memory that it has."""

    step: Lookup
    number: int
    store: MasterStore | Path
    version: int
    memory: int


def look_up(frame: DataFrame, lookups: Sequence[PlacedLookup], tasks: int) -> DataFrame:
    """Lookups that stand side by side: the masters' columns, their statuses, and the routes of rows without a match."""
    from pyspark.sql import functions as F

    if not lookups:
        return frame
    about = FrameFacts.of(frame)
    kinds = {item.name: item.type for item in about.schema}
    asked: list[CrossingLookup] = []
    beside: dict[str, str] = {}
    for one in lookups:
        step = one.step
        columns = dict(zip(asked_columns(one.number, len(step.keys)), step.keys, strict=True))
        on = dict(zip(columns, step.keys.values(), strict=True))
        if step.as_of is not None:
            columns[time_column(one.number)] = step.as_of
        foreign = [f"{name!r} of type {about.foreign[name]}" for name in columns.values() if name in about.foreign]
        if foreign:
            raise SchemaError(f"{step.name} cannot look up by column {foreign[0]}; cast it in compute(...)")
        stream = pa.schema([pa.field(name, kinds[column]) for name, column in columns.items()])
        prepared = prepare(
            replace(about, schema=stream, foreign={}),
            one.store,
            step.copy_to(
                EnrichSpec,
                on=on,
                as_of=None if step.as_of is None else time_column(one.number),
                memory=one.memory,
                master_version=one.version,
                transport="keys",
                tasks_per_host=tasks,
                on_miss="null",  # what becomes of a miss, and how many there may be, is the pipeline's affair
                min_match_rate=0.0,
            ),
        )
        plan = prepared.plan
        given = tuple(step.new_name(name) for name in plan.names)
        there = [name for name in given if name in kinds]
        if there:
            raise SchemaError(f"{step.name}: there is a column {there[0]!r} already; give the new one another name")
        kinds |= {new: spark_arrow(plan.output.field(old).type) for new, old in zip(given, plan.names, strict=True)}
        if step.on_miss in ("hold", "infer"):
            beside |= columns  # held rows and members that are made need to know what was asked for
        asked.append(
            CrossingLookup.of(
                prepared,
                tuple(columns.values()),
                given,
                status_column(one.number),
                leaves=step.leaves,
                unless_given_up=step.on_miss == "hold" and step.then == "null",
                refuses_null=step.on_null == "quarantine",
            )
        )
    stays = _given_up() if any(one.unless_given_up for one in asked) else None
    found = look_up_all(frame, asked, F.col(ROUTE).isNull(), stays, carrier_column(lookups[0].number))
    if beside:
        found = found.withColumns({name: F.col(quoted(column)) for name, column in beside.items()})
    return leave_by(found, [departure for one in lookups for departure in _departures(one)])


def _departures(one: PlacedLookup) -> list[Departure]:
    """Rows that leave at a lookup."""
    from pyspark.sql import functions as F

    step, found = one.step, []
    if step.on_null == "quarantine":
        for name in step.keys:
            reason = F.lit(f"{name} is NULL, the key of {step.name}")
            found.append((F.col(quoted(name)).isNull(), F.lit(QUARANTINE), reason))
    if not step.leaves:
        return found
    missed = ~F.col(status_column(one.number))
    asked = [F.col(quoted(name)).cast("string") for name in step.keys]
    keys = F.concat_ws(", ", *[F.coalesce(key, F.lit("NULL")) for key in asked])
    reason = F.concat(F.lit(f"{step.name}: no row for "), keys)
    if step.on_miss != "hold":
        return [*found, (missed, F.lit(_ROUTES[step.on_miss]), reason)]
    found.append((missed & ~_given_up(), F.lit(f"{HELD}:{step.name}"), reason))
    if step.then == "redirect":
        found.append((missed, F.lit(UNMATCHED), reason))
    return found


def _given_up() -> Column:
    """Of a row that was held: it waited in vain."""
    from pyspark.sql import functions as F

    return F.coalesce(F.col(EXPIRED), F.lit(False))
