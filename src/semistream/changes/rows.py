"""The form that changes have: rows in order with an operation each, the records that are none, and which rows count.

Every reader (Debezium, JSON lines, CSV, Parquet) hands its columns to `assemble`, which tells good records from bad.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semistream.errors import ArgumentError, BadRecordsError
from semistream.keys import KeyCodec
from semistream.stores import MasterStore

Numbers = npt.NDArray[np.int64]

Bad = dict[int, str]  # row: reason
OP = "_op"
TIME = "_time"  # when the source made the change, where it is known
OPS = ("insert", "update", "upsert", "delete", "truncate")
Place = tuple[str, int, str]  # source, line, record
Line = tuple[str, int, str | bytes]  # source, number of the line, text
Read = Callable[[pa.Field], tuple[pa.Array, Bad]]  # a column, and the rows whose value does not fit it
WORDS = {
    **dict.fromkeys(("i", "c", "insert", "create"), "insert"),
    **dict.fromkeys(("u", "update"), "update"),
    **dict.fromkeys(("r", "upsert", "read"), "upsert"),
    **dict.fromkeys(("d", "delete"), "delete"),
    **dict.fromkeys(("t", "truncate"), "truncate"),
}


@dataclass(frozen=True)
class Reject:
    """A record that cannot be applied: where it stood, why, and all of it."""

    source: str
    line: int
    reason: str
    record: str


@dataclass(frozen=True)
class Changes:
    """Changes in order, oldest first: `OP`, `TIME`, and the columns asked for; with a delete only the key counts."""

    rows: pa.Table
    rejects: list[Reject] = field(default_factory=list)
    records: int = 0  # how many were read
    truncated: bool = False  # the table was emptied before the first of them

    def check(self, max_bad_rate: float | None) -> None:
        """Raise when too many records were bad."""
        if max_bad_rate is None:
            return
        if not 0 <= max_bad_rate <= 1:
            raise ArgumentError(f"max_bad_rate={max_bad_rate} must be from 0 to 1, such as 0.01 for one in a hundred")
        if len(self.rejects) > max_bad_rate * self.records:
            first = self.rejects[0]
            raise BadRecordsError(
                f"{len(self.rejects):,} of {self.records:,} records are bad, more than max_bad_rate={max_bad_rate} "
                f"allows; nothing was applied. The first: {first.source}, line {first.line}: {first.reason}",
                self.rejects,
            )


def change_schema(columns: pa.Schema) -> pa.Schema:
    """The schema of change rows for these columns."""
    head = [pa.field(OP, pa.string()), pa.field(TIME, pa.timestamp("us", "UTC"))]
    return pa.schema([*head, *(item.with_nullable(True) for item in columns)])


def assemble(
    schema: pa.Schema,
    key: Sequence[str],
    words: Sequence[object],
    read: Read,
    place: Callable[[int], Place],
    *,
    bad: Mapping[int, str] = MappingProxyType({}),
    times: pa.Array | None = None,
    order: pa.Array | None = None,
    unread: Sequence[Reject] = (),
) -> Changes:
    """Changes from columns; what cannot be one becomes a reject that says why.

    ``read`` gives a column, and the values that do not fit it: with a delete only those of the key count. ``bad`` are
    rows that are bad whatever they hold, ``unread`` are records that could not become rows. ``order`` sorts the rows;
    equal ones, and without it all, stay as they come.
    """
    ops = [WORDS.get(str(word).lower()) for word in words]
    reasons = dict(bad)
    for row, (op, word) in enumerate(zip(ops, words, strict=True)):
        if op is None and row not in reasons:
            reasons[row] = f"its operation {word!r} is none of {', '.join(OPS)}"
    columns = {}
    for item in schema:
        columns[item.name], wrong = read(item)
        for row, reason in wrong.items():
            if ops[row] != "truncate" and (item.name in key or ops[row] != "delete"):
                reasons.setdefault(row, reason)
    for name in key:
        for row in pc.indices_nonzero(pc.is_null(columns[name])).to_pylist():
            if ops[row] != "truncate":
                reasons.setdefault(row, f"key column {name!r} is NULL")
    if order is not None:
        for row in pc.indices_nonzero(pc.is_null(order)).to_pylist():
            reasons.setdefault(row, "the column that orders the changes is NULL")
    good = np.setdiff1d(np.arange(len(ops)), np.fromiter(reasons, np.int64, len(reasons)))
    if order is not None:
        ranks = pc.rank(order, tiebreaker="dense").to_numpy()
        good = good[np.argsort(ranks[good], kind="stable")]
    emptied = [at for at, row in enumerate(good) if ops[row] == "truncate"]
    good = good[emptied[-1] + 1 :] if emptied else good
    made = change_schema(schema)
    stamps = times if times is not None else pa.nulls(len(ops), made.field(TIME).type)
    arrays = [pa.array(ops, pa.string()), stamps, *columns.values()]
    rejects = list(unread)
    for row in sorted(reasons):
        source, line, record = place(row)
        rejects.append(Reject(source, line, reasons[row], record))
    rows = pa.Table.from_arrays(arrays, schema=made).take(pa.array(good))
    return Changes(rows, rejects, len(ops) + len(unread), bool(emptied))


def parsed_lines(lines: Iterable[Line]) -> tuple[list[dict[str, Any]], list[Place], list[Reject]]:
    """The JSON objects of some lines, where each stood, and the lines with none; ``null`` and blanks are left out."""
    found: list[dict[str, Any]] = []
    places: list[Place] = []
    rejects: list[Reject] = []
    for source, number, text in lines:
        shown = text.decode(errors="backslashreplace") if isinstance(text, bytes) else text
        if not shown.strip():
            continue
        try:
            record = json.loads(text, parse_float=Decimal)  # numbers with a fraction stay exact
        except (ValueError, RecursionError) as error:  # bytes that are no UTF-8 are a ValueError too
            rejects.append(Reject(source, number, f"it is no JSON: {error}", shown))
            continue
        if isinstance(record, dict):
            found.append(record)
            places.append((source, number, shown))
        elif record is not None:
            rejects.append(Reject(source, number, f"it is no JSON object but a {type(record).__name__}", shown))
    return found, places, rejects


def write_rejects(rejects: Sequence[Reject], path: Path) -> None:
    """Bad records as JSON lines, added to those of earlier runs."""
    if rejects:
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(one)) + "\n" for one in rejects)


def last_of_each(codec: KeyCodec, rows: pa.Table) -> pa.Table:
    """Of each key the last row, in the order of the rows."""
    groups = codec.groups(columns_of(rows, [item.name for item in codec.fields]))
    return rows.take(pa.array(last_rows(groups, np.arange(len(groups)))))


def last_rows(groups: Numbers, order: Numbers) -> Numbers:
    """Of each group that is in ``order``, which holds numbers of rows, the last row; ascending."""
    last = np.full(int(groups.max(initial=-1)) + 1, -1, np.int64)
    last[groups[order]] = order  # of several assignments to one place the last stays
    return np.sort(last[last >= 0])


def distinct(store: MasterStore, keys: Sequence[pa.Array]) -> pa.Table:
    """Each key once, without those that hold a NULL; ``keys`` are the columns of the store's key."""
    rows, valid = pa.table(list(keys), names=list(store.key)), store.codec.encode(keys)[1]
    return last_of_each(store.codec, rows if valid.all() else rows.filter(pa.array(valid)))


def columns_of(table: pa.Table, names: Sequence[str]) -> list[pa.Array]:
    """Some columns, each in one piece."""
    return [table.column(name).combine_chunks() for name in names]


def store_rows(schema: pa.Schema, count: int, columns: dict[str, Any]) -> pa.Table:
    """Rows of the store; columns that are not given are NULL."""
    made = [columns.get(item.name, pa.nulls(count, item.type)) for item in schema]
    return pa.table([column.cast(item.type) for column, item in zip(made, schema, strict=True)], schema=schema)
