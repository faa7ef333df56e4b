"""Several lookups in one crossing to Python: the keys of all go over once, and all masters' columns come back.

Each `enrich` crosses once, with Python workers of its own; three of them in a row spend more on crossings than on the
joins. Here one worker runs the joins one after the other on a block of rows. A lookup may ask for what one before it
has found, and a row that leaves the way at a lookup is not asked for in those after it: they see NULL, which costs
nothing and matches nothing.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.spark.blocks import ROW, BlockSize, all_answers, answers, asked, blocks, bounded, offsets_of
from semistream.spark.columns import spark_arrow, unused_name
from semistream.spark.frames import as_rows, quoted, spark_fields
from semistream.spark.operator import Operator, Task, running
from semistream.spark.prepare import Prepared
from semistream.stats import Stats

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_WAY, _STAYS = "_ss_way", "_ss_stays"
_REPORT = "lookups"  # with which the names of report files begin


@dataclass(frozen=True)
class Asked:
    """One lookup of several, as it is shipped to the workers."""

    operator: Operator
    kinds: tuple[Any, ...]  # Spark's types of the master's columns
    many: bool  # may a row have several matches?
    asks: tuple[str, ...]  # columns, in the order of the plan's: the key's, then the moment of an as-of lookup
    gives: tuple[str, ...]  # names of the master's columns, as later lookups ask for them
    status: str  # column that tells whether a row matched; NULL when it was not asked
    leaves: bool = False  # does a row without a match leave the way?
    unless_given_up: bool = False  # but not one that waited in vain before
    refuses_null: bool = False  # does a row without a key leave the way, unasked?

    @staticmethod
    def of(prepared: Prepared, asks: tuple[str, ...], gives: tuple[str, ...], status: str, **more: bool) -> Asked:
        """What `prepare` made, with its names in the stream."""
        operator = prepared.operator
        many = not operator.one_match(prepared.store)
        if operator.algorithm == "pcsrj":  # the tasks are its nodes, and each is a cache join
            operator = replace(operator, algorithm="sscj")
        kinds = tuple(field.dataType for field in spark_fields(prepared.plan))
        return Asked(operator, kinds, many, asks, gives, status, **more)


def looked_up(
    df: DataFrame, lookups: Sequence[Asked], way: Column, stays: Column | None = None, reports: Path | None = None
) -> DataFrame:
    """All columns of ``df``, the masters' and the statuses; rows that are not on their ``way`` are not asked for.

    A row that ``stays`` goes on where a lookup lets it although it misses (`Asked.unless_given_up`). Tasks leave their
    counters in ``reports``, a directory; see `reported`.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.types import ArrayType, BooleanType, StructField, StructType

    given = {name for one in lookups for name in one.gives}
    inputs = list(dict.fromkeys(name for one in lookups for name in one.asks if name not in given))
    names = [name for one in lookups for name in (*one.gives, one.status)]
    kinds = [kind for one in lookups for kind in (*one.kinds, BooleanType())]
    answer = StructType([StructField(f"c{i}", kind) for i, kind in enumerate(kinds)])
    many = any(one.many for one in lookups)
    flags = {_WAY: way} if stays is None else {_WAY: way, _STAYS: stays}
    function = _function(tuple(lookups), [*flags, *inputs], many=many, reports=reports)
    function.__annotations__ = {"arrays": Iterator[tuple[pa.Array, ...]], "return": Iterator[pa.Array]}
    kind: Any = ArrayType(answer) if many else answer
    udf = arrow_udf(function, kind).asNondeterministic()  # type: ignore[call-overload] # its stubs know no structs
    held = unused_name("_semistream_found", df.columns)
    all_found = udf(*flags.values(), *[F.col(quoted(name)) for name in inputs])
    found = as_rows(df, inputs[0]).withColumn(held, all_found)
    if many:
        found = found.withColumn(held, F.explode(held))
    # In SQL: every call of a function is a trip to the JVM.
    named = [f"{held}.c{i} AS {quoted(name)}" for i, name in enumerate(names)]
    return found.selectExpr(*map(quoted, df.columns), *named)


def reported(reports: Path) -> dict[str, Stats]:
    """What the lookups of a job did and cost, by the status column of each."""
    found: dict[str, Stats] = {}
    for path in reports.glob(f"{_REPORT}-*"):
        for status, counters in json.loads(path.read_text()).items():
            found[status] = found.get(status, Stats()) + Stats(**counters)
    return found


