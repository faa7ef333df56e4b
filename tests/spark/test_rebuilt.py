"""A store that is removed and built again at its path is another store: nothing may answer from the old one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from semistream import MasterStore
from semistream.spark import enrich
from semistream.spark.spec import Transport
from tests.spark.streams import SMALL, add_file, build, column, fails, frame, gather, keys, master_table, stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EACH = pytest.mark.parametrize(
    "algorithm, transport",
    [("sweep", "rows"), ("sweep", "keys"), ("whole", "rows"), ("whole", "keys"), ("inl", "rows")],
)


def rebuilt(path: Path, mark: float = 0.5) -> MasterStore:
    """The same keys and number of versions, other prices."""
    shutil.rmtree(path)
    return build(path, master_table(mark=mark))


@EACH
def test_a_batch_job_after_the_other(spark: SparkSession, tmp_path: Path, algorithm: str, transport: Transport) -> None:
    options: dict[str, Any] = {"on": "id", "algorithm": algorithm, "transport": transport, "memory": SMALL}
    df = frame(spark, keys(1, 50, 300), 2)
    for mark in (0.0, 0.5):
        store = build(tmp_path / "s") if mark == 0 else rebuilt(tmp_path / "s")
        for _ in range(2):  # the second time from what is cached
            assert column(enrich(df, store, **options).toArrow(), "price") == [1 + mark, 50 + mark, None]


def test_a_stream_goes_on_with_the_new_one(spark: SparkSession, tmp_path: Path) -> None:
    store = build(tmp_path / "s")
    store.upsert(master_table(3, 0.25))  # so that the new one has a lower number than the one that is cached
    result = enrich(stream(spark, tmp_path / "in", [keys(1, 50)]), store, on="id", algorithm="sweep", memory=SMALL)
    assert column(gather(result, tmp_path / "checkpoint")[0], "price") == [1.25, 50.0]
    rebuilt(tmp_path / "s")
    for _ in range(2):
        add_file(tmp_path / "in", keys(1, 50))
    found = gather(result, tmp_path / "checkpoint")
    assert {number: column(table, "price") for number, table in found.items()} == {1: [1.5, 50.5], 2: [1.5, 50.5]}


@pytest.mark.parametrize("refresh", ["never", "every_batch"])
def test_what_was_planned_with_the_old_one(spark: SparkSession, tmp_path: Path, refresh: str) -> None:
    """The rows that were asked for are nowhere any more: neither the new rows nor the old ones are right."""
    store = build(tmp_path / "s")
    batch = enrich(frame(spark, keys(1)), store, on="id")
    asked: dict[str, Any] = {"refresh": refresh} if refresh == "never" else {"master_version": 1}
    streamed = enrich(stream(spark, tmp_path / "in", [keys(1)]), store, on="id", **asked)
    rebuilt(tmp_path / "s")
    refused = r"OtherVersionError: version 1 of .*/s was expected .* removed and built again"
    with fails(refused):
        batch.toArrow()
    with fails(refused):
        gather(streamed, tmp_path / "checkpoint")
