"""Lookups by key in one crossing to Python: only the keys go over, and the masters' columns come back.

An Arrow function over the columns that decide what matches returns a struct of the masters' columns, or an array of
structs where a row may have several matches. `enrich` has one lookup, a pipeline several: one worker runs their joins
in turn on a block of rows, since crossings cost more than joins. A key may be what an earlier lookup found.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.errors import SchemaError
from semistream.keys import Mask
from semistream.lookup.bind import MATCHED, UNMATCHED
from semistream.rows import text_sizes
from semistream.shedding.strategy import Positions
from semistream.spark.blocks import BlockSize, TooManyAnswersError, answers, find_matches
from semistream.spark.frames import force_rows, quoted, spark_arrow, spark_fields, unused_name
from semistream.spark.metrics import CARRIER, Metrics, write_report
from semistream.spark.operator import Operator, Task, run_task
from semistream.spark.prepare import Prepared

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_FLAGS = _ACTIVE, _GIVEN_UP = "_ss_active", "_ss_given_up"
_ROW = "__row"


@dataclass(frozen=True)
class CrossingLookup:
    """One lookup of a crossing, as it is shipped to the workers."""

    operator: Operator
    kinds: "tuple[DataType, ...]"  # Spark's types of the master's columns
    many: bool  # may a row have several matches?
    inputs: tuple[str, ...]  # columns, in the order of the operator's: the key's, then the moment of an as-of lookup
    outputs: tuple[str, ...]  # names of the master's columns, as later lookups ask for them
    status: str  # column that tells whether a row matched; NULL when it was not looked up
    leaves: bool = False  # does a row without a match leave?
    unless_given_up: bool = False  # but not one that waited in vain before
    refuses_null: bool = False  # does a row without a key leave without being looked up?

    @staticmethod
    def of(
        prepared: Prepared, inputs: tuple[str, ...], outputs: tuple[str, ...], status: str, **more: bool
    ) -> "CrossingLookup":
        """What `prepare` made, with its names in the stream."""
        kinds = tuple(field.dataType for field in spark_fields(prepared.plan))
        return CrossingLookup(prepared.operator, kinds, prepared.many, inputs, outputs, status, **more)


def enrich_by_keys(df: "DataFrame", prepared: Prepared, metrics: Metrics | None) -> "DataFrame":
    """One lookup alone."""
    from pyspark.sql import functions as F

    plan, operator = prepared.plan, prepared.operator
    status = unused_name("_semistream_matched", plan.output.names)
    carrier = unused_name(CARRIER, [*plan.output.names, status])
    lookup = CrossingLookup.of(prepared, operator.inputs, plan.names, status)
    joined = look_up_all(df, [lookup], carrier=None if metrics is None else carrier)
    if metrics is not None:
        joined = metrics.watch(joined, operator.identity, F.col(carrier)).drop(carrier)
    found = F.col(status)
    if operator.spec.on_miss == "fail" or operator.spec.min_match_rate > 0:
        joined = joined.where(found.isNotNull())  # always true: keeps Spark from leaving the lookup out
    if plan.how in ("inner", "semi"):
        joined = joined.where(found)
    elif plan.how == "anti":
        joined = joined.where(~found)
    if plan.status is not None:
        joined = joined.withColumn(plan.status, F.when(found, F.lit(MATCHED)).otherwise(F.lit(UNMATCHED)))
    return joined.drop(status)


def look_up_all(
    df: "DataFrame",
    lookups: Sequence[CrossingLookup],
    active: "Column | None" = None,
    given_up: "Column | None" = None,
    carrier: str | None = None,
) -> "DataFrame":
    """All columns of ``df``, the masters' and the statuses; rows that are not ``active`` are not looked up. A row that
    is ``given_up`` goes on where a lookup lets it although it misses (`CrossingLookup.unless_given_up`). One row of
    each task has its counters in the column ``carrier``.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.types import ArrayType, BooleanType, StringType, StructField, StructType

    given = {name for one in lookups for name in one.outputs}
    inputs = list(dict.fromkeys(name for one in lookups for name in one.inputs if name not in given))
    added: dict[str, DataType] = {}
    for one in lookups:
        added |= {**dict(zip(one.outputs, one.kinds, strict=True)), one.status: BooleanType()}
    if carrier is not None:
        added[carrier] = StringType()
    # Fields are named by position: the names that users see are given in the JVM.
    answer = StructType([StructField(f"c{i}", kind) for i, kind in enumerate(added.values())])
    many = any(one.many for one in lookups)
    flags = {name: flag for name, flag in ((_ACTIVE, active), (_GIVEN_UP, given_up)) if flag is not None}
    crossing = [*flags, *inputs]
    shipped = tuple(replace(one, operator=replace(one.operator, operator_count=len(lookups))) for one in lookups)

    def look_up(arrays: Iterator[tuple[pa.Array, ...] | pa.Array]) -> Iterator[pa.Array]:
        given = (item if isinstance(item, tuple) else (item,) for item in arrays)
        batches = (pa.RecordBatch.from_arrays(list(item), crossing) for item in given)
        return _run(batches, shipped, many=many, carries=carrier is not None)

    hint = Iterator[pa.Array] if len(crossing) == 1 else Iterator[tuple[pa.Array, ...]]  # Spark reads the hints
    look_up.__annotations__ = {"arrays": hint, "return": Iterator[pa.Array]}
    kind: DataType = ArrayType(answer) if many else answer
    udf = arrow_udf(look_up, kind).asNondeterministic()  # type: ignore[call-overload] # its stubs know no structs
    held = unused_name("_semistream_found", df.columns)
    all_found = udf(*flags.values(), *[F.col(quoted(name)) for name in inputs])
    found = force_rows(df, inputs[0]).withColumn(held, all_found)
    if many:
        found = found.withColumn(held, F.explode(held))
    # In SQL: every call of a function is a trip to the JVM.
    named = [f"{held}.c{i} AS {quoted(name)}" for i, name in enumerate(added)]
    return found.selectExpr(*map(quoted, df.columns), *named)


