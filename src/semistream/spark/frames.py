"""DataFrames as the crossings to Python want them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semistream.errors import SchemaError
from semistream.lookup.bind import LookupPlan
from semistream.spark.columns import spark_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField


def spark_fields(plan: LookupPlan) -> list[StructField]:
    """The master's columns, as Spark has them."""
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


def partition_by_key(df: DataFrame, tasks: int, plan: LookupPlan) -> DataFrame:
    """All rows of a key in one partition, as many partitions as there are tasks."""
    from pyspark.sql import functions as F

    return df.repartition(tasks, *[F.col(quoted(name)) for name in plan.stream_keys])


def force_rows(df: DataFrame, key: str) -> DataFrame:
    """The same rows, out of a filter that is always true and that Spark cannot know to be.

    Right above a columnar source (Parquet, ORC) Spark 4.3 runs Arrow functions on columns, and for that it turns every
    waiting batch into rows and back, value by value: half the rate of what it does above a filter, which gives rows.
    """
    from pyspark.sql import functions as F

    return df.where(F.hash(F.col(quoted(key))) >= F.lit(-(2**31)))


def quoted(name: str) -> str:
    """A column's name as Spark takes it in expressions."""
    return "`" + name.replace("`", "``") + "`"
