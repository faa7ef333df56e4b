"""Arguments that cannot be used are refused before Spark starts, in words that name the choices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from semistream import MasterStore
from semistream.errors import (
    ArgumentError,
    EmptyMasterError,
    KeyTypeError,
    MemoryBudgetError,
    SchemaError,
    SemistreamError,
    StoreError,
    StoreNotFoundError,
)
from semistream.spark import Metrics, enrich, explain
from tests.spark.streams import build, frame, keys, master_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> MasterStore:
    return build(tmp_path_factory.mktemp("store") / "s")


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> DataFrame:
    return frame(spark, keys(1, 2, 300, None))


@pytest.mark.parametrize("function", [enrich, explain])
@pytest.mark.parametrize(
    "options, error, says",
    [
        ({"on": "nope"}, ArgumentError, "on={'nope': 'nope'} must name every key column of the master"),
        ({"on": {"nope": "id"}}, ArgumentError, "the stream has no column 'nope'; its columns are ['id', 'n']"),
        ({"on": {"id": "price"}}, ArgumentError, "must name every key column of the master (['id']) exactly once"),
        ({"on": ["id", "n"]}, ArgumentError, "must name every key column"),
        ({"on": []}, ArgumentError, "on=[] is not usable"),
        ({"on": {}}, ArgumentError, "on={} is not usable"),
        ({"on": None}, ArgumentError, "on=None is not usable"),
        ({"on": [1]}, ArgumentError, "on=[1] is not usable"),
        ({"how": "outer"}, ArgumentError, "how='outer' is not known; choose one of 'left', 'inner', 'semi', 'anti'"),
        ({"how": None}, ArgumentError, "how=None is not known"),
        ({"transport": "fax"}, ArgumentError, "transport='fax' is not known; choose one of 'auto', 'rows', 'keys'"),
        ({"algorithm": "hash"}, ArgumentError, "algorithm='hash' is not known; choose one of 'auto'"),
        ({"on_miss": "redirect"}, ArgumentError, "on_miss='redirect' is for steps of a pipeline"),
        ({"on_miss": "hold"}, ArgumentError, "on_miss='hold' is for steps of a pipeline (semistream.pipeline.lookup)"),
        ({"on_miss": "infer"}, ArgumentError, "on_miss='infer' is for steps of a pipeline"),
        ({"on_miss": "ignore"}, ArgumentError, "on_miss='ignore' is not known; choose one of 'null', 'drop', 'fail'"),
        ({"on_miss": None}, ArgumentError, "on_miss=None is not known"),
        ({"on_miss": "drop", "how": "anti"}, ArgumentError, "on_miss='drop' does not go with how='anti'"),
        ({"columns": ["nope"]}, ArgumentError, "the master has no column 'nope'; it has ['id', 'price', 'name']"),
        ({"columns": ["name", "name"]}, SchemaError, "'name' twice"),
        ({"columns": ["id"]}, SchemaError, "column 'id' is on both sides; give suffix="),
        ({"columns": "name"}, ArgumentError, "columns='name'"),
        ({"defaults": {"nope": 1}}, ArgumentError, "defaults name 'nope', which is no output column"),
        ({"defaults": {"n": 1}}, ArgumentError, "defaults name 'n', which is no output column of the master"),
        ({"defaults": {"price": "dear"}}, ArgumentError, "defaults: 'dear' does not fit column 'price' of type double"),
        ({"defaults": {"name": 5}}, ArgumentError, "defaults: 5 does not fit column 'name' of type string"),
        ({"defaults": {"price": 1.0}, "how": "inner"}, ArgumentError, "defaults are for rows without a match"),
        ({"defaults": {"price": 1.0}, "on_miss": "drop"}, ArgumentError, "on_miss='drop'"),
        ({"defaults": ["price"]}, ArgumentError, "defaults=['price']"),
        ({"memory": "lots"}, ArgumentError, "memory='lots' is not a size"),
        ({"memory": 0}, ArgumentError, "memory=0 is less than a byte"),
        ({"memory": -5}, ArgumentError, "memory=-5 is less than a byte"),
        ({"memory": None}, ArgumentError, "memory=None is not a size"),
        ({"memory": 1.5}, ArgumentError, "memory=1.5 is not a size"),
        ({"memory": True}, ArgumentError, "memory=True is not a size"),
        ({"memory": "5 parsecs"}, ArgumentError, "memory='5 parsecs' is not a size"),
        ({"memory": 1000}, MemoryBudgetError, "memory=1,000 bytes is too small"),
        ({"memory": 1000, "algorithm": "sweep"}, MemoryBudgetError, "is too small"),
        ({"memory": 1000, "algorithm": "inl"}, MemoryBudgetError, "is too small"),
        ({"memory": 1000, "algorithm": "whole"}, MemoryBudgetError, "is too small: whole needs"),
        # Enough for one task, but two run at once.
        ({"memory": 12_000, "algorithm": "sweep"}, MemoryBudgetError, "is too small"),
        ({"min_match_rate": 1.1}, ArgumentError, "min_match_rate=1.1 must be between 0 and 1"),
        ({"min_match_rate": -0.1}, ArgumentError, "min_match_rate=-0.1 must be between 0 and 1"),
        ({"min_match_rate": float("nan")}, ArgumentError, "min_match_rate=nan must be between 0 and 1"),
        ({"min_match_rate": "95%"}, ArgumentError, "min_match_rate='95%' must be between 0 and 1"),
        ({"min_match_rows": 0}, ArgumentError, "min_match_rows=0 must be at least 1"),
        ({"min_match_rows": "many"}, ArgumentError, "min_match_rows='many'"),
        ({"tasks_per_host": 0}, ArgumentError, "tasks_per_host=0 must be at least 1"),
        ({"tasks_per_host": "2"}, ArgumentError, "tasks_per_host='2'"),
        ({"refresh": "sometimes"}, ArgumentError, "refresh='sometimes' is not known; use 'every_batch', 'never', or a"),
        ({"refresh": "-1 minutes"}, ArgumentError, "refresh='-1 minutes' is not known"),
        ({"refresh": "5 parsecs"}, ArgumentError, "refresh='5 parsecs' is not known"),
        ({"refresh": 300}, ArgumentError, "refresh=300 is not known"),
        ({"refresh": None}, ArgumentError, "refresh=None is not known"),
        ({"master_version": 7}, StoreNotFoundError, "has no version 7; it has versions 1"),
        ({"master_version": 0}, StoreNotFoundError, "has no version 0"),
        ({"master_version": "newest"}, ArgumentError, "master_version='newest' is not known; use 'latest' or"),
        ({"master_version": True}, ArgumentError, "master_version=True is not known"),
        ({"master_version": None}, ArgumentError, "master_version=None is not known"),
        ({"suffix": 5, "columns": ["id"]}, ArgumentError, "suffix=5"),
        ({"multiple": "last"}, ArgumentError, "multiple='last' is not known; choose one of 'all', 'first', 'error'"),
        ({"as_of": 5}, ArgumentError, "as_of=5 must be the name of a column of the stream"),
        ({"as_of": "nope"}, ArgumentError, "as_of='nope': the stream has no such column; its columns are ['id', 'n']"),
        ({"as_of": "n"}, ArgumentError, "valid_from='valid_from': the master has no such column"),
        ({"as_of": "n", "valid_from": "id"}, ArgumentError, "valid_from='id' is part of the master's key ['id']"),
        ({"as_of": "n", "valid_from": "price", "valid_to": "price"}, SchemaError, "as_of='n' is int64, the master's"),
        ({"valid_from": "since"}, ArgumentError, "valid_from='since' and valid_to='valid_to' go with as_of="),
        ({"status": ""}, ArgumentError, "status='' must be the name of a new column"),
        ({"status": "N"}, SchemaError, "status='N' is the name of another column already"),
        ({"status": "Price"}, SchemaError, "status='Price' is the name of another column already"),
        ({"status": "s", "how": "semi"}, ArgumentError, "status='s' tells rows with a match from those without"),
        ({"status": "s", "on_miss": "drop"}, ArgumentError, "on_miss='drop' drops the rows that status='s' would mark"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_refused(
    df: DataFrame, store: MasterStore, function: Any, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error) as raised:
        function(df, store, **{"on": "id", **options})
    assert says in str(raised.value)


def test_things_that_are_no_store(df: DataFrame, tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match="there is no semistream store at"):
        enrich(df, tmp_path / "nothing", on="id")
    with pytest.raises(ArgumentError, match="store=5 is not a store"):
        enrich(df, 5, on="id")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="store=None is not a store"):
        enrich(df, None, on="id", master_version=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("thing", [None, 5, "df", master_table()], ids=["None", "5", "str", "Arrow"])
def test_things_that_are_no_dataframe(store: MasterStore, thing: Any) -> None:
    with pytest.raises(ArgumentError, match=r"df is a .*, not a Spark DataFrame"):
        enrich(thing, store, on="id")


def test_metrics_must_be_metrics(df: DataFrame, store: MasterStore) -> None:
    with pytest.raises(ArgumentError, match="metrics='all' is not a semistream"):
        enrich(df, store, on="id", metrics="all")  # type: ignore[arg-type]


def test_metrics_need_a_session(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="spark='local' is not a SparkSession"):
        Metrics("local")  # type: ignore[arg-type]


def test_metrics_need_a_place_for_their_run_log(spark: SparkSession, tmp_path: Path) -> None:
    """Known when the handle is made, not by a listener that nobody hears."""
    with pytest.raises(SemistreamError, match="nowhere"):
        Metrics(spark, run_log=tmp_path / "nowhere" / "run.jsonl")


@pytest.mark.parametrize(
    "cast, have, want",
    [("int", "int32", "int64"), ("string", "string", "int64"), ("double", "double", "int64"),
     ("decimal(10,0)", "decimal128(10, 0)", "int64"), ("boolean", "bool", "int64")],
)  # fmt: skip
def test_key_types_must_agree(df: DataFrame, store: MasterStore, cast: str, have: str, want: str) -> None:
    with pytest.raises(KeyTypeError) as raised:
        enrich(df.selectExpr(f"cast(id as {cast}) id"), store, on="id")
    assert f"stream column 'id' is {have}, master key 'id' is {want}" in str(raised.value)


@pytest.mark.parametrize(
    "master, cast",
    [(pa.date32(), "timestamp"), (pa.timestamp("us", "UTC"), "timestamp_ntz"), (pa.timestamp("us"), "timestamp"),
     (pa.float32(), "double"), (pa.decimal128(10, 2), "decimal(11,2)"), (pa.binary(), "string"),
     (pa.int32(), "bigint")],
)  # fmt: skip
def test_near_types_do_not_agree(spark: SparkSession, tmp_path: Path, master: pa.DataType, cast: str) -> None:
    store = build(tmp_path / "s", pa.table({"id": pa.array([None, None], master), "x": [1, 2]}))
    df = spark.sql(f"select cast(null as {cast}) id")
    with pytest.raises(KeyTypeError, match="they must agree"):
        enrich(df, store, on="id", allow_empty=True)


def test_a_name_on_both_sides(spark: SparkSession, store: MasterStore) -> None:
    df = spark.sql("select 1L id, 2 price, 3 name_master")
    with pytest.raises(SchemaError, match="column 'price' is on both sides; give suffix='_master'"):
        enrich(df, store, on="id")
    with pytest.raises(SchemaError, match="suffix='' gives the column name 'price' twice"):
        enrich(df, store, on="id", suffix="")
    assert enrich(df, store, on="id", suffix="_m").columns == ["id", "price", "name_master", "price_m", "name"]
    assert enrich(df, store, on="id", columns=["name"]).columns == ["id", "price", "name_master", "name"]
    both = spark.sql("select 1L id, 2 name, 3 name_master")
    with pytest.raises(SchemaError, match="suffix='_master' gives the column name 'name_master' twice"):
        enrich(both, store, on="id", suffix="_master")


def test_names_that_differ_only_by_case_clash(spark: SparkSession, store: MasterStore) -> None:
    """Spark does not tell them apart: the result could not be read by either name."""
    df = spark.sql("select 1L id, 2 Price")
    with pytest.raises(SchemaError, match=r"'[Pp]rice'"):
        enrich(df, store, on="id")
    assert enrich(df, store, on="id", suffix="_m").columns == ["id", "Price", "price_m", "name"]


def test_a_stream_with_a_name_twice(df: DataFrame, store: MasterStore) -> None:
    with pytest.raises(SchemaError, match="the stream has several columns named 'n'; rename them"):
        enrich(df.select("id", "n", "n"), store, on="id")


def test_a_column_that_arrow_cannot_carry_stays_in_the_jvm(spark: SparkSession, store: MasterStore) -> None:
    df = spark.sql("select 1L id, make_interval(1, 2, 3, 4, 5, 6, 7) as how_long")
    with pytest.raises(SchemaError, match="'how_long'"):
        enrich(df, store, on="id", transport="rows")
    result = enrich(df, store, on="id", transport="keys").drop("how_long")
    assert [row.name for row in result.collect()] == ["n1"]


def test_an_empty_master(df: DataFrame, tmp_path: Path) -> None:
    store = build(tmp_path / "s", master_table(0))
    for function in (enrich, explain):
        with pytest.raises(EmptyMasterError, match=r"is empty, so nothing can match.*allow_empty=True"):
            function(df, store, on="id")
    for transport in ("rows", "keys"):
        for algorithm in ("auto", "sweep", "inl"):
            options: dict[str, Any] = {"transport": transport, "algorithm": algorithm}
            result = enrich(df, store, on="id", allow_empty=True, **options)
            assert sorted(map(str, result.select("id", "price").collect())) == sorted(
                f"Row(id={key}, price=None)" for key in (1, 2, 300, None)
            )


class TestBuild:
    def test_unknown_key(self, df: DataFrame, tmp_path: Path) -> None:
        with pytest.raises(ArgumentError, match="'nope'"):
            MasterStore.build(df, tmp_path / "s", key="nope")

    def test_unknown_column(self, df: DataFrame, tmp_path: Path) -> None:
        with pytest.raises(ArgumentError, match="the DataFrame has no column 'nope'"):
            MasterStore.build(df, tmp_path / "s", key="id", columns=["nope"])

    def test_no_key(self, df: DataFrame, tmp_path: Path) -> None:
        with pytest.raises(ArgumentError, match="key="):
            MasterStore.build(df, tmp_path / "s", key=[])

    def test_a_key_twice(self, df: DataFrame, tmp_path: Path) -> None:
        with pytest.raises(ArgumentError, match="twice"):
            MasterStore.build(df, tmp_path / "s", key=["id", "id"])

    def test_a_column_name_twice(self, df: DataFrame, tmp_path: Path) -> None:
        with pytest.raises(SemistreamError, match="'n'"):
            MasterStore.build(df.select("id", "n", "n"), tmp_path / "s", key="id")

    def test_nested_columns(self, df: DataFrame, tmp_path: Path) -> None:
        with pytest.raises(SchemaError, match="'a' has type"):
            MasterStore.build(df.selectExpr("id", "array(n) a"), tmp_path / "s", key="id")

    def test_types_without_arrow(self, spark: SparkSession, tmp_path: Path) -> None:
        odd = spark.sql("select 1L id, make_interval(1, 2, 3, 4, 5, 6, 7) as how_long")
        with pytest.raises(SchemaError, match="'how_long'"):
            MasterStore.build(odd, tmp_path / "s", key="id")

    def test_a_store_that_is_there(self, df: DataFrame, store: MasterStore) -> None:
        with pytest.raises(StoreError, match="holds a store already; give replace=True"):
            MasterStore.build(df, store.path, key="id")

    def test_odd_pages(self, df: DataFrame, tmp_path: Path) -> None:
        with pytest.raises(ArgumentError, match="page_bytes"):
            MasterStore.build(df, tmp_path / "s", key="id", page_bytes=1000)

    def test_a_streaming_dataframe(self, spark: SparkSession, tmp_path: Path) -> None:
        streaming = spark.readStream.format("rate").load()
        with pytest.raises(ArgumentError, match="this one is streaming"):
            MasterStore.build(streaming, tmp_path / "s", key="value")
        assert not (tmp_path / "s").exists()