def _run(
    batches: Iterator[pa.RecordBatch], lookups: tuple[CrossingLookup, ...], *, many: bool, carries: bool
) -> Iterator[pa.Array]:
    """In a task: the answers to its rows; where it ``carries``, the last one takes the counters along."""
    first = next(batches, None)
    if first is None:
        return
    kinds = {field.name: field.type for field in first.schema}
    with ExitStack() as stack:
        tasks = [_start(stack, one, kinds) for one in lookups]
        size, last = BlockSize(tasks, many=many), None
        for made in answers(itertools.chain([first], batches), partial(_answer, lookups, tasks), size):
            if not carries:
                yield made
                continue
            if last is not None:
                yield _with_counters(last, None)
            last = made
        stats = {one.status: task.finish() for one, task in zip(lookups, tasks, strict=True)}
        if carries and last is not None:
            yield _with_counters(last, write_report(stats))


def _start(stack: ExitStack, one: CrossingLookup, kinds: dict[str, pa.DataType]) -> Task:
    """A lookup's task, for columns of these ``kinds``, to which it adds its own."""
    operator, exists = one.operator, one.operator.spec.how in ("semi", "anti")
    stream = [(name, kinds[column]) for name, column in zip(operator.inputs, one.inputs, strict=True)]
    row = (unused_name(_ROW, [*operator.inputs, *operator.columns]), pa.int32())
    task = stack.enter_context(run_task(operator, pa.schema([*stream, row]), "semi" if exists else "inner"))
    if not (one.many or exists or task.store.unique or operator.spec.multiple != "all"):
        raise SchemaError(
            f"version {task.store.version} of {operator.store} has keys with several rows, which version "
            f"{operator.planned.number}, with which the query began, had not; restart the query, or use "
            "transport='rows'"
        )
    plan = task.join.plan
    kinds |= {new: spark_arrow(plan.output.field(old).type) for new, old in zip(one.outputs, plan.names, strict=True)}
    return task


