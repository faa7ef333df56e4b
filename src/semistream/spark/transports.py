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
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa

from semistream.errors import SchemaError
from semistream.joins.contract import Join
from semistream.lookup.bind import LookupPlan
from semistream.spark.blocks import ROW, BlockSize, all_answers, answers, asked, blocks, bounded, offsets_of
from semistream.spark.columns import fitted, spark_arrow, unused_name
from semistream.spark.operator import Operator, running
from semistream.spark.shedding import nothing_came, shedding

CARRIER = "_semistream"
FOUND = "_semistream_matched"


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
            plan: LookupPlan = task.join.plan
            kinds = [*joined.types, *map(spark_arrow, plan.output.types[len(joined) :])]
            fields = [pa.field(name, kind) for name, kind in zip(plan.output.names, kinds, strict=True)]
            schema = pa.schema([*fields, pa.field(carrier, pa.string())] if carrier else fields)
            for batch in task.join.join(given):
                columns = [fitted(column, kind) for column, kind in zip(batch.columns, kinds, strict=True)]
                if carrier:
                    columns.append(pa.nulls(batch.num_rows, pa.string()))
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
            report = json.dumps(task.finish().as_dict())
            if carrier:
                empty = [pa.nulls(1, kind) for kind in kinds]
                yield pa.RecordBatch.from_arrays([*empty, pa.array([report])], schema=schema)

    return run


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
        schema = pa.schema([(n, a.type) for n, a in zip(names, parts, strict=True)])
        how = "semi" if operator.how in ("semi", "anti") else "inner"
        with running(operator, schema.append(pa.field(row, pa.int64())), how) as task:
            if not many and not operator.one_match(task.join.store) and how == "inner":
                raise SchemaError(
                    f"version {task.join.store.version} of {operator.store} has keys with several rows, which version "
                    f"{operator.planned_version}, with which the query began, had not; restart the query, or use "
                    "transport='rows'"
                )
            previous: pa.Array | None = None  # the last one takes the report along
            size = BlockSize([task], many=many)

            def looked_up(block: pa.RecordBatch, most_bytes: int) -> pa.Array:
                return _looked_up(task.join, block, operator, most_bytes if many else None)

            for block in blocks(itertools.chain([first], arrays), schema, size):
                for answer in bounded(block, looked_up, [task], size):
                    if previous is not None:
                        yield _with_report(previous, None) if report else previous
                    previous = answer
            stats = task.finish()
            if operator.how == "left":
                stats.rows_out += stats.unmatched  # the join itself ran as an inner one
            elif operator.how == "anti":
                stats.rows_out = stats.unmatched
            if previous is not None:
                yield _with_report(previous, json.dumps(stats.as_dict())) if report else previous

    return run


def _looked_up(join: Join, block: pa.RecordBatch, operator: Operator, most_bytes: int | None) -> pa.Array:
    """The answer for each row of a block, in order; a list of them where a row may have several (``most_bytes``)."""
    plan, rows = join.plan, block.num_rows
    made = asked(join, block.columns)
    if most_bytes is None or operator.how not in ("left", "inner"):
        columns, missing = answers(made, rows, plan, operator)
        return _struct(columns, ~missing)
    columns, missing, owner = all_answers(made, rows, plan, operator, most_bytes)
    return pa.ListArray.from_arrays(offsets_of(owner, rows), _struct(columns, ~missing))


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
