"""Steps as DataFrames. Every input row stays in the frame and carries its route, so that each is accounted for.

A row that leaves the way (no match, a duplicate, a bad record) gets a route and a reason; later lookups ask for NULL
in its place, which costs nothing and matches nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    UNMATCHED,
    asked_column,
    status_column,
    time_column,
)
from semistream.pipeline.held import EXPIRED
from semistream.pipeline.steps import Compute, Deduplicate, Keep, Lookup
from semistream.spark import enrich
from semistream.spark.frames import quoted

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Column, DataFrame

MOST_FIELD_BYTES = 1 << 20
_SHOWN = 1000  # letters that are kept of a longer field
_REPLACEMENT = "\ufffd"  # what Spark reads in place of bytes that are no UTF-8
_FOUND = "_ss_found"
_FIRST = "_ss_first"


def begun(frame: DataFrame, columns: list[str], required: tuple[str, ...]) -> DataFrame:
    """The source's rows with their routes: bad records are out of the way from the start."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import BinaryType, StringType

    bad: list[tuple[Column, str]] = []
    if BROKEN in frame.columns:
        bad.append((F.col(BROKEN).isNotNull(), "the record cannot be read as it is declared"))
    for name in columns:
        kind, column = frame.schema[name].dataType, F.col(quoted(name))
        if isinstance(kind, StringType | BinaryType):
            bad.append((F.octet_length(column) > MOST_FIELD_BYTES, f"{name} is longer than {MOST_FIELD_BYTES:,} bytes"))
        if isinstance(kind, StringType):
            bad.append((~F.is_valid_utf8(column) | column.contains(_REPLACEMENT), f"{name} is not UTF-8"))
    bad += [(F.col(quoted(name)).isNull(), f"{name} is NULL") for name in required]
    reason: Column = F.lit(None).cast("string")
    for when, why in reversed(bad):
        reason = F.when(when, F.lit(why)).otherwise(reason)
    frame = frame.withColumn(REASON, reason)
    # A field of 50 MB must not travel through every step, nor bytes that are no text: what is kept tells what it was.
    cut = {}
    for name in columns:
        kind, column = frame.schema[name].dataType, F.col(quoted(name))
        if isinstance(kind, StringType | BinaryType):
            short = F.when(F.octet_length(column) > MOST_FIELD_BYTES, F.substring(column, 1, _SHOWN)).otherwise(column)
            plain = F.make_valid_utf8(short) if isinstance(kind, StringType) else short
            cut[name] = F.when(F.col(REASON).isNull(), column).otherwise(plain)
    if BROKEN in frame.columns:
        cut[BROKEN] = F.make_valid_utf8(F.substring(F.col(BROKEN), 1, MOST_FIELD_BYTES))
    return frame.withColumns({**cut, ROUTE: F.when(F.col(REASON).isNotNull(), F.lit(QUARANTINE))})


def looked_up(frame: DataFrame, step: Lookup, number: int, version: int, memory: int, tasks: int) -> DataFrame:
    """A lookup: the master's columns, a status, and the route of rows without a match."""
    from pyspark.sql import functions as F

    way = F.col(ROUTE).isNull()
    if step.on_null == "quarantine":
        for name in step.on:
            frame = _leave(
                frame, F.col(quoted(name)).isNull(), QUARANTINE, F.lit(f"{name} is NULL, the key of {step.name}")
            )
    asked = {asked_column(number, part): F.when(way, F.col(quoted(name))) for part, name in enumerate(step.on)}
    on = dict(zip(asked, step.on.values(), strict=True))
    more: dict[str, Any] = {}
    if step.as_of is not None:
        asked[time_column(number)] = F.col(quoted(step.as_of))
        more = {"as_of": time_column(number), "valid_from": step.valid_from, "valid_to": step.valid_to}
    frame = frame.withColumns(asked)
    before = set(frame.columns)
    joined = enrich(
        frame,
        step.store,
        on=on,
        columns=step.columns,
        suffix=_suffix(number),
        defaults=step.defaults or None,
        memory=memory,
        algorithm=step.algorithm,
        master_version=version,
        multiple=step.multiple,
        status=_FOUND,
        allow_empty=True,
        tasks_per_host=tasks,
        **more,
    )
    for name in [name for name in joined.columns if name not in before and name != _FOUND]:
        plain = name.removesuffix(_suffix(number))  # a suffix is there where the stream has such a column
        joined = joined.withColumnRenamed(name, step.rename.get(plain, plain))
    found = F.when(way, F.col(_FOUND) == "matched")
    joined = joined.withColumn(status_column(number), found).drop(_FOUND)
    missed = way & ~F.col(status_column(number))
    keys = F.concat_ws(", ", *[F.coalesce(F.col(name).cast("string"), F.lit("NULL")) for name in on])
    reason = F.concat(F.lit(f"{step.name}: no row for "), keys)
    return _missed(joined, step, missed, reason)


def _missed(frame: DataFrame, step: Lookup, missed: Column, reason: Column) -> DataFrame:
    from pyspark.sql import functions as F

    routes = {"drop": DROPPED, "fail": FAILED, "redirect": UNMATCHED, "hold": f"{HELD}:{step.name}"}
    if step.on_miss not in routes:
        return frame
    route: Any = F.lit(routes[step.on_miss])
    if step.on_miss == "hold":
        given_up = F.coalesce(F.col(EXPIRED), F.lit(False))
        route = F.when(~given_up, route).otherwise(F.lit(UNMATCHED if step.then == "redirect" else None))
    return _leave(frame, missed, route, reason)


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


def _leave(frame: DataFrame, when: Column, route: Column | str, reason: Column) -> DataFrame:
    """Rows still on their way for which ``when`` holds get a route and a reason."""
    from pyspark.sql import functions as F

    leaves = F.col(ROUTE).isNull() & when
    target = F.lit(route) if isinstance(route, str) else route
    return frame.withColumns(
        {
            REASON: F.when(leaves, reason).otherwise(F.col(REASON)),
            ROUTE: F.when(leaves, target).otherwise(F.col(ROUTE)),
        }
    )


def _suffix(number: int) -> str:
    return f"_ss_lookup{number}"
