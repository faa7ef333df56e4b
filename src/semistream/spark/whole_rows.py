"""Whole rows through Python: a mapInArrow to which every column crosses and from which it comes back.

For joins that let rows wait, for shedding, and for narrow streams whose rows have several matches; otherwise only the
keys cross (`semistream.spark.lookups`), and both give the same rows. When metrics are asked for, one carrier row a task
takes its counters along.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from semistream.lookup.bind import LookupPlan
from semistream.spark.frames import fitted, spark_arrow, spark_fields, unused_name
from semistream.spark.metrics import CARRIER, Metrics, write_report
from semistream.spark.operator import Operator, run_task
from semistream.spark.shedding import publish_nothing, shed_in_front

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def enrich_by_rows(df: DataFrame, operator: Operator, plan: LookupPlan, metrics: Metrics | None) -> DataFrame:
    """All columns go to Python and come back with the master's."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import DoubleType, StringType, StructField, StructType

    names, weight = df.columns, None if operator.spec.shed is None else operator.spec.shed.weight
    given = df
    if any(character in name for name in names for character in ".`"):  # Spark's mapInArrow cannot take such names
        given = df.toDF(*(f"c{i}" for i in range(len(names))))
    stream = plan.stream if weight is None else plan.stream.remove(len(names))
    fields = [*df.schema.fields, *([StructField(weight, DoubleType())] if weight else []), *spark_fields(plan)]
    if plan.status is not None:
        fields.append(StructField(plan.status, StringType()))
    out = [StructField(f.name, f.dataType, nullable=True, metadata=f.metadata) for f in fields]
    if metrics is None:  # a carrier costs every row a filter and a copy
        return given.mapInArrow(_function(operator, stream, None), StructType(out))
    carrier = unused_name(CARRIER, [field.name for field in out])
    out.append(StructField(carrier, StringType()))
    joined = given.mapInArrow(_function(operator, stream, carrier), StructType(out))
    watched = metrics.watch(joined, operator.identity, F.col(carrier))
    return watched.where(F.col(carrier).isNull()).drop(carrier)


def _function(
    operator: Operator, planned: pa.Schema, carrier: str | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow over the stream's columns, which have the names of ``planned``.

    With a ``carrier`` column, one row more takes the task's counters along.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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

    return run
