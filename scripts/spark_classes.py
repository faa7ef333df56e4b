"""Keeps the classes that Spark loads in an archive, with which the tests' Javas start in half of the time.

It runs a query with a Java that writes, as it ends, what it has loaded (the JDK's class data sharing). A Java that the
archive does not suit ignores it. Usage: spark_classes.py ARCHIVE
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from semistream.spark.session import local_session


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Python's part of a query."""
    return batches


def batch(rows: DataFrame, place: Path) -> None:
    """What batches do: they are kept, counted, written, read again, joined and collected."""
    rows = rows.mapInArrow(same, rows.schema).persist()
    rows.write.mode("append").parquet(str(place / "table"))
    spark = rows.sparkSession
    other = spark.createDataFrame(spark.read.parquet(str(place / "table")).limit(5).toArrow()).select("id", "text")
    joined = rows.join(other, "id", "left").withColumn("day", rows.at.cast("date"))
    joined.groupBy("key").agg({"id": "sum", "day": "max"}).orderBy("key").collect()
    rows.repartition(2, "key").unionByName(rows).filter("text like '%1'").mapInArrow(same, rows.schema).toArrow()
    rows.dropDuplicates(["key"]).selectExpr("*", "struct(id, text) both", "monotonically_increasing_id()").toArrow()
    rows.unpersist()


def query(spark: SparkSession, place: Path) -> None:
    """A stream of files, and its batches."""
    table = spark.range(100).selectExpr("id", "id % 7 key", "cast(id as string) text", "timestamp_seconds(id) at")
    table.repartition(2).write.json(str(place / "in"))
    stream = spark.readStream.schema(table.schema).option("maxFilesPerTrigger", 1).json(str(place / "in"))
    writer = stream.writeStream.foreachBatch(lambda rows, _: batch(rows, place))
    writer = writer.option("checkpointLocation", str(place / "state")).trigger(availableNow=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    archive = Path(sys.argv[1]).resolve()
    draft = archive.with_suffix(".draft")
    os.environ["SPARK_SUBMIT_OPTS"] = f"'-XX:ArchiveClassesAtExit={draft}' -Xlog:disable"
    with tempfile.TemporaryDirectory() as directory:
        session = local_session("classes", log=Path(directory) / "log")
        query(session, Path(directory))
    java = session.sparkContext._gateway.proc  # noqa: SLF001 - the archive is there when Java has ended
    session.stop()
    java.stdin.close()
    java.wait()
    if draft.exists():
        draft.rename(archive)
    else:  # this Java has no archive of its own to add to: tests start more slowly, and are the same
        archive.touch()
