"""``explain``: what `enrich` would do, and why, in words and numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from semistream.spark import Metrics, enrich, explain
from tests.spark.streams import build, frame, keys, master_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_master_that_fits(spark: SparkSession, tmp_path: Path) -> None:
    store = build(tmp_path / "s")
    text = explain(frame(spark, keys(1)), store, on="id")
    assert f"enrich with {store.path} (version 1, 100 rows, " in text
    assert "algorithm   whole: the columns needed take about " in text
    assert "the master is simply held whole" in text
    assert "transport   keys: the stream's other columns take about 8 bytes a row and stay in the JVM" in text
    assert "memory      256.0 MB in total a host for 2 tasks at once" in text
    assert "output      id, n, price, name" in text
    assert "no match    null; refresh every_batch" in text


def test_the_former_name_of_a_join(spark: SparkSession, tmp_path: Path) -> None:
    text = explain(frame(spark, keys(1)), build(tmp_path / "s"), on="id", algorithm="reference")
    assert "algorithm   whole: asked for" in text


def test_a_master_that_does_not_fit(spark: SparkSession, tmp_path: Path) -> None:
    store = build(tmp_path / "s", master_table(50_000))
    text = explain(frame(spark, keys(1)), store, on="id", memory="10%", how="semi", refresh="5 minutes")
    assert "algorithm   sweep: the columns needed take about " in text
    assert "hot keys from memory, all others by planned sweeps" in text
    assert "transport   keys: a semi or anti join needs only the key" in text
    for part in ("index", "read buffer", "output", "cache", "window"):
        assert re.search(rf"^ +{part} +[\d.]+ (B|kB|MB)$", text, re.MULTILINE), part
    assert re.search(r"predicted   hit ratio 0\.\d\d, [\d,]+ rows/s a core", text)
    assert "no match    null; refresh 5 minutes" in text


def test_the_parts_add_up_to_the_budget(spark: SparkSession, tmp_path: Path) -> None:
    """What explain shows is what the tasks will use: all parts of both tasks and the one cache make the budget."""
    store = build(tmp_path / "s", master_table(50_000))
    text = explain(frame(spark, keys(1)), store, on="id", memory=2_000_000, algorithm="sweep")
    sizes = {}
    for name, number, unit in re.findall(r"^ {14}([a-z ]+?) +([\d.]+) (B|kB|MB)$", text, re.MULTILINE):
        sizes[name] = float(number) * {"B": 1, "kB": 1e3, "MB": 1e6}[unit]
    assert abs(sum(sizes.values()) - 2_000_000) < 60_000, text  # as rounded as the text is


def test_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    store = build(tmp_path / "s")
    df = frame(spark, keys(1))
    text = explain(df, str(store.path), on="id", algorithm="inl", transport="keys", metrics=Metrics(spark))
    assert "algorithm   inl: asked for" in text
    assert "transport   keys: asked for" in text
    wide = df.selectExpr("id", *(f"cast(n as string) as wide{i}" for i in range(8)))
    assert "transport   keys: the stream's other columns take about " in explain(wide, store, on="id")
    assert "and stay in the JVM" in explain(wide, store, on="id")
    assert enrich(wide, store, on="id").count() == 1


def test_transport_by_what_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    """Lists of rows a key must be worth unfolding; joins that let rows wait get all rows."""
    several = build(tmp_path / "several", pa.concat_tables([master_table(), master_table(mark=0.5)]))
    df = frame(spark, keys(1))
    narrow = explain(df, several, on="id")
    assert (
        "transport   rows: a row may have several matches, and the stream's other columns take only about 8 " in narrow
    )
    waiting = explain(df, build(tmp_path / "one"), on="id", algorithm="hybrid")
    assert "transport   rows: hybrid lets rows wait" in waiting


def test_keys_come_out_of_rows(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Right above Parquet's columns Spark would turn every waiting batch into rows and back, at half the rate."""
    frame(spark, keys(1, 2)).write.parquet(str(tmp_path / "stream"))
    df = spark.read.parquet(str(tmp_path / "stream"))
    enrich(df, build(tmp_path / "s"), on="id", transport="keys").explain()
    plan = capsys.readouterr().out
    assert plan.index("ArrowEvalPython") < plan.index("Filter") < plan.index("ColumnarToRow"), plan
