"""DataFrames: what Spark knows of them, how crossings to Python want them; columns between Arrow and Spark."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from semistream.errors import ArgumentError, SchemaError
from semistream.lookup.bind import LookupPlan

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField


def context_of(session: "SparkSession") -> "SparkContext | None":
    """None with Spark Connect, which has none to ask."""
    try:
        return session.sparkContext
    except Exception:  # noqa: BLE001 - Connect says so by errors of its own
        return None


def arrow_schema(df: "DataFrame", what: str = "the stream") -> tuple[pa.Schema, dict[str, str]]:
    """The schema of ``df``, and the columns that Arrow cannot carry with their types: these must stay in the JVM."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    if not hasattr(df, "mapInArrow"):
        raise ArgumentError(f"df is a {type(df).__name__}, not a Spark DataFrame")
    names = df.columns
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaError(f"{what} has several columns named {', '.join(map(repr, twice))}; rename them")
    fields, foreign = [], {}
    for item in df.schema.fields:
        try:
            fields.append(to_arrow_schema(StructType([item]), timezone="UTC").field(0))
        except PySparkException:
            fields.append(pa.field(item.name, pa.null()))
            foreign[item.name] = item.dataType.simpleString()
    return pa.schema(fields), foreign


def spark_fields(plan: LookupPlan) -> "list[StructField]":
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


def force_rows(df: "DataFrame", key: str) -> "DataFrame":
    """The same rows, out of a filter that is always true and that Spark cannot know to be. Right above a columnar
    source (Parquet, ORC) Spark 4.3 runs Arrow functions on columns, and for that it turns every waiting batch into rows
    and back, value by value: half the rate of what it does above a filter, which gives rows.
    """
    from pyspark.sql import functions as F

    return df.where(F.hash(F.col(quoted(key))) >= F.lit(-(2**31)))


def quoted(name: str) -> str:
    """A column's name as Spark takes it in expressions."""
    return "`" + name.replace("`", "``") + "`"


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


def fitted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column in a type, as it is if it has that type. Spark has no nanoseconds: they are cut off, as Spark does."""
    if column.type.equals(kind):
        return column
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        column = pc.floor_temporal(column, unit="microsecond")
    return pc.cast(column, kind)


def unused_name(wanted: str, taken: Iterable[str]) -> str:
    """``wanted``, made longer until no column has it; Spark does not tell upper from lower case."""
    used = {name.lower() for name in taken}
    while wanted in used:
        wanted += "_"
    return wanted
