"""Workers and drivers that are killed, and pages that are damaged: the same rows or an error, never other rows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from semistream import MasterStore
from semistream.spark import Metrics, enrich
from semistream.spark.operator import Operator
from semistream.spark.prepare import FrameFacts, prepare
from semistream.spark.spec import EnrichSpec, Transport
from semistream_lab.memory import python_workers
from tests.spark.streams import (
    SMALL,
    add_file,
    build,
    column,
    fails,
    keys,
    master_table,
    run,
    stream,
    to_memory,
    wait_until,
)
from tests.tables import assert_same_rows, model_join
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[2]


def workers_with_a_cache(operator: Operator) -> list[int]:
    """Python workers inside a task of this enrichment: they map its cache and hold a place. Those that wait for another
    task keep the cache only; Spark would give one of them, killed too, to the next attempt.
    """
    cache = f"{operator.application}/{operator.identity}-cache".encode()
    found = []
    for pid in python_workers(os.getpid()):
        try:
            held = [os.path.basename(os.readlink(link)) for link in Path(f"/proc/{pid}/fd").iterdir()]
            if cache in Path(f"/proc/{pid}/maps").read_bytes() and any(name.startswith("place") for name in held):
                found.append(pid)
        except OSError:
            continue
    return found


@pytest.fixture
def small_arrow_batches(spark: SparkSession) -> Iterator[None]:
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = str(spark.conf.get(name))
    spark.conf.set(name, "100")
    yield
    spark.conf.set(name, before)


@pytest.mark.usefixtures("small_arrow_batches")
@pytest.mark.parametrize("transport", [pytest.param("rows", marks=pytest.mark.long), "keys"])
def test_a_worker_is_killed_in_the_middle(spark: SparkSession, tmp_path: Path, transport: Transport) -> None:
    started, gone = str(tmp_path / "started"), str(tmp_path / "gone")

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import time

        for number, batch in enumerate(batches):
            # Late enough: what comes before must have left the buffers on the way to the worker that is killed.
            if number == 200:
                open(started, "w").close()
                while not os.path.exists(gone):
                    time.sleep(0.02)
            yield batch

    store = build(tmp_path / "s", master_table(2_000))
    left = keys(*(number % 2_100 for number in range(25_000)))
    df = stream(spark, tmp_path / "in", [left.slice(0, 50)])
    slow = df.mapInArrow(slowly, df.schema)
    metrics = Metrics(spark)
    options: dict[str, Any] = {"on": "id", "memory": "2MB", "algorithm": "sweep", "transport": transport}
    result = enrich(slow, store, metrics=metrics, **options)
    operator = prepare(FrameFacts.of(slow), store, EnrichSpec(**options)).operator
    first = to_memory(result, f"killed_first_{transport}", tmp_path / "checkpoint")
    assert_same_rows(first, model_join(left.slice(0, 50), master_table(2_000), "id"))
    add_file(tmp_path / "in", left)
    victims: list[int] = []

    def kill() -> None:
        try:
            wait_until(lambda: Path(started).exists())
            victims.extend(wait_until(lambda: workers_with_a_cache(operator)))
            for pid in victims:
                os.kill(pid, signal.SIGKILL)
        finally:
            Path(gone).touch()

    killer = threading.Thread(target=kill)
    killer.start()
    found: list[pa.Table] = []
    run(result, tmp_path / "checkpoint", lambda batch, _: found.append(batch.toArrow()))
    killer.join()
    assert victims
    assert_same_rows(found[-1], model_join(left, master_table(2_000), "id"))
    wait_until(lambda: metrics.batches == 2)
    metrics.close()
    assert metrics.last.rows_in == left.num_rows
    assert metrics.last.hits >= 50  # what the first batch cached outlived the worker


@pytest.mark.parametrize("transport", ["rows", "keys"])
def test_a_damaged_page_stops_the_batch(spark: SparkSession, tmp_path: Path, transport: Transport) -> None:
    store = build(tmp_path / "s", master_table(3_000))
    [segment] = tmp_path.glob("s/segment-*")
    df = stream(spark, tmp_path / "in", [keys(*range(10)), keys(*range(2_000, 2_100))])
    options: dict[str, Any] = {"memory": SMALL, "algorithm": "sweep", "transport": transport}
    written: list[int] = []

    def each(batch: DataFrame, number: int) -> None:
        written.extend(column(batch.toArrow(), "id"))
        content = bytearray(segment.read_bytes())
        for page in range(1, store.pages):
            content[page * store.page_bytes + 100] ^= 1
        segment.write_bytes(content)

    with fails(rf"CorruptStoreError: .*{segment.name}"):
        run(enrich(df, store, on="id", **options), tmp_path / "checkpoint", each)
    assert written == list(range(10))


def test_a_store_that_is_gone(spark: SparkSession, tmp_path: Path) -> None:
    store = build(tmp_path / "s")
    df = stream(spark, tmp_path / "in", [keys(1)] * 2)

    def each(batch: DataFrame, number: int) -> None:
        batch.toArrow()
        (tmp_path / "s").rename(tmp_path / "elsewhere")

    with fails(rf"Store(NotFound)?Error: .*{tmp_path / 's'}"):
        run(enrich(df, store, on="id"), tmp_path / "checkpoint", each)
    assert not (tmp_path / "s" / "version-000001.json").exists()


# A stream into a Delta table; the driver dies by SIGKILL at the failpoint that FAILPOINT names, in batch 1.
KILLED = """
import os, signal, sys
from pathlib import Path
from semistream.warehouse import DeltaSink
from semistream.spark.session import local_session
from tests.spark.test_faults import enriched

