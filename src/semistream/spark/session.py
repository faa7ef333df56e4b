"""A local Spark session with what semistream needs, for demos, benchmarks and tests."""

from __future__ import annotations

import os
import sys
import warnings
from typing import TYPE_CHECKING

from semistream.spark.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHECKPOINTS = "spark__sql__streaming__checkpointFileManagerClass"


def local_session(name: str, master: str = "local[2]", **conf: str) -> SparkSession:
    """Start (or get) a quiet local session. Settings are given with ``__`` for dots: ``spark__ui__enabled="true"``."""
    ensure_java()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers must find the same packages
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        **{key.replace("__", "."): value for key, value in conf.items()},
    }
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    if _CHECKPOINTS not in conf:
        _write_checkpoints_quickly(session)
    return session


def _write_checkpoints_quickly(session: SparkSession) -> None:
    """Write checkpoints by plain files and renames; see docs/decisions/0006-local-checkpoints.md."""
    jvm = session.sparkContext._jvm  # noqa: SLF001 - no other way to ask which classes there are
    assert jvm is not None
    for package in ("streaming.checkpointing", "streaming"):  # newer versions of Spark, and older ones
        name = f"org.apache.spark.sql.execution.{package}.FileSystemBasedCheckpointFileManager"
        if jvm.org.apache.spark.util.Utils.classIsLoadable(name):
            session.conf.set(_CHECKPOINTS.replace("__", "."), name)
            return