def _answer(
    lookups: Sequence[CrossingLookup], tasks: Sequence[Task], pieces: Iterable[pa.RecordBatch], most_bytes: int
) -> pa.Array:
    """What all lookups have for the rows of a block; lists where a row may have several."""
    # The first lookup is asked as rows come, those after it for the whole block.
    coming, taken = itertools.tee(pieces)
    asked = (_keys(lookups[0], *_known(piece)[:2]) for piece in coming)
    found = find_matches(tasks[0], asked, most_bytes, many=lookups[0].many)
    block = pa.concat_batches(taken)
    known, active, given_up = _known(block)
    results: list[pa.Array] = []
    owner: Positions | None = None  # the block's row that each row comes from, where there are others than these
    for number, one in enumerate(lookups):
        if number > 0:
            found = find_matches(tasks[number], [_keys(one, known, active)], most_bytes, many=one.many)
        active = _asked(one, known, active)
        added, missing, source = found
        if source is not None:
            later, again = {name for other in lookups[number + 1 :] for name in other.inputs}, pa.array(source)
            known = {name: column for name, column in known.items() if name in later}
            if text_sizes([*known.values(), *results], source).sum() > most_bytes:
                raise TooManyAnswersError  # text of one lookup beside the many matches of another
            known = {name: column.take(again) for name, column in known.items()}
            results = [column.take(again) for column in results]
            active, given_up = active[source], given_up[source]
            owner = source if owner is None else owner[source]
        known |= zip(one.outputs, added, strict=True)
        results += [*added, pa.array(~missing, mask=None if active.all() else ~active)]
        if one.leaves:
            active = active & (~missing | given_up if one.unless_given_up else ~missing)
    struct = _struct(results)
    if owner is None:
        return struct
    offsets = np.append(0, np.cumsum(np.bincount(owner, minlength=block.num_rows))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), struct)


def _known(block: pa.RecordBatch) -> tuple[dict[str, pa.Array], Mask, Mask]:
    """The columns that lookups may ask by; which rows are looked up, and which have waited in vain."""
    known: dict[str, pa.Array] = dict(zip(block.schema.names, block.columns, strict=True))
    flags = {name: known.pop(name).to_numpy(zero_copy_only=False).astype(bool) for name in _FLAGS if name in known}
    active = flags.get(_ACTIVE, np.ones(block.num_rows, np.bool_))
    return known, active, flags.get(_GIVEN_UP, np.zeros(block.num_rows, np.bool_))


def _asked(one: CrossingLookup, known: dict[str, pa.Array], active: Mask) -> Mask:
    """Which of the active rows a lookup is asked for."""
    for name in one.inputs[: len(one.operator.spec.keys)] if one.refuses_null else ():
        active = active & known[name].is_valid().to_numpy(zero_copy_only=False)
    return active


def _keys(one: CrossingLookup, known: dict[str, pa.Array], active: Mask) -> list[pa.Array]:
    """What a lookup is asked by: NULL, which matches nothing, in rows that are not looked up."""
    asked, keys = _asked(one, known, active), [known[name] for name in one.inputs]
    if asked.all():
        return keys
    return [pc.if_else(pa.array(asked), key, pa.scalar(None, key.type)) for key in keys]


def _with_counters(answer: pa.Array, report: str | None) -> pa.Array:
    """An answer with one field more: NULL, but for the task's report on the last row."""
    values = answer.values if pa.types.is_list(answer.type) else answer
    counters = pa.concat_arrays([pa.nulls(len(values), pa.string()), pa.array([report], pa.string())])[1:]
    struct = _struct([*values.flatten(), counters])
    return struct if values is answer else pa.ListArray.from_arrays(answer.offsets, struct)


def _struct(columns: list[pa.Array]) -> pa.Array:
    return pa.StructArray.from_arrays(columns, [f"c{i}" for i in range(len(columns))])
