"""The Delta sink under a real Spark query: killed, replayed, and with its checkpoint gone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from semistream.warehouse import DeltaSink, query_of
from semistream_lab.workloads.retail import RetailWorkload, write_files
from tests.tables import assert_same_rows
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOP = RetailWorkload(products=500)
FILES, ROWS = 6, 200

# Runs the stream and dies by SIGKILL inside foreachBatch, right after the table has batch 1 and before Spark knows it.
KILLED = """
import os, signal, sys
from pathlib import Path
from tests.warehouse.test_delta_spark import make_session, start
from semistream.warehouse import DeltaSink

class Killed(DeltaSink):
    def __call__(self, batch, batch_id):
        super().__call__(batch, batch_id)
        if batch_id == 1:
            os.kill(os.getpid(), signal.SIGKILL)

place = Path(sys.argv[1])
start(make_session(), place, Killed(place / "table", "sales")).awaitTermination()
"""


def make_session() -> SparkSession:
    from semistream.spark.session import local_session

    # Not UTC: the instants of the stream must arrive unchanged all the same.
    return local_session("sinks", "local[2,4]", spark__sql__session__timeZone="America/Sao_Paulo")


def start(spark: SparkSession, place: Path, sink: Any) -> Any:
    """The stream of this file: two files a batch, all that is there."""
    schema = spark.read.parquet(str(place / "in")).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 2).parquet(str(place / "in"))
    writer = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(place / "checkpoint"))
    return writer.trigger(availableNow=True).start()


@pytest.fixture(
    scope="session"
)  # a process has one session: it may be that of other tests, and must not be stopped early
def spark() -> Iterator[SparkSession]:
    session = make_session()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    list(write_files((SHOP.sales(number * ROWS, ROWS) for number in range(FILES)), tmp_path / "in"))
    return tmp_path


def table_at(place: Path) -> pa.Table:
    return DeltaTable(place / "table").to_pyarrow_table()


def model() -> pa.Table:
    return pa.Table.from_batches([SHOP.sales(0, FILES * ROWS)])


def test_every_sale_arrives_once_with_its_type(spark: SparkSession, place: Path) -> None:
    sink = DeltaSink(place / "table", "sales")
    start(spark, place, sink).awaitTermination()
    assert (sink.written, sink.skipped) == (3, 0)
    assert_same_rows(table_at(place), model())


def test_the_same_batch_three_times(spark: SparkSession, place: Path) -> None:
    def thrice(batch: Any, batch_id: int) -> None:
        for _ in range(3):
            sink(batch, batch_id)

    sink = DeltaSink(place / "table", "sales")
    start(spark, place, thrice).awaitTermination()
    assert (sink.written, sink.skipped) == (3, 6)
    assert_same_rows(table_at(place), model())


@pytest.mark.long  # tests/spark/test_faults.py and tests/pipeline/test_crashes.py kill drivers every time
def test_killed_between_the_table_and_sparks_commit(spark: SparkSession, place: Path) -> None:
    root = Path(__file__).parents[2]
    said = place / "said"
    with said.open("wb") as out:  # a pipe would stay open for as long as the orphaned Java takes to leave
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, str(place)],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
            stdout=out,
            stderr=out,
            check=False,
            timeout=PATIENCE,
        )
    assert killed.returncode == -signal.SIGKILL, said.read_text()[-2000:]
    assert sorted(file.name for file in (place / "checkpoint" / "commits").glob("[0-9]")) == ["0"]
    assert table_at(place).num_rows == 4 * ROWS  # batch 1 is in the table, and Spark does not know it
    sink = DeltaSink(place / "table", "sales")
    start(spark, place, sink).awaitTermination()
    assert (sink.written, sink.skipped) == (1, 1)
    assert_same_rows(table_at(place), model())


def test_sparks_own_commit_lost(spark: SparkSession, place: Path) -> None:
    start(spark, place, DeltaSink(place / "table", "sales")).awaitTermination()
    before = DeltaTable(place / "table").version()
    for kind in ("commits/2", "commits/.2.crc"):
        (place / "checkpoint" / kind).unlink(missing_ok=True)
    sink = DeltaSink(place / "table", "sales")
    start(spark, place, sink).awaitTermination()
    assert (sink.written, sink.skipped, DeltaTable(place / "table").version()) == (0, 1, before)
    assert_same_rows(table_at(place), model())


def test_a_deleted_checkpoint_stops_the_query(spark: SparkSession, place: Path) -> None:
    from pyspark.errors import StreamingQueryException

    start(spark, place, DeltaSink(place / "table", "sales")).awaitTermination()
    former = query_of(place / "checkpoint")
    shutil.rmtree(place / "checkpoint")
    with pytest.raises(StreamingQueryException, match="ForeignCheckpointError"):
        start(spark, place, DeltaSink(place / "table", "sales")).awaitTermination()
    assert_same_rows(table_at(place), model())
    # Allowed, it does what the error warned of.
    start(spark, place, DeltaSink(place / "table", "sales", replaces=former)).awaitTermination()
    assert table_at(place).num_rows == 2 * FILES * ROWS


def test_the_checkpoint_names_the_query_too(spark: SparkSession, place: Path) -> None:
    start(spark, place, DeltaSink(place / "table", "sales", checkpoint=place / "checkpoint")).awaitTermination()
    query = query_of(place / "checkpoint")
    assert DeltaTable(place / "table").transaction_version(f"sales@{query}") == 2
    assert_same_rows(table_at(place), model())
