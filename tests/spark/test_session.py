"""What a local session is set to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_checkpoints_are_written_without_processes(spark: SparkSession) -> None:
    name = spark.conf.get("spark.sql.streaming.checkpointFileManagerClass")
    assert name is not None
    assert name.endswith(".FileSystemBasedCheckpointFileManager")
