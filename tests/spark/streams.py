"""What the Spark tests share: streams from a few files, run to their end, and stores to join them with."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semistream import MasterStore
from semistream.lookup.spec import How
from tests.waiting import PATIENCE
from tests.waiting import wait_until as wait_until  # noqa: PLC0414 - the Spark tests have it from here

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SMALL = 300_000  # bytes: more than the least that two tasks need, less than most masters here


def master_table(rows: int = 100, mark: float = 0.0) -> pa.Table:
    """Keys 0 to rows - 1, with a price and a name; ``mark`` is added to the price and tells versions apart."""
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "price": pa.array([number + mark for number in range(rows)], pa.float64()),
            "name": pa.array([None if number % 7 == 3 else f"n{number}" for number in range(rows)], pa.string()),
        }
    )


def build(path: Path, table: pa.Table | None = None, key: str | Sequence[str] = "id") -> MasterStore:
    """A store of a table, by default of `master_table`."""
    return MasterStore.build(master_table() if table is None else table, path, key=key)


def frame(spark: SparkSession, table: pa.Table, partitions: int = 1) -> DataFrame:
    """A batch DataFrame with the rows of a table."""
    df = spark.createDataFrame(table)
    for field in table.schema:
        if pa.types.is_timestamp(field.type) and field.type.tz is None:  # Spark takes them for local times
            df = df.withColumn(field.name, df[field.name].cast("timestamp_ntz"))
    return df.repartition(partitions)


def keys(*values: int | None) -> pa.Table:
    """A stream of keys with a sequence number beside them."""
    return pa.table({"id": pa.array(values, pa.int64()), "n": pa.array(range(len(values)), pa.int64())})


def add_file(directory: Path, table: pa.Table) -> None:
    """One more file for a stream; files are read in the order in which they were added."""
    directory.mkdir(parents=True, exist_ok=True)
    number = len(list(directory.glob("*.parquet")))
    draft = directory / f".{number:04d}"
    pq.write_table(table, draft)
    past = time.time() - 10_000 + number
    os.utime(draft, (past, past))
    draft.rename(directory / f"{number:04d}.parquet")


def stream(spark: SparkSession, directory: Path, tables: Iterable[pa.Table] = ()) -> DataFrame:
    """A streaming DataFrame over the files of a directory, one file a batch."""
    for table in tables:
        add_file(directory, table)
    schema = spark.read.parquet(str(directory)).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(directory))


def run(df: DataFrame, checkpoint: Path, each: Callable[[DataFrame, int], None]) -> None:
    """Run a stream over all that is there, batch by batch."""
    finish(df.writeStream.foreachBatch(each), lambda _: checkpoint)


def finish(writer: DataStreamWriter, checkpoint: Callable[[int], Path]) -> None:
    """Run a stream over all that is there; ``checkpoint`` is asked for the place of each attempt's.

    Spark gives the process that plans a Python source ten seconds to start, and no setting changes that: on a machine
    that is too busy the query is started again, until the test's own limit.
    """
    from pyspark.errors import StreamingQueryException

    end = time.monotonic() + PATIENCE
    for attempt in itertools.count():
        writer = writer.option("checkpointLocation", str(checkpoint(attempt)))
        try:
            writer.trigger(availableNow=True).start().awaitTermination()
        except StreamingQueryException as error:
            if "Python worker failed to connect back" not in str(error) or time.monotonic() > end:
                raise
        else:
            return


def gather(df: DataFrame, checkpoint: Path) -> dict[int, pa.Table]:
    """The rows of every batch."""
    found: dict[int, pa.Table] = {}

    def keep(batch: DataFrame, number: int) -> None:
        found[number] = batch.toArrow()

    run(df, checkpoint, keep)
    return found


def to_memory(df: DataFrame, name: str, checkpoint: Path) -> pa.Table:
    """Run a stream into Spark's memory sink, which begins afresh each time, and read it."""
    writer = df.writeStream.format("memory").queryName(name)
    finish(writer, lambda attempt: checkpoint.with_name(f"{checkpoint.name}{attempt or ''}"))
    return df.sparkSession.table(name).toArrow()


def fails(pattern: str) -> Any:
    """The block must fail within Spark, with a message like this."""
    return pytest.raises(Exception, match=re.compile(pattern, re.DOTALL))


def every_how(joined: Mapping[How, DataFrame], columns: list[str]) -> pa.Table:
    """The results of all joins in one table (and one job), each row with the name of its join."""
    from pyspark.sql.functions import col, lit

    parts = []
    for how, df in joined.items():
        kinds = dict(joined["left"].dtypes)
        filled = [col(c) if c in df.columns else lit(None).cast(kinds[c]).alias(c) for c in columns]
        parts.append(df.select(lit(how).alias("how"), *filled))
    return reduce(lambda a, b: a.unionByName(b), parts).toArrow()


def column(table: pa.Table, name: str, by: str = "n") -> list[Any]:
    """One column in the order of another."""
    return list(table.sort_by(by).column(name).to_pylist())
