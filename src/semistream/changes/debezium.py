"""Changes from Debezium: one JSON envelope a line, with or without its schema.

``{"before": …, "after": …, "op": "u", "ts_ms": …, "source": {…}}``, possibly within ``{"schema": …, "payload": …}``.
Operations: c (insert), r (read by the snapshot), u, d, t (the table was emptied); tombstones (``null``) and messages
(m) say nothing. Changes are put in the order of the source's log (lsn, scn, or binlog file and position) where all
that are not bad have one, else by the time of the change; changes of one place stay as they come. Times without a
schema count ``time_unit``, else the unit of the store's column. A row that lacks a column is bad, not filled with NULL.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa

from semistream.changes.rows import Bad, Changes, Line, assemble, parsed_lines
from semistream.changes.values import BASE64, UNITS, array_of
from semistream.errors import choose

UNAVAILABLE = "__debezium_unavailable_value"  # a large value of PostgreSQL that did not change, and was not sent
_HINTS = {
    "io.debezium.time.Timestamp": "ms",
    "io.debezium.time.MicroTimestamp": "us",
    "io.debezium.time.NanoTimestamp": "ns",
    "io.debezium.time.Time": "ms",
    "io.debezium.time.MicroTime": "us",
    "io.debezium.time.NanoTime": "ns",
    "org.apache.kafka.connect.data.Timestamp": "ms",
    "org.apache.kafka.connect.data.Time": "ms",
    "org.apache.kafka.connect.data.Decimal": BASE64,
}
_BINLOG = re.compile(r".*\.(\d+)")


class _Record(NamedTuple):
    """One change: its row, when it was (milliseconds, place in the source's log), and why it is bad, if it is."""

    row: dict[str, Any]
    op: str
    time: int | None = None
    log: tuple[str, int] = ("time", 0)  # kind of position, position
    bad: str | None = None
    line: int = 0
    hints: Mapping[str, str] = MappingProxyType({})


def debezium_changes(
    lines: Iterable[Line],
    schema: pa.Schema,
    key: Sequence[str],
    *,
    time_unit: str | None = None,
    constants: Mapping[str, Any] | None = None,
) -> Changes:
    """Changes for a store of this schema and key; ``constants`` are columns that have one value in all of them."""
    if time_unit is not None:
        choose("time_unit", time_unit, tuple(UNITS))
    found, places, rejects = parsed_lines(lines)
    records: list[_Record] = []
    times = [item.name for item in schema if pa.types.is_temporal(item.type)]
    hinted = [*times, *(item.name for item in schema if pa.types.is_decimal(item.type))]
    units = {} if time_unit is None else dict.fromkeys(times, time_unit)
    for line, message in enumerate(found):
        payload = message.get("payload", message)
        if payload is None or (isinstance(payload, dict) and payload.get("op") == "m"):
            continue
        for side in ("before", "after") if constants and isinstance(payload, dict) else ():
            if isinstance(payload.get(side), dict):
                payload[side].update(constants)
        hints = {**units, **_hints(message.get("schema"), hinted)}
        records += [one._replace(line=line, hints=hints) for one in _records(payload, schema, key)]

    def column(item: pa.Field) -> tuple[pa.Array, Bad]:
        of_each = [record.hints.get(item.name) for record in records] if item.name in hinted else None
        return array_of([record.row.get(item.name) for record in records], item, of_each)

    same_log = len({record.log[0] for record in records if not record.bad}) == 1
    order = [record.log[1] if same_log else record.time or 0 for record in records]
    stamps = [record.time and record.time * 1000 for record in records]
    changes = assemble(
        schema,
        key,
        [record.op for record in records],
        column,
        lambda row: places[records[row].line],
        bad={row: record.bad for row, record in enumerate(records) if record.bad},
        times=pa.array(stamps, pa.int64()).view(pa.timestamp("us", "UTC")),
        order=pa.array(order, pa.int64()),
        unread=rejects,
    )
    return replace(changes, records=len(found) + len(rejects))  # a moved key was two changes


def _records(payload: Any, schema: pa.Schema, key: Sequence[str]) -> list[_Record]:
    """What one envelope says; an update that moves a row to another key is a delete as well."""
    op = payload.get("op") if isinstance(payload, dict) else None
    if op not in ("c", "r", "u", "d", "t"):
        shown = "no envelope of Debezium: it has no operation" if op is None else f"its operation is {op!r}"
        return [_Record({}, "t", bad=f"{shown}; known are c, r, u, d, t and m")]
    when = _when(payload)
    if op == "t":
        return [_Record({}, "t", *when)]
    before, after = payload.get("before"), payload.get("after")
    row, name, needed = (before, "before", list(key)) if op == "d" else (after, "after", schema.names)
    if not isinstance(row, dict):
        remedy = "; with PostgreSQL set REPLICA IDENTITY of the table" if op == "d" else ""
        return [_Record({}, op, *when, f"operation {op!r} without {name!r}{remedy}")]
    missing = [one for one in needed if one not in row or row[one] == UNAVAILABLE]
    if missing:
        why = "was not sent; set REPLICA IDENTITY FULL" if missing[0] in row else f"is not in {name!r}"
        return [_Record(row, op, *when, f"column {missing[0]!r} {why}")]
    made = [_Record(row, op, *when)]
    if op == "u" and isinstance(before, dict) and any(one in before and before[one] != row[one] for one in key):
        made.insert(0, _Record({**row, **before}, "d", *when))
    return made


def _hints(schema: Any, names: Sequence[str]) -> dict[str, str]:
    """How the schema of an envelope says that times and decimals are written."""
    if not names or not isinstance(schema, dict):
        return {}
    found: dict[str, str] = {}
    for side in schema.get("fields") or ():
        if isinstance(side, dict) and side.get("field") in ("before", "after"):
            for item in side.get("fields") or ():
                if item.get("field") in names and item.get("name") in _HINTS:
                    found[item["field"]] = _HINTS[item["name"]]
    return found


def _when(payload: dict[str, Any]) -> tuple[int | None, tuple[str, int]]:
    """The time of a change in milliseconds, and its place in the source's log."""
    source = payload.get("source")
    source = source if isinstance(source, dict) else {}
    time = next((one for one in (source.get("ts_ms"), payload.get("ts_ms")) if _whole(one)), None)
    if _whole(source.get("lsn")):
        return time, ("lsn", source["lsn"])
    if str(source.get("scn") or "").isdigit():
        return time, ("scn", int(source["scn"]))
    binlog = _BINLOG.fullmatch(str(source.get("file") or ""))
    if binlog and _whole(source.get("pos")):
        return time, ("binlog", (int(binlog.group(1)) << 40) + source["pos"])
    return time, ("time", time or 0)


def _whole(value: object) -> bool:
    """A number that a position or a time can be."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
