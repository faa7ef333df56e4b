"""Counters at the driver: each batch once, whatever was retried, also when nothing comes out."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from semistream import MasterStore
from semistream.lookup.spec import How
from semistream.spark import Metrics, enrich
from semistream.spark.spec import Transport
from tests.spark.streams import SMALL, add_file, build, frame, gather, keys, stream, to_memory, wait_until
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAMES = {
    "rows_in", "hits", "misses", "matched", "unmatched", "shed", "pages_read", "bytes_read", "cached_rows",
    "cached_bytes", "peak_bytes", "master_version",
}  # fmt: skip
TRANSPORTS = pytest.mark.parametrize("transport", ["rows", "keys"])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> MasterStore:
    return build(tmp_path_factory.mktemp("store") / "s")


@pytest.fixture
def metrics(spark: SparkSession, tmp_path: Path) -> Iterator[Metrics]:
    handle = Metrics(spark, run_log=tmp_path / "run.jsonl")
    yield handle
    handle.close()
    assert handle.problem is None


@TRANSPORTS
def test_every_batch_of_a_stream(
    spark: SparkSession,
    store: MasterStore,
    metrics: Metrics,
    tmp_path: Path,
    transport: Transport,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="semistream")
    df = stream(spark, tmp_path / "in", [keys(1, 2, 300, None), keys(*range(50)), keys(1, 1, 1)])
    options: dict[str, Any] = {"transport": transport, "algorithm": "sweep", "memory": SMALL, "metrics": metrics}
    to_memory(enrich(df, store, on="id", **options), f"metrics_{transport}", tmp_path / "checkpoint")
    wait_until(lambda: metrics.batches == 3)
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [line["batch"] for line in lines] == [0, 1, 2]
    assert [(line["rows_in"], line["matched"], line["unmatched"]) for line in lines] == [
        (4, 2, 2),
        (50, 50, 0),
        (3, 3, 0),
    ]
    for line in lines:
        assert set(line) >= NAMES | {"time", "query", "batch", "seconds", "hit_ratio"}
        assert line["rows_in"] == line["matched"] + line["unmatched"] + line["shed"]
        assert line["master_version"] == 1
        assert 0 < line["peak_bytes"] <= SMALL
        assert 0 < line["cached_bytes"] <= SMALL
        assert line["seconds"] > 0
    assert lines[0]["pages_read"] > 0
    assert lines[2]["hits"] == 3
    assert (metrics.last.rows_in, metrics.last.hits, metrics.last.misses) == (3, 3, 0)
    assert (metrics.total.rows_in, metrics.total.matched, metrics.total.unmatched) == (57, 55, 2)
    metrics.total.check()
    said = [record.getMessage() for record in caplog.records if record.name == "semistream"]
    assert len(said) == 3
    assert said[0].startswith("batch 0: 4 rows, ")
    assert "2 matched, 2 unmatched, hit ratio 0.000, " in said[0]
    assert said[0].endswith("master version 1")


@TRANSPORTS
def test_nothing_comes_out(
    spark: SparkSession, store: MasterStore, metrics: Metrics, tmp_path: Path, transport: Transport
) -> None:
    df = stream(spark, tmp_path / "in", [keys(300, 301), keys(None, 302)])
    result = enrich(df, store, on="id", how="inner", transport=transport, metrics=metrics)
    assert to_memory(result, f"nothing_{transport}", tmp_path / "checkpoint").num_rows == 0
    wait_until(lambda: metrics.batches == 2)
    assert (metrics.total.rows_in, metrics.total.matched, metrics.total.unmatched) == (4, 0, 4)


@TRANSPORTS
@pytest.mark.parametrize("how", ["left", "semi", "anti"])
def test_batch_dataframes(
    spark: SparkSession, store: MasterStore, metrics: Metrics, transport: Transport, how: How
) -> None:
    df = frame(spark, keys(1, 2, 300, None, 5), 2)
    result = enrich(df, store, on="id", how=how, transport=transport, metrics=metrics)
    rows = result.toArrow().num_rows
    assert rows == {"left": 5, "semi": 3, "anti": 2}[how]
    total = metrics.collect()
    assert (total.rows_in, total.matched, total.unmatched, metrics.batches) == (5, 3, 2, 1)
    assert metrics.last == total
    assert metrics.collect() == total


@TRANSPORTS
def test_rows_out(spark: SparkSession, tmp_path: Path, metrics: Metrics, transport: Transport) -> None:
    """What the join gave out: the same whichever way the rows went."""
    store = build(tmp_path / "s", pa.table({"id": [1, 1, 2], "price": [1.0, 2.0, 3.0]}))
    enrich(frame(spark, keys(1, 2, 300)), store, on="id", transport=transport, metrics=metrics).toArrow()
    assert metrics.collect().rows_out == 4


def test_collect_before_the_action_does_not_hang(spark: SparkSession, store: MasterStore, metrics: Metrics) -> None:
    import threading

    enrich(frame(spark, keys(1)), store, on="id", metrics=metrics)
    asking = threading.Thread(target=metrics.collect, daemon=True)
    asking.start()
    asking.join(PATIENCE)
    assert not asking.is_alive(), "collect() waits for ever for a DataFrame that nobody ran"


@TRANSPORTS
def test_an_empty_dataframe(spark: SparkSession, store: MasterStore, metrics: Metrics, transport: Transport) -> None:
    df = frame(spark, keys(1)).where("id > 5")
    assert enrich(df, store, on="id", transport=transport, metrics=metrics).toArrow().num_rows == 0
    assert metrics.collect().rows_in == 0


@TRANSPORTS
def test_a_retried_task_counts_once(
    spark: SparkSession, store: MasterStore, metrics: Metrics, tmp_path: Path, transport: Transport
) -> None:
    mark = str(tmp_path / "failed")

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        yield from batches
        if not os.path.exists(mark):
            open(mark, "w").close()
            raise OSError("the first attempt fails at its end")

    df = stream(spark, tmp_path / "in", [keys(*range(20), 300)])
    options: dict[str, Any] = {"transport": transport, "algorithm": "sweep", "memory": SMALL, "metrics": metrics}
    result = enrich(df, store, on="id", **options)
    broken = result.mapInArrow(fail_once, result.schema)
    assert to_memory(broken, f"retried_{transport}", tmp_path / "checkpoint").num_rows == 21
    assert Path(mark).exists()
    wait_until(lambda: metrics.batches == 1)
    assert (metrics.total.rows_in, metrics.total.matched, metrics.total.unmatched) == (21, 20, 1)


@TRANSPORTS
def test_with_foreach_batch_as_the_sink(
    spark: SparkSession, store: MasterStore, metrics: Metrics, tmp_path: Path, transport: Transport
) -> None:
    """The way to Delta: enrich the stream, write each batch by foreachBatch."""
    df = stream(spark, tmp_path / "in", [keys(1, 2, 300), keys(4)])
    gather(enrich(df, store, on="id", transport=transport, metrics=metrics), tmp_path / "checkpoint")
    wait_until(lambda: metrics.batches == 2)
    assert (metrics.total.rows_in, metrics.total.matched) == (4, 3)


@TRANSPORTS
def test_inside_foreach_batch(
    spark: SparkSession, store: MasterStore, metrics: Metrics, tmp_path: Path, transport: Transport
) -> None:
    df = stream(spark, tmp_path / "in", [keys(1, 2, 300), keys(4)])

    def write(batch: DataFrame, number: int) -> None:
        enrich(batch, store, on="id", transport=transport, metrics=metrics).toArrow()
        metrics.collect()

    df.writeStream.foreachBatch(write).trigger(availableNow=True).start().awaitTermination()
    assert (metrics.batches, metrics.total.rows_in, metrics.total.matched) == (2, 4, 3)
    assert metrics.last.rows_in == 1


def test_a_master_that_is_held_whole_is_read_once(
    spark: SparkSession, store: MasterStore, metrics: Metrics, tmp_path: Path
) -> None:
    """``auto`` holds a small master whole, and says that it reads nothing after loading: between batches too."""
    df = stream(spark, tmp_path / "in", [keys(1, 2), keys(3)])
    result = enrich(df, store, on="id", metrics=metrics, transport="rows")
    gather(result, tmp_path / "checkpoint")
    add_file(tmp_path / "in", keys(4))
    gather(result, tmp_path / "checkpoint")
    wait_until(lambda: metrics.batches == 3)
    lines = (tmp_path / "run.jsonl").read_text().splitlines()
    # Two workers may each load it once.
    assert sum(json.loads(line)["pages_read"] > 0 for line in lines) <= 2 < len(lines)
