"""The routes of rows: who leaves the way into the table, and why; the columns that travel beside a row meanwhile.

Every input row stays in the frame and carries its route, so that each is counted. One that leaves (no match, a
duplicate, a bad record) gets a route and a reason; later lookups ask for NULL in its place, which matches nothing.
Values that a warehouse cannot keep are such a reason: a database would refuse a whole batch for one of them.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from semistream.spark.frames import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from semistream.warehouse.contract import Limits

PREFIX = "_ss_"  # of columns that travel beside a row; a user's must not begin so
ROUTE = "_ss_route"  # where the row goes; NULL while it is on its way into the table
REASON = "_ss_reason"
SOURCE = "_ss_source"  # the file it came from
BROKEN = "_ss_broken"  # the text of a record that could not be read
RECORD = "_ss_record"  # a quarantined row as text
TOO_MANY = "_ss_too_many"  # marks the rows that a batch sheds
IDENTITY = "_ss_row"  # numbers input rows, where a lookup may give several rows for one
SINCE = "_ss_since"  # when a row that was held began to wait, in seconds since 1970
EXPIRED = "_ss_expired"  # of a row that was held: it waited in vain
HELD_TIME = "_held_time"  # in a file of held rows: the moment as of which a row asks

# Routes. The first is the column's NULL; rows of the next two are written for the driver.
FACT, UNRESOLVED, KEYS = "fact", "unresolved", "keys"
UNMATCHED, HELD, DUPLICATE, FILTERED = "unmatched", "held", "duplicate", "filtered"
QUARANTINE, DROPPED, FAILED, SHED = "quarantine", "dropped", "failed", "shed"
# A row that must match fails the batch whatever its other copies do; one that is loaded in part is loaded.
FIRST = (FAILED, FACT, HELD, UNMATCHED, QUARANTINE, DROPPED, DUPLICATE, FILTERED, SHED)

MOST_FIELD_BYTES = 1 << 20
_SHOWN = 1000  # letters that are kept of a longer field
_REPLACEMENT = "\ufffd"  # what Spark reads in place of bytes that are no UTF-8
_NUL = "CAST(X'00' AS STRING)"  # a literal in SQL cannot hold one

Departure = tuple["Column | str", str, "Column | str | None"]  # who leaves (a column or SQL), by which route, and why


def mark_bad(
    frame: "DataFrame", columns: list[str], required: tuple[str, ...], unfit: Sequence[tuple[str, str]]
) -> "DataFrame":
    """The source's rows with their routes: bad records leave at once, and so does what is ``unfit`` (see `beyond`)."""
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


def leave(frame: "DataFrame", when: "Column | str", route: str, reason: "Column | str | None" = None) -> "DataFrame":
    """Rows still on their way for which ``when``, a column or SQL, holds get a route and a reason."""
    return leave_by(frame, [(when, route, reason)])


def leave_by(frame: "DataFrame", departures: Sequence[Departure]) -> "DataFrame":
    """Rows still on their way leave by the first of the ``departures`` that is for them, or go on."""
    from pyspark.sql import functions as F

    if not departures:
        return frame
    out = F.col(ROUTE).isNotNull()
    route, why = F.when(out, F.col(ROUTE)), F.when(out, F.col(REASON))
    for when, where, reason in departures:
        leaves = F.expr(when) if isinstance(when, str) else when
        route, why = route.when(leaves, F.lit(where)), why.when(leaves, F.lit(reason))
    return frame.withColumns({ROUTE: route, REASON: why})


def beyond(schema: "StructType", columns: Collection[str], limits: "Limits") -> list[tuple[str, str]]:
    """(condition in SQL, reason) for each of the ``columns`` whose values may be out of bounds."""
    from pyspark.sql import types

    found: list[tuple[str, str]] = []
    literals: dict[type[types.DataType], tuple[str, str, str]] = {  # with the first and the last moment of a day
        types.TimestampType: ("TIMESTAMP_LTZ", " 00:00:00Z", " 23:59:59.999999Z"),
        types.TimestampNTZType: ("TIMESTAMP_NTZ", " 00:00:00", " 23:59:59.999999"),
        types.DateType: ("DATE", "", ""),
    }
    for item in schema:
        if item.name not in columns:
            continue
        column = quoted(item.name)
        if limits.years is not None and (literal := literals.get(type(item.dataType))):
            (kind, begins, ends), (first, last) = literal, limits.years
            least, most = f"{kind}'{first:04d}-01-01{begins}'", f"{kind}'{last:04d}-12-31{ends}'"
            reason = f"{item.name} is outside of the years {first} to {last}, which the warehouse keeps"
            found.append((f"{column} < {least} OR {column} > {most}", reason))
        if isinstance(item.dataType, types.StringType) and not limits.nul:
            found.append((f"contains({column}, {_NUL})", f"{item.name} holds a NUL character, which no text may there"))
            found.append((f"NOT is_valid_utf8({column})", f"{item.name} is not UTF-8"))
        if isinstance(item.dataType, types.StringType | types.BinaryType) and limits.field_bytes is not None:
            reason = f"{item.name} is longer than {limits.field_bytes:,} bytes"
            found.append((f"octet_length({column}) > {limits.field_bytes}", reason))
    return found


def kept_text(expression: str, limits: "Limits") -> str:
    """A text about a bad record, in a form that the warehouse keeps."""
    return expression if limits.nul else f"replace({expression}, {_NUL}, '\\\\u0000')"


def status_column(number: int) -> str:
    """Tells whether a row matched in the number-th lookup; NULL when it was not asked."""
    return f"_ss_status{number}"


def asked_columns(number: int, parts: int) -> list[str]:
    """The key that the number-th lookup asks for; NULL when the row is out of the way already."""
    return [f"_ss_key{number}_{part}" for part in range(parts)]


def time_column(number: int) -> str:
    """The time as of which the number-th lookup asks."""
    return f"_ss_time{number}"


def carrier_column(number: int) -> str:
    """Has the counters of lookups done together, the first of which is the number-th; NULL in most rows."""
    return f"_ss_counters{number}"


def held_key(part: int) -> str:
    """In a file of held rows: the part-th column of the key that a row waits for."""
    return f"_held_key{part}"
