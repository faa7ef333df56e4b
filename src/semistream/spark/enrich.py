"""``enrich``: a streaming or batch DataFrame in, the same rows with the master's columns out.

It works in any query, in foreachBatch and in batch jobs, and changes no configuration. Mostly only the keys cross to
Python (`semistream.spark.lookups`); whole rows do, through mapInArrow, for joins that let rows wait, for shedding, and
for narrow streams whose rows have several matches. Both give the same rows.
"""

import itertools
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from semistream.budget import format_bytes
from semistream.joins.sweep.join import SweepJoin
from semistream.lookup.spec import asks
from semistream.spark.frames import fitted, quoted, spark_arrow, spark_fields, unused_name
from semistream.spark.lookups import enrich_by_keys
from semistream.spark.metrics import CARRIER, Metrics, write_report
from semistream.spark.operator import Operator, divide, run_task
from semistream.spark.prepare import FrameFacts, Prepared, prepare
from semistream.spark.shedding import publish_nothing, shed_in_front
from semistream.spark.spec import EnrichSpec
from semistream.stores import MasterStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@asks(EnrichSpec)
def enrich(df: "DataFrame", store: MasterStore | str | os.PathLike[str], spec: EnrichSpec) -> "DataFrame":
    """Join a streaming or batch DataFrame with a master store.

    ``memory`` is the total for all Python workers of a host together ("256MB", or "10%" of the master). ``on`` is a
    column name, several, or {stream column: master column}. ``on_miss`` says what becomes of a row without a match:
    "null" (default), "drop" or "fail"; ``defaults`` fill the master's columns of such rows. A match rate under
    ``min_match_rate`` in a task fails the batch (tasks of fewer than ``min_match_rows`` rows are judged together).
    ``as_of`` is the stream's column with a moment: of a key's rows only those match with ``valid_from`` <= moment <
    ``valid_to`` (NULL is no bound). ``multiple`` is for rows with several matches: "all" of them, the "first" in the
    store's order of the key's rows, or an "error" that names the key. ``status`` names a last column that says
    "matched" or "unmatched".
    ``refresh`` is "every_batch", "never" or a time such as "5 minutes"; a batch that is replayed reads the version it
    read before. ``shed`` relieves a join whose stream is too fast: see `semistream.Shed`.
    """
    p = prepare(FrameFacts.of(df), store, spec)
    if p.operator.algorithm == "pcsrj":  # a partition is a node: it sees its own keys
        df = df.repartition(p.operator.tasks, *[df[quoted(name)] for name in p.plan.stream_keys])
    if p.transport == "rows":
        return enrich_by_rows(df, p, spec.metrics)
    return enrich_by_keys(df, p, spec.metrics)


