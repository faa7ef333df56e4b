"""Steps as DataFrames. Every input row stays in the frame and carries its route, so that each is accounted for.

A row that leaves the way (no match, a duplicate, a bad record) gets a route and a reason; later lookups ask for NULL
in its place, which costs nothing and matches nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semistream.errors import SchemaError
from semistream.pipeline.columns import (
    BROKEN,
    DROPPED,
    DUPLICATE,
    FAILED,
    FILTERED,
    HELD,
    QUARANTINE,
    REASON,
    ROUTE,
    SHED,
    TOO_MANY,
    UNMATCHED,
    asked_columns,
    status_column,
    time_column,
)
from semistream.pipeline.held import EXPIRED
from semistream.pipeline.steps import Compute, Deduplicate, Keep, Lookup
from semistream.spark import enrich
from semistream.spark.columns import spark_arrow
from semistream.spark.frames import quoted
from semistream.spark.lookups import Asked
from semistream.spark.lookups import looked_up as several_looked_up
from semistream.spark.prepare import Stream, prepare
from semistream.spark.spec import EnrichSpec

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Column, DataFrame

    from semistream.stores import MasterStore

MOST_FIELD_BYTES = 1 << 20
_SHOWN = 1000  # letters that are kept of a longer field
_REPLACEMENT = "\ufffd"  # what Spark reads in place of bytes that are no UTF-8
_FOUND = "_ss_found"
_FIRST = "_ss_first"


def begun(
    frame: DataFrame, columns: list[str], required: tuple[str, ...], unfit: Sequence[tuple[str, str]] = ()
) -> DataFrame:
    """The source's rows with their routes: bad records are out of the way from the start, and so is what is ``unfit``.

    Both are (condition, reason); see `limits`.
    """
    # In SQL, not by functions: a batch is planned anew each time, and every call of a function is a trip to the JVM.
    from pyspark.sql import functions as F
    from pyspark.sql.types import BinaryType, StringType

    bad: list[tuple[str, str]] = []
    cut: dict[str, str] = {}
    if BROKEN in frame.columns:
        bad.append((f"{BROKEN} IS NOT NULL", "the record cannot be read as it is declared"))
        cut[BROKEN] = f"make_valid_utf8(substring({BROKEN}, 1, {MOST_FIELD_BYTES}))"
    for item in frame.schema:
        if item.name not in columns or not isinstance(item.dataType, StringType | BinaryType):
            continue
        name, text = quoted(item.name), isinstance(item.dataType, StringType)
        long = f"octet_length({name}) > {MOST_FIELD_BYTES}"
        bad.append((long, f"{item.name} is longer than {MOST_FIELD_BYTES:,} bytes"))
        if text:
            foreign = f"NOT is_valid_utf8({name}) OR contains({name}, '{_REPLACEMENT}')"
            bad.append((foreign, f"{item.name} is not UTF-8"))
        # A field of 50 MB must not travel through every step, nor bytes that are no text: what is kept tells of it.
        short = f"CASE WHEN {long} THEN substring({name}, 1, {_SHOWN}) ELSE {name} END"
        plain = f"make_valid_utf8({short})" if text else short
        cut[item.name] = f"CASE WHEN {REASON} IS NULL THEN {name} ELSE {plain} END"
    bad += unfit
    bad += [(f"{quoted(name)} IS NULL", f"{name} is NULL") for name in required]
    reason = F.lit(None).cast("string")
    for when, why in reversed(bad):
        reason = F.when(F.expr(when), F.lit(why)).otherwise(reason)
    route = F.expr(f"CASE WHEN {REASON} IS NOT NULL THEN '{QUARANTINE}' END")
    changed = {name: F.expr(expression) for name, expression in cut.items()}
    return frame.withColumn(REASON, reason).withColumns({**changed, ROUTE: route})


def shed(frame: DataFrame) -> DataFrame:
    """Rows that are too many leave, where a batch has such."""
    from pyspark.sql import functions as F

    if TOO_MANY not in frame.columns:
        return frame
    return _leave(frame, F.coalesce(F.col(TOO_MANY), F.lit(False)), SHED, F.lit(None).cast("string"))


@dataclass(frozen=True)
class Numbered:
    """A lookup of the pipeline with its place among the steps, the version that it reads and the memory that it has."""

    step: Lookup
    number: int
    store: MasterStore | Path
    version: int
    memory: int


def looked_up(frame: DataFrame, lookups: Sequence[Numbered], tasks: int, reports: Path | None = None) -> DataFrame:
    """Lookups that stand side by side: the masters' columns, their statuses, and the routes of rows without a match."""
    from pyspark.sql import functions as F

    if not lookups:
        return frame
    about = Stream.of(frame)
    kinds = {item.name: item.type for item in about.schema}
    asked: list[Asked] = []
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
            Asked.of(
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
    found = several_looked_up(frame, asked, F.col(ROUTE).isNull(), stays, reports)
    if beside:
        found = found.withColumns({name: F.col(quoted(column)) for name, column in beside.items()})
    return _left(found, [way for one in lookups for way in _ways(one)])


_Way = tuple["Column", "Column", "Column"]  # whom it is for, where it leads, and why
_ROUTES = {"drop": DROPPED, "fail": FAILED, "redirect": UNMATCHED, "hold": HELD}


def _ways(one: Numbered) -> list[_Way]:
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


def deduplicated(
    frame: DataFrame, step: Deduplicate, columns: list[str], store: Path, version: int, memory: int, tasks: int
) -> DataFrame:
    """The first row of each business key goes on: the first of this batch, if no batch before had one."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    for name in step.key:
        frame = _leave(
            frame, F.col(quoted(name)).isNull(), QUARANTINE, F.lit(f"{name} is NULL, part of the business key")
        )
    others = [name for name in columns if name not in (*step.key, *step.order_by)]
    order = [F.col(ROUTE).isNotNull(), *(F.col(quoted(name)) for name in (*step.order_by, *others))]
    window = Window.partitionBy(*[F.col(quoted(name)) for name in step.key]).orderBy(*order)
    frame = frame.withColumn(_FIRST, F.row_number().over(window) == 1)
    frame = _leave(frame, ~F.col(_FIRST), DUPLICATE, F.lit("again in the same batch")).drop(_FIRST)
    frame = enrich(
        frame,
        store,
        on=list(step.key),
        columns=[],
        memory=memory,
        master_version=version,
        status=_FOUND,
        allow_empty=True,
        tasks_per_host=tasks,
    )
    return _leave(frame, F.col(_FOUND) == "matched", DUPLICATE, F.lit("loaded before")).drop(_FOUND)


def computed(frame: DataFrame, step: Compute) -> DataFrame:
    """Columns by expressions."""
    from pyspark.sql import functions as F

    return frame.withColumns({name: F.expr(expression) for name, expression in step.columns.items()})


def kept(frame: DataFrame, step: Keep) -> DataFrame:
    """Rows for which the condition does not hold, or is NULL, are filtered."""
    from pyspark.sql import functions as F

    holds = F.coalesce(F.expr(step.condition).cast("boolean"), F.lit(False))
    return _leave(frame, ~holds, FILTERED, F.lit(None).cast("string"))


def fitting(frame: DataFrame, unfit: Sequence[tuple[str, str]]) -> DataFrame:
    """Rows whose computed or looked up values the warehouse cannot keep leave."""
    from pyspark.sql import functions as F

    return _left(frame, [(F.expr(when), F.lit(QUARANTINE), F.lit(why)) for when, why in unfit])


def _leave(frame: DataFrame, when: Column, route: str, reason: Column) -> DataFrame:
    """Rows still on their way for which ``when`` holds get a route and a reason."""
    from pyspark.sql import functions as F

    return _left(frame, [(when, F.lit(route), reason)])


def _left(frame: DataFrame, ways: Sequence[_Way]) -> DataFrame:
    """Rows still on their way go the first of the ``ways`` that is for them, or on."""
    from pyspark.sql import functions as F

    if not ways:
        return frame
    out = F.col(ROUTE).isNotNull()
    route, why = F.when(out, F.col(ROUTE)), F.when(out, F.col(REASON))
    for when, where, reason in ways:
        route, why = route.when(when, where), why.when(when, reason)
    return frame.withColumns({ROUTE: route, REASON: why})
