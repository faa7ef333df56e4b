"""As-of lookups, ``multiple`` and ``status`` in Spark: both transports give the rows of Spark's own range join."""

from __future__ import annotations

import datetime as dt
import random
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from semistream import MasterStore
from semistream.errors import SchemaError
from semistream.joins import JOINS
from semistream.lookup.spec import HOWS
from semistream.spark import Metrics, enrich, explain
from semistream.spark.spec import Transport
from tests.spark.streams import SMALL, build, column, every_how, fails, frame, gather, stream, wait_until
from tests.tables import assert_same_rows, model_join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TRANSPORTS = pytest.mark.parametrize("transport", [pytest.param("rows", marks=pytest.mark.long), "keys"])
TIMES = ("sold_at", "valid_from", "valid_to")
COLUMNS = ["id", "sold_at", "n", "price"]
START = dt.datetime(2024, 3, 1, tzinfo=dt.UTC)
COVERS = "(m.valid_from is null or m.valid_from <= s.sold_at) and (m.valid_to is null or s.sold_at < m.valid_to)"


def hours(numbers: list[int | None]) -> pa.Array:
    made = [None if number is None else START + dt.timedelta(hours=number) for number in numbers]
    return pa.array(made, pa.timestamp("us", "UTC"))


def history(*, overlaps: bool = False, keys: int = 40) -> pa.Table:
    """Prices of each product over time, with gaps; NULL for the first that always was and the last that still is."""
    rng = random.Random(3)
    rows: list[tuple[str, int | None, int | None, float]] = []
    for key in range(keys):
        count = rng.randint(1, 5)
        for version in range(count):
            begin = None if version == 0 and key % 2 else 10 * version
            end = (
                None if version == count - 1 and key % 3 else 10 * version + rng.choice([7, 10, 25 if overlaps else 10])
            )
            rows.append((str(key), begin, end, float(len(rows))))
    rng.shuffle(rows)
    ids, begins, ends, prices = zip(*rows, strict=True)
    times = {"valid_from": hours(list(begins)), "valid_to": hours(list(ends))}
    return pa.table({"id": ids, **times, "price": prices})


def sales(rows: int = 300, keys: int = 44) -> pa.Table:
    rng = random.Random(5)
    times = [None if rng.random() < 0.05 else rng.choice([-3, 0, 7, 9, 10, 15, 20, 34, 90]) for _ in range(rows)]
    products = [None if rng.random() < 0.03 else str(rng.randrange(keys)) for _ in range(rows)]
    return pa.table({"id": pa.array(products, pa.string()), "sold_at": hours(times), "n": range(rows)})


@pytest.fixture(scope="module")
def compared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[DataFrame, MasterStore, pa.Table]:
    """Stream, store, and what Spark's own range joins give."""
    from pyspark.sql.functions import expr

    left, right = frame(spark, sales(), 2), frame(spark, history(overlaps=True))
    joined = {}
    for how in HOWS:
        both = left.alias("s").join(right.alias("m"), expr(f"s.id = m.id and {COVERS}"), how)
        joined[how] = both.selectExpr("s.id", "s.sold_at", "s.n", *(["m.price"] if how in ("left", "inner") else []))
    store = build(tmp_path_factory.mktemp("store") / "s", history(overlaps=True))
    return left, store, every_how(joined, COLUMNS)


@TRANSPORTS
@pytest.mark.parametrize("algorithm", ["sweep", "whole"])
def test_as_sparks_range_join(compared: Any, algorithm: str, transport: Transport) -> None:
    """Also after a lookup without a moment, whose cached rows have no times."""
    left, store, expected = compared
    options: dict[str, Any] = {"on": "id", "columns": ["price"], "memory": SMALL, "algorithm": algorithm}
    if algorithm == "sweep":
        enrich(left, store, transport=transport, **options).count()
    joined = {how: enrich(left, store, as_of="sold_at", how=how, transport=transport, **options) for how in HOWS}
    assert_same_rows(every_how(joined, COLUMNS), expected)


OTHERS = [
    pytest.param(name, marks=[pytest.mark.long] if turn % 6 else [])
    for turn, name in enumerate(sorted(set(JOINS) - {"sweep", "whole"}))
]


@pytest.mark.parametrize("algorithm", OTHERS)
def test_every_algorithm(spark: SparkSession, tmp_path: Path, algorithm: str) -> None:
    transport: Transport = "keys" if sorted(JOINS).index(algorithm) % 2 else "rows"
    master, left = history(overlaps=True), sales()
    options: dict[str, Any] = {"multiple": "first", "status": "found"}
    result = enrich(
        frame(spark, left), build(tmp_path / "s", master), on="id", as_of="sold_at", transport=transport,
        algorithm=algorithm, **options,
    )  # fmt: skip
    assert_same_rows(result.toArrow(), model_join(left, master, "id", as_of=TIMES, **options))