class Failing(DeltaSink):
    def __call__(self, batch, batch_id):
        batch = batch.persist()
        batch.count()
        self.die_at("enriched", batch_id)
        super().__call__(batch, batch_id)
        self.die_at("committed", batch_id)

    def die_at(self, name, batch_id):
        if batch_id == 1 and os.environ["FAILPOINT"] == name:
            os.kill(os.getpid(), signal.SIGKILL)

place = Path(sys.argv[1])
writer = enriched(local_session("killed", "local[2,2]"), place).writeStream
writer = writer.foreachBatch(Failing(place / "table", "sales")).option("checkpointLocation", str(place / "checkpoint"))
writer.trigger(availableNow=True).start().awaitTermination()
"""


def enriched(spark: SparkSession, place: Path) -> DataFrame:
    options: dict[str, Any] = {"memory": SMALL, "algorithm": "sweep"}
    return enrich(stream(spark, place / "in"), MasterStore.open(place / "s"), on="id", **options)


def python(script: str, *arguments: str, said: Path, **environment: str) -> int:
    """Run a script in a process of its own; returns its exit code."""
    with said.open("wb") as out:  # a pipe would stay open for as long as the orphaned Java takes to leave
        return subprocess.run(
            [sys.executable, "-c", script, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdout=out,
            stderr=out,
            check=False,
            timeout=PATIENCE,
        ).returncode


@pytest.mark.long
@pytest.mark.parametrize("failpoint", ["enriched", "committed"])
def test_the_driver_is_killed(spark: SparkSession, tmp_path: Path, failpoint: str) -> None:
    from deltalake import DeltaTable

    from semistream.warehouse import DeltaSink

    store = build(tmp_path / "s")
    files = [keys(*range(start, start + 30)) for start in (0, 40, 80)]
    for table in files:
        add_file(tmp_path / "in", table)
    code = python(KILLED, str(tmp_path), said=tmp_path / "said", FAILPOINT=failpoint)
    assert code == -signal.SIGKILL, (tmp_path / "said").read_text()[-3000:]
    changed = master_table(100, 0.5)
    store.upsert(changed)
    sink = DeltaSink(tmp_path / "table", "sales")
    run(enriched(spark, tmp_path), tmp_path / "checkpoint", sink)
    assert (sink.written, sink.skipped) == ((2, 0) if failpoint == "enriched" else (1, 1))
    # Batch 1 was begun with version 1 and stays with it; batch 2 reads the new one.
    expected = [model_join(files[0], master_table(), "id"), model_join(files[1], master_table(), "id")]
    expected.append(model_join(files[2], changed, "id"))
    assert_same_rows(DeltaTable(tmp_path / "table").to_pyarrow_table(), pa.concat_tables(expected))
