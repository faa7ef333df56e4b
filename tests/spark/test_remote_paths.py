"""Paths that name another place: refused where we open them, left to Spark where it does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from semistream.errors import ArgumentError
from semistream.pipeline import source
from semistream.spark import Metrics, enrich

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REMOTE = ("s3://bucket/x", "s3:/bucket/x", "hdfs://node:9000/x", "file:///x")


def test_refused(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frame = spark.createDataFrame([(1,)], "id bigint")
    for path in REMOTE:
        with pytest.raises(ArgumentError, match="is remote"):
            enrich(frame, path, on="id")
        with pytest.raises(ArgumentError, match="is remote"):
            Metrics(spark, run_log=path)
    assert not list(tmp_path.iterdir())


def test_spark_may_read_what_we_cannot(spark: SparkSession) -> None:
    """A source of text is read by Spark alone; whether it knows the scheme is seen before anything runs."""
    remote = source("json", "s3a://bucket/in", schema={"id": "bigint"})
    assert remote.path == "s3a://bucket/in"
    with pytest.raises(ArgumentError, match=r"path='s3a://bucket/in' cannot be read: .*S3AFileSystem"):
        remote.read(spark)
    with pytest.raises(ArgumentError, match="remote Parquet files cannot be checked"):
        source("parquet", "s3a://bucket/in", schema={"id": "bigint"})
    with pytest.raises(ArgumentError, match="give a path on a local"):
        source("json", "file:///in", schema={"id": "bigint"})
