"""A local Spark session with what semistream needs, for demos, benchmarks and tests."""

from __future__ import annotations

import os
import sys
import warnings
from typing import TYPE_CHECKING

from semistream.spark.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    return session
