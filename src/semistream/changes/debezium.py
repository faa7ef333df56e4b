"""Changes from Debezium: one JSON envelope a line, with or without its schema.

``{"before": …, "after": …, "op": "u", "ts_ms": …, "source": {…}}``, possibly within ``{"schema": …, "payload": …}``.
Operations: c (insert), r (read by the snapshot), u, d, t (the table was emptied); tombstones (``null``) and messages
(m) say nothing. Changes are put in the order of the source's log (lsn, scn, or binlog file and position) where all
have one, else by the time of the change; changes of one place stay as they come.

Times are numbers. With the schema it is known which unit they count; without, they count the unit of the store's
column, unless ``time_unit`` says otherwise. A row that lacks one of the store's columns is bad, never filled with NULL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from semistream.changes.plain import Line, parsed_lines
from semistream.changes.rows import Bad, Changes, assemble
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


@dataclass
class _Records:
    """What the lines hold, record by record."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    ops: list[str] = field(default_factory=list)
    hints: list[dict[str, str]] = field(default_factory=list)
    logs: list[tuple[str, int]] = field(default_factory=list)  # kind of position, position
    times: list[int | None] = field(default_factory=list)
    places: list[tuple[str, int, str]] = field(default_factory=list)
    bad: Bad = field(default_factory=dict)

    def add(self, row: dict[str, Any], op: str, payload: dict[str, Any], hints: dict[str, str], place: Any) -> None:
        """One change."""
        self.rows.append(row)
        self.ops.append(op)
        self.hints.append(hints)
        time, log = _when(payload)
        self.times.append(time)
        self.logs.append(log)
        self.places.append(place)

    @property
    def order(self) -> pa.Array:
        """Where each change stands, by the log if all have a place in the same kind of log."""
        if len({kind for kind, _ in self.logs}) == 1:
            return pa.array([position for _, position in self.logs], pa.int64())
        return pa.array([time or 0 for time in self.times], pa.int64())


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
    records = _Records()
    interesting = [item.name for item in schema if pa.types.is_temporal(item.type) or pa.types.is_decimal(item.type)]
    for message, place in zip(found, places, strict=True):
        payload = message.get("payload", message)
        if payload is None or (isinstance(payload, dict) and payload.get("op") == "m"):
            continue
        hints = _hints(message.get("schema"), interesting)
        if time_unit is not None:
            times = [name for name in interesting if pa.types.is_temporal(schema.field(name).type)]
            hints = {**dict.fromkeys(times, time_unit), **hints}
        for side in ("before", "after") if constants and isinstance(payload, dict) else ():
            if isinstance(payload.get(side), dict):
                payload[side].update(constants)
        _take(records, payload, schema, key, hints, place)
    columns, wrong = {}, {}
    for item in schema:
        hints_of = [hints.get(item.name) for hints in records.hints] if item.name in interesting else None
        columns[item.name], wrong[item.name] = array_of([row.get(item.name) for row in records.rows], item, hints_of)
    made = assemble(
        columns,
        schema,
        key,
        records.ops,
        records.places.__getitem__,
        bad=records.bad,
        wrong=wrong,
        times=pa.array([time and time * 1000 for time in records.times], pa.int64()).view(pa.timestamp("us", "UTC")),
        order=records.order,
    )
    return replace(made.with_rejects(rejects), records=len(found) + len(rejects))  # a moved key was two changes


def _take(
    records: _Records,
    payload: Any,
    schema: pa.Schema,
    key: Sequence[str],
    hints: dict[str, str],
    place: tuple[str, int, str],
) -> None:
    """Add what one envelope says; an update that moves a row to another key is a delete as well."""
    op = payload.get("op") if isinstance(payload, dict) else None
    if op not in ("c", "r", "u", "d", "t"):
        shown = "no envelope of Debezium: it has no operation" if op is None else f"its operation is {op!r}"
        records.bad[len(records.rows)] = f"{shown}; known are c, r, u, d, t and m"
        records.add({}, "t", {}, {}, place)
        return
    before, after = payload.get("before"), payload.get("after")
    row, name, needed = (before, "before", list(key)) if op == "d" else (after, "after", schema.names)
    if op == "t":
        records.add({}, "t", payload, hints, place)
        return
    if not isinstance(row, dict):
        records.bad[len(records.rows)] = f"operation {op!r} without {name!r}" + (
            "; with PostgreSQL set REPLICA IDENTITY of the table" if op == "d" else ""
        )
        row = {}
    missing = [one for one in needed if one not in row or row[one] == UNAVAILABLE]
    if missing:
        why = "was not sent; set REPLICA IDENTITY FULL" if missing[0] in row else f"is not in {name!r}"
        records.bad.setdefault(len(records.rows), f"column {missing[0]!r} {why}")
    elif op == "u" and isinstance(before, dict) and any(one in before and before[one] != row[one] for one in key):
        records.add({**row, **before}, "d", payload, hints, place)
    records.add(row, op, payload, hints, place)


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
    times = (source.get("ts_ms"), payload.get("ts_ms"))
    time = next((one for one in times if _whole(one)), None)
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
