"""Several enrichments in one query, alike or the same one twice: no task waits for a place that it has itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from semistream import MasterStore
from semistream.spark import enrich
from semistream.spark.spec import Transport
from tests.spark.streams import SMALL, build, column, fails, frame, gather, keys, master_table, stream
from tests.tables import assert_same_rows, model_join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 40_000  # more than the buffers between the workers hold
STORE_ROWS = 2_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> MasterStore:
    """Two versions, whose prices differ by a half."""
    made = build(tmp_path_factory.mktemp("alike") / "s", master_table(STORE_ROWS))
    return made.upsert(master_table(STORE_ROWS, 0.5))


def left() -> pa.Table:
    return keys(*(number % STORE_ROWS for number in range(ROWS)))


def prices(df: DataFrame, store: MasterStore, versions: list[int], **options: Any) -> DataFrame:
    """One enrichment after the other, each with a column of its own."""
    given: dict[str, Any] = {"on": "id", "columns": ["price"], "memory": SMALL, "algorithm": "sweep", **options}
    for number, version in enumerate(versions):
        df = enrich(df, store, master_version=version, **given).withColumnRenamed("price", f"price{number}")
    return df


@pytest.mark.parametrize("tasks", [None, 1])
@pytest.mark.parametrize("transport", ["rows", "keys"])
def test_several_in_a_row(spark: SparkSession, store: MasterStore, transport: Transport, tasks: int | None) -> None:
    df = prices(frame(spark, left(), 4), store, [1, 2, 1], transport=transport, tasks_per_host=tasks)
    found = df.selectExpr("count(*) n", "sum(price1 - price0) a", "sum(price0 - price2) b").collect()[0]
    assert (found.n, found.a, found.b) == (ROWS, ROWS / 2, 0)


def test_places_for_different_numbers_of_tasks(spark: SparkSession, store: MasterStore) -> None:
    df = prices(frame(spark, left(), 4), store, [1], transport="rows", tasks_per_host=1)
    df = enrich(df, store, on="id", columns=["name"], memory=SMALL, transport="rows", tasks_per_host=2)
    df = prices(df.withColumnRenamed("price0", "first"), store, [2], transport="rows", tasks_per_host=1)
    assert df.selectExpr("count(*)", "sum(price0 - first)").collect()[0][:] == (ROWS, ROWS / 2)


class TestTheSameTwice:
    @pytest.mark.parametrize("tasks", [None, 1])
    def test_union(self, spark: SparkSession, store: MasterStore, tasks: int | None) -> None:
        df = prices(frame(spark, left(), 2), store, [2], transport="rows", tasks_per_host=tasks)
        assert df.union(df).selectExpr("count(*)", "sum(price0 - id)").collect()[0][:] == (2 * ROWS, ROWS)

    @pytest.mark.parametrize("hint", ["merge", "shuffle_hash", "broadcast"])
    def test_join(self, spark: SparkSession, store: MasterStore, hint: str) -> None:
        df = prices(frame(spark, left(), 2), store, [2], transport="rows", tasks_per_host=1)
        twice = df.join(df.withColumnRenamed("price0", "again").hint(hint), ["id", "n"])
        assert twice.selectExpr("count(*)", "sum(again - price0)").collect()[0][:] == (ROWS, 0)

    def test_both_sides_in_one_task(self, spark: SparkSession, store: MasterStore) -> None:
        """Partitioned alike before: Spark joins without a shuffle, and one task runs both sides at once."""
        by_id = frame(spark, left()).repartition(2, "n")
        df = prices(by_id, store, [2], transport="keys", tasks_per_host=1)
        twice = df.join(df.withColumnRenamed("price0", "again").hint("shuffle_hash"), ["id", "n"])
        assert twice.selectExpr("count(*)", "sum(again - price0)").collect()[0][:] == (ROWS, 0)


@pytest.mark.parametrize("transport", ["rows", "keys"])
def test_limit_and_take_give_their_places_back(spark: SparkSession, store: MasterStore, transport: Transport) -> None:
    df = prices(frame(spark, left(), 4), store, [1, 2], transport=transport, tasks_per_host=1)
    assert len(df.take(3)) == 3
    assert df.limit(7).count() == 7
    assert df.count() == ROWS


def test_a_task_that_fails_gives_its_place_back(spark: SparkSession, store: MasterStore) -> None:
    df = frame(spark, left(), 4)
    with fails("UnmatchedRowError"):
        missing = frame(spark, keys(*range(STORE_ROWS + 5)), 4)
        enrich(missing, store, on="id", on_miss="fail", memory=SMALL, tasks_per_host=1).toArrow()
    assert prices(df, store, [1], tasks_per_host=1).where("price0 = id").count() == ROWS


def test_a_cached_frame(spark: SparkSession, store: MasterStore) -> None:
    df = prices(frame(spark, left(), 4), store, [1, 2], transport="rows", tasks_per_host=1).persist()
    try:
        for _ in range(2):
            assert df.where("price1 - price0 = 0.5").count() == ROWS
    finally:
        df.unpersist()


def test_without_adaptive_plans(spark: SparkSession, store: MasterStore) -> None:
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        df = prices(frame(spark, left(), 3), store, [2, 1], transport="rows")
        assert df.join(df, ["id", "n"]).count() == ROWS
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")


def test_a_master_that_changes_in_the_middle_of_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    """Tasks begin before and after a new version is published; the batch reads one of them."""
    path = tmp_path / "s"
    build(path, master_table(STORE_ROWS))
    df = stream(spark, tmp_path / "in", [left()] * 2).repartition(6)

    def slowly(batches: Any) -> Any:
        """Publishes a new version when the first partition is done."""
        yield from batches
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and context.partitionId() == 0:
            MasterStore.open(path).upsert(master_table(STORE_ROWS, 0.5))

    result = enrich(df, path, on="id", memory=SMALL, algorithm="sweep", transport="rows")
    found = gather(result.mapInArrow(slowly, result.schema), tmp_path / "checkpoint")
    assert_same_rows(found[0], model_join(left(), master_table(STORE_ROWS), "id"))
    assert set(column(found[1].slice(0, 100), "price", "n")) <= {number + 0.5 for number in range(STORE_ROWS)}
    assert_same_rows(found[1], model_join(left(), master_table(STORE_ROWS, 0.5), "id"))
