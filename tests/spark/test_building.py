"""A store built from a Spark DataFrame: every row is there, a key's rows lie together, several bases make one store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from semistream import MasterStore
from semistream.errors import SchemaError
from semistream.spark import Metrics, enrich
from semistream.spark.spec import Transport
from tests.spark.streams import SMALL, frame, master_table
from tests.tables import assert_same_rows, model_join

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 3_000


@pytest.fixture(autouse=True)
def several_bases(spark: SparkSession) -> Iterator[None]:
    """Spark puts small partitions together, which would leave one base of these few rows."""
    spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
    yield
    spark.conf.unset("spark.sql.adaptive.coalescePartitions.enabled")


def sample(copies: int) -> pa.Table:
    """Unsorted rows, ``copies`` for each key."""
    ids = np.random.default_rng(3).permutation(np.repeat(np.arange(COUNT // copies), copies))
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "name": [f"key {i}" for i in ids],
            "n": pa.array(range(len(ids)), pa.int64()),
        }
    )


def content(store: MasterStore) -> pa.Table:
    return pa.Table.from_batches(store.scan(), store.schema)


@pytest.mark.parametrize("key", ["id", "name", ["name", "id"]], ids=str)
@pytest.mark.parametrize("copies", [1, 5], ids=["unique", "duplicates"])
def test_equals_its_source(spark: SparkSession, tmp_path: Path, key: Any, copies: int) -> None:
    table = sample(copies)
    store = MasterStore.build(frame(spark, table, 3), tmp_path / "s", key=key)
    assert_same_rows(content(store), table)
    assert (store.rows, store.unique, store.version, store.manifest.null_keys) == (COUNT, copies == 1, 1, 0)
    assert store.verify() == store.pages
    bases = [segment for segment in store.segments if segment.entry.role == "base"]
    assert len(bases) == 2  # one for each of the session's shuffle partitions
    # Disjoint and in order: the rows of a key are in one base only.
    assert sum(entry.keys for entry in store.manifest.segments) == COUNT // copies
    asked = table.slice(0, 50).select(store.key)
    found = store.get(asked)
    names = set(asked.column(0).to_pylist())
    assert_same_rows(
        found, table.filter(pa.array([value in names for value in table.column(store.key[0]).to_pylist()]))
    )


@pytest.mark.parametrize("transport", ["rows", "keys"])
def test_joins_over_several_bases(spark: SparkSession, tmp_path: Path, transport: Transport) -> None:
    table = sample(2)
    store = MasterStore.build(frame(spark, table, 2), tmp_path / "s", key="name", columns=["name", "n"])
    assert store.schema.names == ["name", "n"]
    left = pa.table({"name": [f"key {i}" for i in range(0, 2 * COUNT, 7)]})
    df = frame(spark, left)
    result = enrich(df, store, on="name", memory=SMALL, algorithm="sweep", transport=transport).toArrow()
    assert_same_rows(result, model_join(left, table.select(["name", "n"]), "name"))


def test_null_keys_are_counted_and_left_out(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"a": [1, None, 3, None, 5], "b": ["x", "y", None, None, "z"], "c": [1, 2, 3, 4, None]})
    one = MasterStore.build(frame(spark, table), tmp_path / "1", key="a")
    assert (one.rows, one.manifest.null_keys) == (3, 2)
    both = MasterStore.build(frame(spark, table), tmp_path / "2", key=["a", "b"])
    assert (both.rows, both.manifest.null_keys) == (2, 3)
    assert_same_rows(content(both), table.take([0, 4]))
    with pytest.raises(SchemaError, match=r"2 of the rows have a NULL in their key \(a\)"):
        MasterStore.build(frame(spark, table), tmp_path / "3", key="a", null_keys="refuse")


def test_an_empty_dataframe(spark: SparkSession, tmp_path: Path) -> None:
    store = MasterStore.build(frame(spark, master_table(0)), tmp_path / "s", key="id")
    assert (store.rows, store.schema.names) == (0, ["id", "price", "name"])
    assert_same_rows(content(store.upsert(master_table(3))), master_table(3))


def test_replace_is_a_new_version(spark: SparkSession, tmp_path: Path) -> None:
    MasterStore.build(frame(spark, master_table(5)), tmp_path / "s", key="id")
    store = MasterStore.build(frame(spark, master_table(7, 0.5)), tmp_path / "s", key="id", replace=True)
    assert (store.version, store.rows) == (2, 7)
    assert_same_rows(content(store), master_table(7, 0.5))
    assert_same_rows(content(MasterStore.open(tmp_path / "s", 1)), master_table(5))


def test_a_build_that_fails_leaves_nothing_visible(spark: SparkSession, tmp_path: Path) -> None:
    broken = frame(spark, master_table(50)).selectExpr("id", "if(id = 40, raise_error('no price'), price) price")
    with pytest.raises(Exception, match="no price"):
        MasterStore.build(broken, tmp_path / "s", key="id")
    assert not list((tmp_path / "s").glob("version-*"))
    assert not list((tmp_path / "s").glob("segment-*"))
    assert MasterStore.build(frame(spark, master_table(50)), tmp_path / "s", key="id", replace=True).rows == 50


def test_every_type_as_from_arrow(spark: SparkSession, tmp_path: Path) -> None:
    from tests.spark.test_differential import TYPES

    columns = {f"c_{kind}": pa.array([*values, None][:3], arrow) for kind, (arrow, values, *_) in TYPES.items()}
    table = pa.table(
        {"id": pa.array([1, 2, 3], pa.int64()), **{n: c.take([0, 1, len(c) - 1]) for n, c in columns.items()}}
    )
    by_spark = MasterStore.build(frame(spark, table), tmp_path / "1", key="id")
    by_arrow = MasterStore.build(table, tmp_path / "2", key="id")
    assert_same_rows(content(by_spark), content(by_arrow))


@pytest.mark.parametrize("transport", ["rows", "keys"])
def test_column_groups(spark: SparkSession, tmp_path: Path, transport: Transport) -> None:
    """A lookup of some columns reads the group that has them, before and after a change."""
    table = sample(1).append_column("wide", pa.array(["w" * 200] * COUNT))
    store = MasterStore.build(frame(spark, table, 2), tmp_path / "s", key="id", groups={"numbers": ["n"]})
    left = pa.table({"id": pa.array(range(0, 2 * COUNT, 3), pa.int64())})
    for number in (1, 2):
        bytes_read = {}
        for columns in (["n"], ["n", "wide"]):
            metrics = Metrics(spark)
            joined = enrich(
                frame(spark, left, 2),
                store.path,
                on="id",
                columns=columns,
                memory=SMALL,
                transport=transport,
                algorithm="sweep",
                metrics=metrics,
            )
            assert_same_rows(joined.toArrow(), model_join(left, table, "id", "left", columns))
            bytes_read[len(columns)] = metrics.collect().bytes_read
            metrics.close()
        # By keys there is room for small blocks only, and each reads again pages that another one has read.
        assert 0 < bytes_read[1] < bytes_read[2] / (3 if transport == "rows" else 2), number
        changed = table.slice(0, 40).set_column(2, "n", pa.array(range(40), pa.int64()))
        store = store.upsert(changed)
        table = pa.concat_tables([table.slice(40), changed])
