"""Lookups that stand side by side, in one crossing to Python; each says where rows without a match go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

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
from semistream.pipeline.ways import Way, take
from semistream.spark.columns import spark_arrow
from semistream.spark.frames import quoted
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
class Numbered:
    """A lookup of the pipeline with its place among the steps, the version that it reads and the memory that it has."""

    step: Lookup
    number: int
    store: MasterStore | Path
    version: int
    memory: int


def look_up(frame: DataFrame, lookups: Sequence[Numbered], tasks: int) -> DataFrame:
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
        columns = dict(zip(asked_columns(one.number, len(step.on)), step.on, strict=True))
        on = dict(zip(columns, step.on.values(), strict=True))
        more: dict[str, Any] = {}
        if step.as_of is not None:
            columns[time_column(one.number)] = step.as_of
            more = {"as_of": time_column(one.number), "valid_from": step.valid_from, "valid_to": step.valid_to}
        foreign = [f"{name!r} of type {about.foreign[name]}" for name in columns.values() if name in about.foreign]
        if foreign:
            raise SchemaError(f"{step.name} cannot look up by column {foreign[0]}; cast it in compute(...)")
        stream = pa.schema([pa.field(name, kinds[column]) for name, column in columns.items()])
        prepared = prepare(
            replace(about, schema=stream, foreign={}),
            one.store,
            EnrichSpec(
                on=on,
                columns=step.columns,
                defaults=step.defaults,
                memory=one.memory,
                algorithm=step.algorithm,
                master_version=one.version,
                multiple=step.multiple,
                transport="keys",
                allow_empty=True,
                tasks_per_host=tasks,
                **more,
            ),
        )
        plan = prepared.plan
        given = tuple(step.rename.get(name, name) for name in plan.names)
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
    return take(found, [way for one in lookups for way in _ways(one)])


def _ways(one: Numbered) -> list[Way]:
    """The ways on which rows leave at a lookup."""
    from pyspark.sql import functions as F

    step, ways = one.step, []
    if step.on_null == "quarantine":
        for name in step.on:
            reason = F.lit(f"{name} is NULL, the key of {step.name}")
            ways.append((F.col(quoted(name)).isNull(), F.lit(QUARANTINE), reason))
    if not step.leaves:
        return ways
    missed = ~F.col(status_column(one.number))
    asked = [F.col(quoted(name)).cast("string") for name in step.on]
    keys = F.concat_ws(", ", *[F.coalesce(key, F.lit("NULL")) for key in asked])
    reason = F.concat(F.lit(f"{step.name}: no row for "), keys)
    if step.on_miss != "hold":
        return [*ways, (missed, F.lit(_ROUTES[step.on_miss]), reason)]
    ways.append((missed & ~_given_up(), F.lit(f"{HELD}:{step.name}"), reason))
    if step.then == "redirect":
        ways.append((missed, F.lit(UNMATCHED), reason))
    return ways


def _given_up() -> Column:
    """Of a row that was held: it waited in vain."""
    from pyspark.sql import functions as F

    return F.coalesce(F.col(EXPIRED), F.lit(False))
