"""A local Spark session with what semistream needs, for demos, benchmarks and tests."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semistream.errors import local_path
from semistream.spark.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_CHECKPOINTS = "spark__sql__streaming__checkpointFileManagerClass"


def local_session(
    name: str, master: str = "local[2]", *, log: str | os.PathLike[str] | None = None, **conf: str
) -> SparkSession:
    """Start (or get) a local session. Settings are given with ``__`` for dots: ``spark__ui__enabled="true"``.

    What Spark prints, from its start to its end, goes to the file ``log``; without one, to standard error.
    """
    ensure_java()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers must find the same packages
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    from pyspark.sql import SparkSession

    settings: dict[str, Any] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        **{key.replace("__", "."): value for key, value in conf.items()},
    }
    builder = SparkSession.builder.appName(name).master(master).config(map=settings)
    with nullcontext() if log is None else _prints_to(local_path("log", log)):
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    if _CHECKPOINTS not in conf:
        _write_checkpoints_quickly(session)
    return session


@contextmanager
def _prints_to(path: Path) -> Iterator[None]:
    """What is started meanwhile writes its errors to a file, for as long as it lives; so does its part in Python."""
    sys.stderr.flush()
    kept = os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(file, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(file)
    from pyspark.logger import PySparkLogger

    # These show the stack of whatever a batch raises, and what of it is SQL once more.
    for logger in (logging.getLogger("py4j"), *map(PySparkLogger.getLogger, _LOGGERS)):
        logger.handlers[:] = [logging.FileHandler(path, delay=True)]
        logger.propagate = False


def _write_checkpoints_quickly(session: SparkSession) -> None:
    """Write checkpoints by plain files and renames; see docs/decisions/0006-local-checkpoints.md."""
    jvm = session.sparkContext._jvm  # noqa: SLF001 - no other way to ask which classes there are
    assert jvm is not None
    for package in ("streaming.checkpointing", "streaming"):  # newer versions of Spark, and older ones
        name = f"org.apache.spark.sql.execution.{package}.FileSystemBasedCheckpointFileManager"
        if jvm.org.apache.spark.util.Utils.classIsLoadable(name):
            session.conf.set(_CHECKPOINTS.replace("__", "."), name)
            return
