"""``enrich`` inside foreachBatch: the batch is pinned by its query and number, as in the stream itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from semistream.spark import Metrics, enrich
from semistream.spark.area import directories
from semistream.spark.prepare import FrameFacts
from semistream.spark.spec import Transport
from tests.spark.streams import SMALL, build, column, fails, keys, master_table, run, stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.mark.parametrize("transport", ["rows", "keys"])
def test_pinned_by_query_and_batch(spark: SparkSession, tmp_path: Path, transport: Transport) -> None:
    store = build(tmp_path / "s")
    df = stream(spark, tmp_path / "in", [keys(1, 50)] * 2)
    found: list[tuple[int, list[Any]]] = []
    options: dict[str, Any] = {"transport": transport, "algorithm": "sweep", "memory": SMALL}

    def write(batch: DataFrame, number: int) -> None:
        found.append((number, column(enrich(batch, store, on="id", **options).toArrow(), "price")))
        if len(found) == 1:
            store.upsert(master_table(3, 0.5))
            # Twice in the same batch: still the version that the batch began with.
            found.append((number, column(enrich(batch, store, on="id", **options).toArrow(), "price")))
            raise OSError("the warehouse is down")

    with fails("the warehouse is down"):
        run(df, tmp_path / "checkpoint", write)
    run(df, tmp_path / "checkpoint", write)
    assert found == [(0, [1.0, 50.0]), (0, [1.0, 50.0]), (0, [1.0, 50.0]), (1, [1.5, 50.0])]
    query = json.loads((tmp_path / "checkpoint" / "metadata").read_text())["id"]
    pins = sorted((store.path / "pins" / query).glob("*.json"))
    assert [json.loads(pin.read_text())["version"] for pin in pins] == [1, 2]


def caches(df: DataFrame) -> list[Path]:
    return [path for one in directories(FrameFacts.of(df).application) for path in one.glob("*-cache")]


def test_one_cache_whatever_the_version(spark: SparkSession, tmp_path: Path) -> None:
    """Each batch is planned anew, some with a new version: they share one cache, not one each."""
    store = build(tmp_path / "s")
    df = stream(spark, tmp_path / "in", [keys(1, 50)] * 3)
    before = set(caches(df))
    metrics = Metrics(spark)

    def write(batch: DataFrame, number: int) -> None:
        options: dict[str, Any] = {"algorithm": "sweep", "memory": SMALL + 7, "metrics": metrics}
        enrich(batch, store, on="id", **options).toArrow()
        metrics.collect()
        store.latest().upsert(master_table(3, number / 2))

    run(df, tmp_path / "checkpoint", write)
    metrics.close()
    assert len(set(caches(df)) - before) == 1
    assert metrics.last.hits == 1  # key 50 did not change
