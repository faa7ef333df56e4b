"""Workloads as Spark data sources: ``spark.readStream.format("semistream-zipf")`` and so on.

from semistream_lab.spark.sources import register_sources

register_sources(spark)
stream = spark.readStream.format("semistream-zipf").option("rows", 1_000_000).option("rowsPerSecond", 50_000).load()
master = spark.read.format("semistream-zipf").option("rows", 1_000_000).option("table", "master").load()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register_sources(spark: SparkSession) -> list[str]:
    """Make every workload readable in this session, as ``semistream-`` and its name; the names."""
    from semistream_lab.spark.generated_sources import SOURCES

    for source in SOURCES:
        spark.dataSource.register(source)
    return [source.name() for source in SOURCES]
