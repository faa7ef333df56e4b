"""Rows without a match: nulls, defaults, dropped, or an error that names some of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from semistream import MasterStore
from semistream.lookup.spec import How
from semistream.spark import enrich
from semistream.spark.spec import Transport
from tests.spark.streams import SMALL, build, column, fails, frame, gather, keys, stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRANSPORTS = pytest.mark.parametrize("transport", ["rows", "keys"])
# Of what Spark might leave out, which whole rows never are.
KEYS_FIRST = pytest.mark.parametrize("transport", [pytest.param("rows", marks=pytest.mark.long), "keys"])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> MasterStore:
    return build(tmp_path_factory.mktemp("store") / "s")


@TRANSPORTS
@pytest.mark.parametrize("algorithm", ["sweep", "whole"])
def test_null_drop_and_defaults(spark: SparkSession, store: MasterStore, transport: Transport, algorithm: str) -> None:
    df = frame(spark, keys(3, 4, 300, None))
    options: dict[str, Any] = {"on": "id", "transport": transport, "algorithm": algorithm, "memory": SMALL}
    as_null = enrich(df, store, **options).toArrow()
    assert column(as_null, "price") == [3.0, 4.0, None, None]
    dropped = enrich(df, store, on_miss="drop", **options).toArrow()
    assert column(dropped, "price") == [3.0, 4.0]
    filled = enrich(df, store, defaults={"name": "unknown", "price": -1.0}, **options).toArrow()
    assert column(filled, "price") == [3.0, 4.0, -1.0, -1.0]
    # Key 3 is there, and its name is NULL in the master: that is a value, not a miss.
    assert column(filled, "name") == [None, "n4", "unknown", "unknown"]


@KEYS_FIRST
def test_fail_names_some_keys(spark: SparkSession, store: MasterStore, transport: Transport) -> None:
    options: dict[str, Any] = {"on": "id", "on_miss": "fail", "transport": transport}
    with fails(
        r"UnmatchedRowError: on_miss='fail': 2 of 4 rows have no match in .* \(version 1\), for example 300, None"
    ):
        enrich(frame(spark, keys(3, 4, 300, None)), store, **options).toArrow()
    assert enrich(frame(spark, keys(3, 4)), store, **options).count() == 2


@KEYS_FIRST
def test_fail_also_when_only_stream_columns_are_used(
    spark: SparkSession, store: MasterStore, transport: Transport
) -> None:
    """Spark leaves out what nobody reads; the check must not go with it."""
    df = frame(spark, keys(3, 300))
    with fails("UnmatchedRowError"):
        enrich(df, store, on="id", on_miss="fail", transport=transport).select("n").toArrow()


@KEYS_FIRST
def test_min_match_rate_also_when_only_stream_columns_are_used(
    spark: SparkSession, store: MasterStore, transport: Transport
) -> None:
    df = frame(spark, keys(3, 300))
    with fails("MatchRateError"):
        enrich(df, store, on="id", min_match_rate=0.9, min_match_rows=1, transport=transport).select("n").toArrow()


@KEYS_FIRST
@pytest.mark.parametrize("how", ["inner", "semi"])
def test_fail_where_misses_would_not_show(
    spark: SparkSession, store: MasterStore, transport: Transport, how: How
) -> None:
    with fails("UnmatchedRowError.*for example 300"):
        enrich(frame(spark, keys(3, 300)), store, on="id", how=how, on_miss="fail", transport=transport).toArrow()


@KEYS_FIRST
def test_a_batch_that_fails_is_not_written(
    spark: SparkSession, store: MasterStore, tmp_path: Path, transport: Transport
) -> None:
    df = stream(spark, tmp_path / "in", [keys(1, 2), keys(3, 300)])
    result = enrich(df, store, on="id", on_miss="fail", transport=transport)
    writer = result.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with fails("for example 300; nothing of this batch is written"):
        writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
    written = spark.read.parquet(str(tmp_path / "out")).toArrow()
    assert column(written, "id") == [1, 2]
    # The cause removed, the query goes on with the batch that failed, though it was pinned to the old version.
    assert column(gather(enrich(df, store, on="id", transport=transport), tmp_path / "checkpoint")[1], "id") == [3, 300]


@KEYS_FIRST
def test_min_match_rate(spark: SparkSession, store: MasterStore, transport: Transport) -> None:
    df = frame(spark, keys(*range(90), *range(300, 310)))
    options: dict[str, Any] = {"on": "id", "transport": transport, "memory": SMALL}
    assert enrich(df, store, min_match_rate=0.9, **options).count() == 100
    with fails(r"MatchRateError: only 90 of 100 rows \(90.0%\) matched .*min_match_rate=0.91 asks for more.*300"):
        enrich(df, store, min_match_rate=0.91, **options).collect()


@pytest.mark.parametrize(
    "algorithm", ["sweep", *(pytest.param(name, marks=pytest.mark.long) for name in ("whole", "inl"))]
)
def test_small_batches_are_judged_together(
    spark: SparkSession, store: MasterStore, tmp_path: Path, algorithm: str
) -> None:
    """Four rows say little; three such batches without any match say enough."""
    df = stream(spark, tmp_path / "in", [keys(300, 301, 302, 303) for _ in range(3)])
    options: dict[str, Any] = {"min_match_rate": 0.5, "min_match_rows": 10, "algorithm": algorithm, "memory": SMALL}
    done: list[int] = []
    result = enrich(df, store, on="id", transport="rows", **options)

    def note(batch: Any, number: int) -> None:
        batch.collect()
        done.append(number)

    writer = result.writeStream.foreachBatch(note).option("checkpointLocation", str(tmp_path / "checkpoint"))
    with fails(r"MatchRateError: only 0 of 12 rows"):
        writer.trigger(availableNow=True).start().awaitTermination()
    assert done == [0, 1]


def test_a_few_rows_alone_do_not_fail(spark: SparkSession, store: MasterStore) -> None:
    df = frame(spark, keys(300, 301))
    options: dict[str, Any] = {"min_match_rate": 0.5, "min_match_rows": 10, "algorithm": "sweep", "memory": SMALL + 1}
    assert enrich(df, store, on="id", **options).count() == 2