def _report(reports: Path, stats: dict[str, Stats]) -> None:
    """One file a partition, so that a task that is tried again counts once."""
    from pyspark import TaskContext

    context = TaskContext.get()
    part = 0 if context is None else context.partitionId()
    draft = reports / f".{_REPORT}-{uuid.uuid4().hex}"
    draft.write_text(json.dumps({status: one.as_dict() for status, one in stats.items()}))
    draft.rename(reports / f"{_REPORT}-{next(iter(stats))}-{part:05d}")


def _function(
    lookups: tuple[Asked, ...], inputs: list[str], *, many: bool, reports: Path | None
) -> Callable[..., Iterator[pa.Array]]:
    """For a scalar Arrow function over ``inputs``."""

    def run(arrays: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        first = next(arrays, None)
        if first is None:
            return
        schema = pa.schema([(n, a.type) for n, a in zip(inputs, first, strict=True)])
        kinds = {field.name: field.type for field in schema}
        with ExitStack() as stack:
            tasks = []
            for one in lookups:
                columns = zip(_asked_names(one.operator), (kinds[name] for name in one.asks), strict=True)
                stream = pa.schema([*columns, (ROW, pa.int64())])
                task = stack.enter_context(running(one.operator, stream, "inner", among=len(lookups)))
                plan = task.join.plan
                kinds |= {
                    new: spark_arrow(plan.output.field(old).type)
                    for new, old in zip(one.gives, plan.names, strict=True)
                }
                tasks.append(task)
            size = BlockSize(tasks, many=many)

            def answered(block: pa.RecordBatch, most_bytes: int) -> pa.Array:
                return _answered(block, lookups, tasks, most_bytes if many else None)

            for block in blocks(itertools.chain([first], arrays), schema, size):
                yield from bounded(block, answered, tasks, size)
            stats = {one.status: task.finish() for one, task in zip(lookups, tasks, strict=True)}
            if reports is not None:
                _report(reports, stats)

    return run


def _asked_names(operator: Operator) -> list[str]:
    return [*operator.spec.keys, *([operator.spec.as_of] if operator.spec.as_of is not None else [])]


def _answered(
    block: pa.RecordBatch, lookups: Sequence[Asked], tasks: Sequence[Task], most_bytes: int | None
) -> pa.Array:
    """What all lookups have for the rows of a block; lists where one of them may have several (``most_bytes``)."""
    known: dict[str, pa.Array] = dict(zip(block.schema.names, block.columns, strict=True))
    way = known.pop(_WAY).to_numpy(zero_copy_only=False).astype(bool)
    stays = known.pop(_STAYS).to_numpy(zero_copy_only=False).astype(bool) if _STAYS in known else np.zeros_like(way)
    results: list[pa.Array] = []
    owner = np.arange(block.num_rows)  # the block's row that each row comes from
    for one, task in zip(lookups, tasks, strict=True):
        keys = [known[name] for name in one.asks]
        if one.refuses_null:
            for key in keys[: len(one.operator.spec.keys)]:
                if key.null_count:
                    way = way & key.is_valid().to_numpy(zero_copy_only=False)
        if not way.all():
            keys = [pc.if_else(pa.array(way), column, pa.scalar(None, column.type)) for column in keys]
        plan, rows = task.join.plan, len(way)
        made = asked(task.join, keys)
        if one.many and most_bytes is not None:
            added, missing, source = all_answers(made, rows, plan, one.operator, most_bytes)
            again = pa.array(source)
            known = {name: column.take(again) for name, column in known.items()}
            results = [column.take(again) for column in results]
            way, stays, owner = way[source], stays[source], owner[source]
        else:
            added, missing = answers(made, rows, plan, one.operator)
        known |= zip(one.gives, added, strict=True)
        results += [*added, pa.array(~missing, mask=~way)]
        if one.leaves:
            way = way & (~missing | stays if one.unless_given_up else ~missing)
    struct = pa.StructArray.from_arrays(results, [f"c{i}" for i in range(len(results))])
    return struct if most_bytes is None else pa.ListArray.from_arrays(offsets_of(owner, block.num_rows), struct)