def enrich_by_rows(df: "DataFrame", prepared: Prepared, metrics: Metrics | None) -> "DataFrame":
    """All columns go to Python and come back with the master's."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import DoubleType, StringType, StructField, StructType

    operator, plan, names = prepared.operator, prepared.plan, df.columns
    weight = None if operator.spec.shed is None else operator.spec.shed.weight
    given = df
    if any(character in name for name in names for character in ".`"):  # Spark's mapInArrow cannot take such names
        given = df.toDF(*(f"c{i}" for i in range(len(names))))
    stream = plan.stream if weight is None else plan.stream.remove(len(names))
    fields = [*df.schema.fields, *([StructField(weight, DoubleType())] if weight else []), *spark_fields(plan)]
    if plan.status is not None:
        fields.append(StructField(plan.status, StringType()))
    out = [StructField(f.name, f.dataType, nullable=True, metadata=f.metadata) for f in fields]
    if metrics is None:  # a carrier costs every row a filter and a copy
        return given.mapInArrow(lambda batches: _run(batches, operator, stream, None), StructType(out))
    carrier = unused_name(CARRIER, [field.name for field in out])
    out.append(StructField(carrier, StringType()))
    joined = given.mapInArrow(lambda batches: _run(batches, operator, stream, carrier), StructType(out))
    watched = metrics.watch(joined, operator.identity, F.col(carrier))
    return watched.where(F.col(carrier).isNull()).drop(carrier)


def _run(
    batches: Iterator[pa.RecordBatch], operator: Operator, planned: pa.Schema, carrier: str | None
) -> Iterator[pa.RecordBatch]:
    """A task, for columns with the names of ``planned``; one row more has the counters in ``carrier``."""
    first = next(batches, None)
    if first is None:
        publish_nothing(operator, planned)
        return
    stream = pa.schema([field.with_name(name) for field, name in zip(first.schema, planned.names, strict=True)])
    given = (pa.RecordBatch.from_arrays(b.columns, schema=stream) for b in itertools.chain([first], batches))
    joined = stream if operator.spec.shed is None else operator.spec.shed.widened(stream)
    with run_task(operator, joined) as task, shed_in_front(task, stream):
        output = task.join.plan.output
        kinds = [*joined.types, *map(spark_arrow, output.types[len(joined) :])]
        fields = [pa.field(name, kind) for name, kind in zip(output.names, kinds, strict=True)]
        schema = pa.schema([*fields, pa.field(carrier, pa.string())] if carrier else fields)
        for batch in task.join.join(given):
            columns = [fitted(column, kind) for column, kind in zip(batch.columns, kinds, strict=True)]
            if carrier:
                columns.append(pa.nulls(batch.num_rows, pa.string()))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
        stats = task.finish()
        if carrier:
            columns = [*(pa.nulls(1, kind) for kind in kinds), pa.array([write_report({operator.store: stats})])]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


@asks(EnrichSpec)
def explain(df: "DataFrame", store: MasterStore | str | os.PathLike[str], spec: EnrichSpec) -> str:
    """What `enrich` with the same arguments would do: algorithm, transport, why, budget split, predicted rate."""
    p = prepare(FrameFacts.of(df), store, spec)
    prediction = p.choice.prediction
    lines = [
        f"enrich with {p.store.path} (version {p.store.version}, {p.store.rows:,} rows, {format_bytes(p.store.bytes)})",
        f"  algorithm   {p.choice.join.name}: {p.choice.reason}",
        f"  transport   {p.transport}: {p.why_transport}",
        f"  memory      {format_bytes(p.operator.memory_bytes)} in total a host for {p.operator.tasks} tasks at once",
        *(f"              {name:<12} {format_bytes(size)}" for name, size in _parts(p).items()),
        f"  predicted   hit ratio {prediction.hit_ratio:.2f}, {p.choice.rows_per_second:,.0f} rows/s a core",
        f"              in the join alone, {prediction.remark}",
        f"  output      {', '.join(p.plan.output.names)}",
        f"  no match    {spec.on_miss}; refresh {spec.refresh}",
    ]
    if p.plan.as_of is not None:
        lines.append(f"  as of       {p.plan.as_of}")
    if spec.multiple != "all":
        several = "only the first match of a row" if spec.multiple == "first" else "a row with two matches fails"
        lines.append(f"  multiple    {spec.multiple}: {several}")
    shed = p.operator.spec.shed
    if shed is not None:
        rate = shed.max_rows_per_second
        above = "the rate of the batch before" if rate is None else f"{rate:,.0f} rows/s"
        lines.append(f"  shedding    {shed.strategy}: {shed.kind.idea}; above {above} the others")
        lines.append(
            f"              go to {shed.directory}; takes {format_bytes(p.operator.shed_bytes)} beside the join"
        )
    return "\n".join(lines)


def _parts(p: Prepared) -> dict[str, int]:
    """How the budget is divided among all tasks of a host together."""
    if p.choice.join is not SweepJoin:
        return p.choice.prediction.parts
    tasks = p.operator.tasks
    parts, answers = divide(p.operator, p.store, p.plan, "left" if p.transport == "keys" else None)
    return {
        "index": parts.index,
        "read buffer": (parts.buffer + parts.plan) * tasks,
        "output": parts.output * tasks,
        "cache": parts.cache,
        "window": parts.window * tasks,
        **({"answers": answers * tasks} if answers else {}),
    }
