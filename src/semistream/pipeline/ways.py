"""The ways of rows through a batch. Every input row stays in the frame and carries its route, so that each is counted.

A row that leaves the way (no match, a duplicate, a bad record) gets a route and a reason; later lookups ask for NULL
in its place, which costs nothing and matches nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from semistream.pipeline.columns import BROKEN, QUARANTINE, REASON, ROUTE, SHED, TOO_MANY
from semistream.spark.frames import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MOST_FIELD_BYTES = 1 << 20
_SHOWN = 1000  # letters that are kept of a longer field
_REPLACEMENT = "\ufffd"  # what Spark reads in place of bytes that are no UTF-8

Way = tuple["Column", "Column", "Column"]  # whom it is for, where it leads, and why


def mark_bad(
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


def mark_shed(frame: DataFrame) -> DataFrame:
    """Rows that are too many leave, where a batch has such."""
    from pyspark.sql import functions as F

    if TOO_MANY not in frame.columns:
        return frame
    return leave(frame, F.coalesce(F.col(TOO_MANY), F.lit(False)), SHED, F.lit(None).cast("string"))


def mark_unfit(frame: DataFrame, unfit: Sequence[tuple[str, str]]) -> DataFrame:
    """Rows whose computed or looked up values the warehouse cannot keep leave."""
    from pyspark.sql import functions as F

    return take(frame, [(F.expr(when), F.lit(QUARANTINE), F.lit(why)) for when, why in unfit])


def leave(frame: DataFrame, when: Column, route: str, reason: Column) -> DataFrame:
    """Rows still on their way for which ``when`` holds get a route and a reason."""
    from pyspark.sql import functions as F

    return take(frame, [(when, F.lit(route), reason)])


def take(frame: DataFrame, ways: Sequence[Way]) -> DataFrame:
    """Rows still on their way go the first of the ``ways`` that is for them, or on."""
    from pyspark.sql import functions as F

    if not ways:
        return frame
    out = F.col(ROUTE).isNotNull()
    route, why = F.when(out, F.col(ROUTE)), F.when(out, F.col(REASON))
    for when, where, reason in ways:
        route, why = route.when(when, where), why.when(when, reason)
    return frame.withColumns({ROUTE: route, REASON: why})