@TRANSPORTS
def test_a_stream_with_its_counters(spark: SparkSession, tmp_path: Path, transport: Transport) -> None:
    master, whole = history(), sales()
    df = stream(spark, tmp_path / "in", [whole.slice(0, 150), whole.slice(150)])
    metrics = Metrics(spark)
    options: dict[str, Any] = {"defaults": {"price": -1.0}, "status": "_lookup_status", "columns": ["price"]}
    result = enrich(
        df, build(tmp_path / "s", master), on="id", as_of="sold_at", transport=transport, metrics=metrics, **options
    )
    assert result.columns == ["id", "sold_at", "n", "price", "_lookup_status"]
    found = gather(result, tmp_path / "checkpoint")
    wait_until(lambda: metrics.batches == 2)
    metrics.close()
    expected = model_join(whole, master, "id", as_of=TIMES, **options)
    made = pa.concat_tables(found.values())
    assert_same_rows(made, expected)
    assert metrics.problem is None
    assert metrics.total.rows_in == 300
    assert metrics.total.unmatched == expected["_lookup_status"].to_pylist().count("unmatched")
    assert metrics.total.rows_out == expected.num_rows


@TRANSPORTS
def test_first_and_error(spark: SparkSession, tmp_path: Path, transport: Transport) -> None:
    master, left = history(overlaps=True), sales()
    store, df = build(tmp_path / "s", master), frame(spark, left)
    result = enrich(df, store, on="id", as_of="sold_at", multiple="first", transport=transport).toArrow()
    assert_same_rows(result, model_join(left, master, "id", as_of=TIMES, multiple="first"))
    with fails(r"FanOutError: multiple='error': the stream row with id='\d+', sold_at=datetime.* more than one match"):
        enrich(df, store, on="id", as_of="sold_at", multiple="error", transport=transport).toArrow()
    one = build(tmp_path / "one", history())
    result = enrich(df, one, on="id", as_of="sold_at", multiple="error", transport=transport).toArrow()
    assert_same_rows(result, model_join(left, history(), "id", as_of=TIMES))


@TRANSPORTS
def test_status_without_a_history(spark: SparkSession, tmp_path: Path, transport: Transport) -> None:
    """A NULL in the master is a match, a row without a key is none."""
    store = MasterStore.build(pa.table({"id": [1, 2], "price": [None, 2.5]}), tmp_path / "s", key="id")
    df = frame(spark, pa.table({"id": [1, 2, 3, None], "n": range(4)}))
    for on_miss in ("null", "fail"):
        result = enrich(df.where("id < 3 or 'null' = '" + on_miss + "'"), store, on="id", on_miss=on_miss,
                        status="found", transport=transport)  # fmt: skip
        expected = ["matched", "matched", "unmatched", "unmatched"]
        assert column(result.toArrow(), "found") == expected[: 4 if on_miss == "null" else 2]


@TRANSPORTS
def test_unmatched_rows_are_named_with_their_moment(spark: SparkSession, tmp_path: Path, transport: Transport) -> None:
    store = build(tmp_path / "s", history())
    df = spark.sql("select '3' id, timestamp '2030-01-01' sold_at")
    with fails(r"UnmatchedRowError: on_miss='fail'.*for example \('3', datetime"):
        enrich(df, store, on="id", as_of="sold_at", on_miss="fail", transport=transport).toArrow()


def test_kinds_of_times_must_agree(spark: SparkSession, tmp_path: Path) -> None:
    store = build(tmp_path / "s", history())
    for kind, name in (("date", "date32[day]"), ("timestamp_ntz", "timestamp[us]"), ("bigint", "int64")):
        df = spark.sql(f"select '1' id, cast(null as {kind}) sold_at")
        with pytest.raises(SchemaError, match=re.escape(f"as_of='sold_at' is {name}, the master's 'valid_from' is")):
            enrich(df, store, on="id", as_of="sold_at")


def test_explained(spark: SparkSession, tmp_path: Path) -> None:
    store = build(tmp_path / "s", history())
    df = frame(spark, sales())
    text = explain(df, store, on="id", as_of="sold_at", multiple="first", status="found")
    assert "as of       valid_from <= sold_at < valid_to" in text
    assert "multiple    first: only the first match of a row" in text
    assert "output      id, sold_at, n, valid_from, valid_to, price, found" in text
    assert "transport   keys: the stream's other columns take about 8 bytes a row and stay in the JVM" in text
    text = explain(df, store, on="id", multiple="error")
    assert "multiple    error: a row with two matches fails" in text
    assert "as of" not in text
