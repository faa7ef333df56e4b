"""Values that a warehouse cannot keep, as conditions on the rows of a batch.

A database refuses a whole batch for one such value. So tasks look for them before anything is decided: their rows go
to quarantine, with the column and the reason.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from semistream.spark.frames import quoted
from semistream.warehouse.contract import Limits

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_NUL = "CAST(X'00' AS STRING)"  # a literal in SQL cannot hold one


def beyond(schema: StructType, names: Collection[str], limits: Limits) -> list[tuple[str, str]]:
    """(condition in SQL, reason) for each column among ``names`` whose values may be out of bounds."""
    from pyspark.sql import types

    found: list[tuple[str, str]] = []
    literals: dict[type[types.DataType], str] = {
        types.TimestampType: "TIMESTAMP_LTZ",
        types.TimestampNTZType: "TIMESTAMP_NTZ",
        types.DateType: "DATE",
    }
    for item in schema:
        column = quoted(item.name)
        if item.name not in names:
            continue
        if type(item.dataType) in literals and limits.years is not None:
            kind, (first, last) = literals[type(item.dataType)], limits.years
            ends = ("", "") if kind == "DATE" else (" 00:00:00", " 23:59:59.999999")
            zone = "Z" if kind == "TIMESTAMP_LTZ" else ""
            least, most = f"{kind}'{first:04d}-01-01{ends[0]}{zone}'", f"{kind}'{last:04d}-12-31{ends[1]}{zone}'"
            reason = f"{item.name} is outside of the years {first} to {last}, which the warehouse keeps"
            found.append((f"{column} < {least} OR {column} > {most}", reason))
        if isinstance(item.dataType, types.StringType) and not limits.nul:
            found.append((f"contains({column}, {_NUL})", f"{item.name} holds a NUL character, which no text may there"))
            found.append((f"NOT is_valid_utf8({column})", f"{item.name} is not UTF-8"))
        if isinstance(item.dataType, types.StringType | types.BinaryType) and limits.field_bytes is not None:
            reason = f"{item.name} is longer than {limits.field_bytes:,} bytes"
            found.append((f"octet_length({column}) > {limits.field_bytes}", reason))
    return found


def as_text(expression: str, limits: Limits) -> str:
    """A text that tells of a bad record, in a form that the warehouse keeps."""
    return expression if limits.nul else f"replace({expression}, {_NUL}, '\\\\u0000')"
