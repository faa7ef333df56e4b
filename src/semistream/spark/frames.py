"""The two transports as DataFrames: whole rows through Python, or only the keys (see `semistream.spark.transports`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semistream.errors import SchemaError
from semistream.lookup.bind import MATCHED, UNMATCHED, LookupPlan
from semistream.spark.columns import spark_arrow, unused_name
from semistream.spark.metrics import OBSERVATION, Metrics
from semistream.spark.operator import Operator
from semistream.spark.transports import CARRIER, FOUND, keys_function, rows_function

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def spark_fields(plan: LookupPlan) -> list[Any]:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField

    fields = []
    for column, name in zip(plan.columns, plan.names, strict=True):
        kind = plan.master.field(column).type
        try:
            fields.append(StructField(name, from_arrow_type(spark_arrow(kind)), nullable=True))
        except PySparkException as error:
            raise SchemaError(
                f"master column {column!r} of type {kind} has no counterpart in Spark; leave it out with columns=[...]"
            ) from error
    return fields


def by_node(df: DataFrame, operator: Operator, plan: LookupPlan) -> DataFrame:
    """All rows of a key in one partition, as many partitions as there are tasks."""
    from pyspark.sql import functions as F

    return df.repartition(operator.tasks, *[F.col(quoted(name)) for name in plan.stream_keys])


def by_rows(df: DataFrame, operator: Operator, plan: LookupPlan, metrics: Metrics | None) -> DataFrame:
    """All columns go to Python and come back with the master's."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import DoubleType, StringType, StructField, StructType

    names = df.columns
    given = df
    if any(character in name for name in names for character in ".`"):  # Spark's mapInArrow cannot take such names
        given = df.toDF(*(f"c{i}" for i in range(len(names))))
    weight = operator.shed.shed.weight if operator.shed is not None else None
    fields = [*df.schema.fields, *([StructField(weight, DoubleType())] if weight else []), *spark_fields(plan)]
    if plan.status is not None:
        fields.append(StructField(plan.status, StringType()))
    out = [StructField(f.name, f.dataType, nullable=True, metadata=f.metadata) for f in fields]
    if metrics is None:  # a carrier costs every row a filter and a copy
        return given.mapInArrow(rows_function(operator, names, None), StructType(out))
    carrier = unused_name(CARRIER, [field.name for field in out])
    joined = given.mapInArrow(
        rows_function(operator, names, carrier), StructType([*out, StructField(carrier, StringType())])
    )
    watched = metrics.watch(joined, _name(operator), F.col(carrier))
    return watched.where(F.col(carrier).isNull()).drop(carrier)


def by_keys(df: DataFrame, operator: Operator, plan: LookupPlan, metrics: Metrics | None, *, single: bool) -> DataFrame:
    """Only the key goes to Python, the master's columns come back; ``single`` says that a row has one match at most."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.types import ArrayType, BooleanType, StringType, StructField, StructType

    many = plan.how in ("left", "inner") and not single
    fields = [StructField(f"c{i}", field.dataType) for i, field in enumerate(spark_fields(plan))]
    fields.append(StructField(FOUND, BooleanType()))
    if metrics is not None:
        fields.append(StructField(CARRIER, StringType()))
    answer = StructType(fields)
    names = plan.asked
    function = keys_function(operator, names, many=many, report=metrics is not None)
    given = Iterator[pa.Array] if len(names) == 1 else Iterator[tuple[pa.Array, ...]]  # Spark reads the hints
    function.__annotations__ = {"arrays": given, "return": Iterator[pa.Array]}
    kind: Any = ArrayType(answer) if many else answer
    udf = arrow_udf(function, kind).asNondeterministic()  # type: ignore[call-overload] # its stubs know no structs
    held = unused_name("_semistream_found", df.columns)
    looked_up = as_rows(df, names[0]).withColumn(held, udf(*[F.col(quoted(name)) for name in names]))
    if many:
        looked_up = looked_up.withColumn(held, F.explode(held))
    if metrics is not None:
        looked_up = metrics.watch(looked_up, _name(operator), F.col(f"{held}.{CARRIER}"))
    found = F.col(f"{held}.{FOUND}")
    if operator.on_miss == "fail" or operator.min_match_rate > 0:
        looked_up = looked_up.where(found.isNotNull())  # always true: keeps Spark from leaving the lookup out
    if plan.how in ("inner", "semi"):
        looked_up = looked_up.where(found)
    elif plan.how == "anti":
        looked_up = looked_up.where(~found)
    named = [F.col(held).getField(f"c{i}").alias(name) for i, name in enumerate(plan.names)]
    if plan.status is not None:
        named.append(F.when(found, F.lit(MATCHED)).otherwise(F.lit(UNMATCHED)).alias(plan.status))
    return looked_up.select(*[F.col(quoted(name)) for name in df.columns], *named)


def as_rows(df: DataFrame, key: str) -> DataFrame:
    """The same rows, out of a filter that is always true and that Spark cannot know to be.

    Right above a columnar source (Parquet, ORC) Spark 4.3 runs Arrow functions on columns, and for that it turns every
    waiting batch into rows and back, value by value: half the rate of what it does above a filter, which gives rows.
    """
    from pyspark.sql import functions as F

    return df.where(F.hash(F.col(quoted(key))) >= F.lit(-(2**31)))


def quoted(name: str) -> str:
    """A column's name as Spark takes it in expressions."""
    return "`" + name.replace("`", "``") + "`"


def _name(operator: Operator) -> str:
    return f"{OBSERVATION}-{operator.identity}"
