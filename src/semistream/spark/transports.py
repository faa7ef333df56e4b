"""Two ways between Spark and the operator: whole rows (``rows``) or only the keys (``keys``).

``rows`` is a mapInArrow: every column crosses to Python and back. ``keys`` is a scalar Arrow function over the key
columns (and the moment of an as-of lookup) that returns the master's columns as a struct (or an array of structs where
a row may have several matches): the stream's other columns never leave the JVM. Both run the same operator and give the
same rows.

When metrics are asked for, counters travel in the data: one carrier row a task (``rows``), or a field on one row a task
(``keys``).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.contracts import JoinPlan
from semistream.errors import SchemaError
from semistream.spark.operator import Operator, Task, running
from semistream.spark.shedding import nothing_came, shedding

CARRIER = "_semistream"
FOUND = "_semistream_matched"
ROW = "__row"
_MOST_BLOCK_ROWS = 1 << 17
_LEAST_BLOCK_ROWS = 10_000


def spark_arrow(kind: pa.DataType) -> pa.DataType:
    """The Arrow type that Spark uses for a column of the master."""
    types = pa.types
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    return kind


def rows_function(
    operator: Operator, names: list[str], carrier: str | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow over the stream's columns, which are called ``names`` in the plan.

    With a ``carrier`` column, one row more takes the task's counters along.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next(batches, None)
        shed = operator.shed
        if first is None:
            if shed is not None:
                nothing_came(operator, shed)
            return
        stream = pa.schema([field.with_name(name) for field, name in zip(first.schema, names, strict=True)])
        given = (pa.RecordBatch.from_arrays(b.columns, schema=stream) for b in itertools.chain([first], batches))
        joined = stream if shed is None else shed.shed.widened(stream)
        with running(operator, joined) as task, ExitStack() as stack:
            if shed is not None:
                stack.enter_context(shedding(operator, shed, task.join, stream))
            plan: JoinPlan = task.join.plan
            kinds = [*joined.types, *map(spark_arrow, plan.output.types[len(joined) :])]
            fields = [pa.field(name, kind) for name, kind in zip(plan.output.names, kinds, strict=True)]
            schema = pa.schema([*fields, pa.field(carrier, pa.string())] if carrier else fields)
            for batch in task.join.join(given):
                columns = [_fitted(column, kind) for column, kind in zip(batch.columns, kinds, strict=True)]
                if carrier:
                    columns.append(pa.nulls(batch.num_rows, pa.string()))
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
            report = json.dumps(task.finish().as_dict())
            if carrier:
                empty = [pa.nulls(1, kind) for kind in kinds]
                yield pa.RecordBatch.from_arrays([*empty, pa.array([report])], schema=schema)

    return run


def unused_name(wanted: str, taken: Iterable[str]) -> str:
    """``wanted``, made longer until no column has it; Spark does not tell upper from lower case."""
    used = {name.lower() for name in taken}
    while wanted in used:
        wanted += "_"
    return wanted


def _fitted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type.equals(kind) else pc.cast(column, kind)


def keys_function(
    operator: Operator, names: list[str], *, many: bool, report: bool
) -> Callable[..., Iterator[pa.Array]]:
    """The function for a scalar Arrow UDF over the columns that are asked for, called ``names`` in the stream.

    With ``report``, a field of the last answer takes the task's counters along.
    """

    def run(arrays: Iterator[Any]) -> Iterator[pa.Array]:
        first = next(arrays, None)
        if first is None:
            return
        parts = first if isinstance(first, tuple) else (first,)
        row = unused_name(ROW, [*names, *operator.columns])
        schema = pa.schema([*((n, a.type) for n, a in zip(names, parts, strict=True)), (row, pa.int64())])
        how = "semi" if operator.how in ("semi", "anti") else "inner"
        with running(operator, schema, how) as task:
            if not many and not operator.one_match(task.join.store) and how == "inner":
                raise SchemaError(
                    f"version {task.join.store.version} of {operator.store} has keys with several rows, which version "
                    f"{operator.planned_version}, with which the query began, had not; restart the query, or use "
                    "transport='rows'"
                )
            previous: pa.Array | None = None  # the last one takes the report along
            size = BlockSize([task])
            for block in blocks(itertools.chain([first], arrays), schema, size):
                if previous is not None:
                    yield _with_report(previous, None) if report else previous
                answer = _looked_up(task.join.join([block]), block.num_rows, task.join.plan, operator, many=many)
                previous = size.saw(answer)
            stats = task.finish()
            if operator.how == "left":
                stats.rows_out += stats.unmatched  # the join itself ran as an inner one
            elif operator.how == "anti":
                stats.rows_out = stats.unmatched
            if previous is not None:
                yield _with_report(previous, json.dumps(stats.as_dict())) if report else previous

    return run


class BlockSize:
    """How many rows are asked for at once: their answers, held until they are in order, take a small share of memory.

    The first block goes by the width of a whole row of the master, those after it by the answers that were seen.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._share = sum(task.operator.memory_bytes // task.operator.tasks // 16 for task in tasks)
        self._row = sum(task.join.store.row_bytes for task in tasks if task.operator.columns)

    @property
    def rows(self) -> int:
        """Of the next block."""
        return max(_LEAST_BLOCK_ROWS, min(_MOST_BLOCK_ROWS, int(self._share / (64 + self._row))))

    def saw(self, answer: pa.Array) -> pa.Array:
        """Note the width of an answer, and give it back."""
        self._row = answer.nbytes / max(1, len(answer))
        return answer


def blocks(arrays: Iterator[Any], schema: pa.Schema, size: BlockSize) -> Iterator[pa.RecordBatch]:
    """The keys in blocks with row numbers: small arrays are put together, large ones cut."""
    parts: list[tuple[pa.Array, ...]] = []
    rows = 0
    for item in arrays:
        part = item if isinstance(item, tuple) else (item,)
        start = 0
        while start < len(part[0]):
            piece = tuple(array.slice(start, size.rows - rows) for array in part)
            parts.append(piece)
            start += len(piece[0])
            rows += len(piece[0])
            if rows >= size.rows:
                yield _block(parts, rows, schema)
                parts, rows = [], 0
    if parts:
        yield _block(parts, rows, schema)


def _block(parts: list[tuple[pa.Array, ...]], rows: int, schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.concat_arrays([part[c] for part in parts]) for c in range(len(parts[0]))]
    return pa.RecordBatch.from_arrays([*columns, pa.array(np.arange(rows))], schema=schema)


def _looked_up(
    batches: Iterator[pa.RecordBatch], rows: int, plan: JoinPlan, operator: Operator, *, many: bool
) -> pa.Array:
    """The answer for each row of a block, in order, from the join's output, which comes in any order."""
    if not many or operator.how not in ("left", "inner"):
        columns, missing = answers(batches, rows, plan, operator)
        return _struct(columns, ~missing)
    columns, missing, owner = all_answers(batches, rows, plan, operator)
    return pa.ListArray.from_arrays(offsets_of(owner, rows), _struct(columns, ~missing))


def answers(
    batches: Iterator[pa.RecordBatch], rows: int, plan: JoinPlan, operator: Operator
) -> tuple[list[pa.Array], Any]:
    """The master's columns for each row of a block, in order, and which rows have no match."""
    found, added = _found(batches, plan)
    place = np.full(rows, -1, np.int64)
    place[found] = np.arange(len(found))
    return _taken(added, place, operator)


def all_answers(
    batches: Iterator[pa.RecordBatch], rows: int, plan: JoinPlan, operator: Operator
) -> tuple[list[pa.Array], Any, Any]:
    """The same where a row may have several matches: with the row that each belongs to; one without has an entry."""
    found, added = _found(batches, plan)
    lonely = np.flatnonzero(np.bincount(found, minlength=rows) == 0)
    owner = np.concatenate([found, lonely])
    order = np.argsort(owner, kind="stable")
    source = np.concatenate([np.arange(len(found)), np.full(len(lonely), -1)])[order]
    return *_taken(added, source, operator), owner[order]


def offsets_of(owner: Any, rows: int) -> pa.Array:
    """Where the entries of each row begin, in a list of entries in the order of their rows."""
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(np.bincount(owner, minlength=rows), out=offsets[1:])
    return pa.array(offsets)


def _found(batches: Iterator[pa.RecordBatch], plan: JoinPlan) -> tuple[Any, list[pa.Array]]:
    """Numbers of the rows that matched, and the master's columns beside each."""
    table = pa.Table.from_batches(list(batches), plan.output)
    kinds = [spark_arrow(plan.output.field(name).type) for name in plan.names]
    added = [_fitted(table.column(n).combine_chunks(), kind) for n, kind in zip(plan.names, kinds, strict=True)]
    return table.column(len(plan.stream) - 1).to_numpy(), added


def _taken(added: list[pa.Array], source: Any, operator: Operator) -> tuple[list[pa.Array], Any]:
    missing = source < 0
    places = pa.array(source, mask=missing)
    taken = [_default(c.take(places), missing, n, operator) for c, n in zip(added, operator.names, strict=True)]
    return taken, missing


def _default(column: pa.Array, missing: Any, name: str, operator: Operator) -> pa.Array:
    value = operator.defaults.get(name)
    if value is None:
        return column
    return pc.if_else(pa.array(missing), pa.scalar(value, column.type), column)


def _struct(columns: list[pa.Array], found: Any) -> pa.Array:
    """Fields are named by position: the names that users see are given in the JVM."""
    return pa.StructArray.from_arrays([*columns, pa.array(found)], [*(f"c{i}" for i in range(len(columns))), FOUND])


def _with_report(answer: pa.Array, report: str | None) -> pa.Array:
    """Add the carrier field, with the task's report on the last row."""
    values = answer.values if pa.types.is_list(answer.type) else answer
    carrier = pa.nulls(len(values), pa.string())
    if report is not None:
        carrier = pa.concat_arrays([carrier[1:], pa.array([report])])
    names = [*(field.name for field in values.type.fields), CARRIER]
    changed = pa.StructArray.from_arrays([*values.flatten(), carrier], names)
    return changed if values is answer else pa.ListArray.from_arrays(answer.offsets, changed)
