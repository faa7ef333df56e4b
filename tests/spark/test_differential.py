"""The same rows as Spark's own join: every key type, every ``how``, both transports, batch and streaming."""

from __future__ import annotations

import datetime as dt
import random
import re
import zlib
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from semistream import MasterStore
from semistream.joins import JOINS
from semistream.lookup.spec import HOWS
from semistream.spark import Metrics, enrich
from semistream.spark.spec import Transport
from tests.spark.streams import SMALL, every_how, frame, gather, stream, to_memory
from tests.tables import assert_same_rows, model_join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAN, INF = float("nan"), float("inf")
DAY = dt.date(2024, 2, 28)
NOON = dt.datetime(2024, 2, 28, 12, 30, 0, 123456)
BEFORE_1970 = dt.datetime(1969, 12, 31, 23, 59, 59, 999999)
# For each type: the Arrow type, keys on both sides, keys of the stream only, keys of the master only.
TYPES: dict[str, tuple[pa.DataType, list[Any], list[Any], list[Any]]] = {
    "long": (pa.int64(), [0, 1, -1, 2**63 - 1, -(2**63), 7], [8, -9], [10, -11]),
    "int": (pa.int32(), [0, 1, -1, 2**31 - 1, -(2**31)], [8], [10]),
    "string": (pa.string(), ["", "a", "A", "ä", "a ", "x" * 300, "\0"], ["b", "a\u0308"], ["c"]),
    "binary": (pa.binary(), [b"", b"\0", b"\0\0", b"\xff" * 40], [b"\xff"], [b"a"]),
    "double": (pa.float64(), [0.0, NAN, 1.5, INF, -INF, 5e-324, -1.5], [2.5, 1e300], [3.5]),
    "float": (pa.float32(), [0.0, NAN, 1.5, INF, -INF, -1.5], [2.5], [3.5]),
    "decimal(10,2)": (pa.decimal128(10, 2), [Decimal(0), Decimal("-0.01"), Decimal("99999999.99")], [Decimal(1)], []),
    "decimal(30,3)": (pa.decimal128(30, 3), [Decimal(0), Decimal("-1.001"), Decimal("9" * 27)], [Decimal(2)], []),
    "date": (pa.date32(), [DAY, dt.date(1, 1, 1), dt.date(9999, 12, 31)], [BEFORE_1970.date()], [dt.date(1970, 1, 1)]),
    "timestamp": (pa.timestamp("us", "UTC"), [NOON, BEFORE_1970], [NOON.replace(hour=1)], []),
    "timestamp_ntz": (pa.timestamp("us"), [NOON, BEFORE_1970], [NOON.replace(hour=1)], []),
    "boolean": (pa.bool_(), [True], [False], []),
}  # fmt: skip
SPARK_NAMES = {"long": "bigint"}
COMPOSITE = "string+long"


def key_columns(kind: str, side: int, copies: int, rng: random.Random) -> dict[str, pa.Array]:
    """The key columns of one side (0: stream, 1: master), NULLs among them."""
    if kind == COMPOSITE:
        both = [("a", 1), ("a", 2), ("b", 1), ("", 0)]
        pairs = [*both, *([("b", 2), ("a", 3)] if side == 0 else [("c", 1)])] * copies
        pairs += [("a", None), (None, 1), (None, None)]  # type: ignore[list-item]
        rng.shuffle(pairs)
        texts, numbers = zip(*pairs, strict=True)
        return {"k": pa.array(texts, pa.string()), "k2": pa.array(numbers, pa.int64())}
    arrow, both_sides, *only = TYPES[kind]
    values = [*both_sides, *only[side]] * copies
    if side == 0 and kind in ("double", "float"):
        values += [-0.0] * copies
    values += [None, None]
    rng.shuffle(values)
    return {"k": pa.array(values, arrow)}


def stream_table(kind: str) -> pa.Table:
    columns = key_columns(kind, 0, 4, random.Random(zlib.crc32(kind.encode())))
    count = len(columns["k"])
    return pa.table({**columns, "n": pa.array(range(count), pa.int64()), "text": [f"s{i}" for i in range(count)]})


def master_of(kind: str, copies: int) -> pa.Table:
    columns = key_columns(kind, 1, copies, random.Random(copies))
    count = len(columns["k"])
    return pa.table(
        {
            **columns,
            "price": pa.array([None if i % 5 == 2 else i / 2 for i in range(count)], pa.float64()),
            "name": pa.array([None if i % 4 == 1 else f"m{i}" for i in range(count)], pa.string()),
            "day": pa.array([DAY + dt.timedelta(i) for i in range(count)], pa.date32()),
        }
    )


@pytest.fixture(scope="module")
def cases(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """For a key type and a number of rows a key: stream, store, and what Spark's own joins give; made once each."""
    made: dict[tuple[str, int], tuple[DataFrame, MasterStore, pa.Table]] = {}

    def get(kind: str, copies: int) -> tuple[DataFrame, MasterStore, pa.Table]:
        if (kind, copies) not in made:
            on = ["k", "k2"] if kind == COMPOSITE else ["k"]
            left = frame(spark, stream_table(kind), 2)
            if kind != COMPOSITE:
                assert dict(left.dtypes)["k"] == SPARK_NAMES.get(kind, kind)
            right = frame(spark, master_of(kind, copies))
            joined = {how: left.join(right, on, how) for how in HOWS}
            columns = [*left.columns, "price", "name", "day"]
            store = MasterStore.build(master_of(kind, copies), tmp_path_factory.mktemp("store") / "s", key=on)
            assert store.unique == (copies == 1)
            made[kind, copies] = left, store, every_how(joined, columns)
        return made[kind, copies]

    return get


def asked() -> list[Any]:
    """Every key type with one of four combinations, in turn; with all of them in the long tests."""
    return [
        pytest.param(
            kind, copies, way, id=f"{kind}-{name}-{way}", marks=[pytest.mark.long] if (n + 2 * c + t) % 4 else []
        )
        for n, kind in enumerate([*TYPES, COMPOSITE])
        for c, (copies, name) in enumerate([(1, "unique"), (3, "duplicates")])
        for t, way in enumerate(["rows", "keys"])
    ]


@pytest.mark.parametrize("kind, copies, transport", asked())
def test_batch_as_sparks_join(kind: str, copies: int, transport: Transport, cases: Any) -> None:
    left, store, expected = cases(kind, copies)
    options: dict[str, Any] = {"memory": SMALL, "algorithm": "sweep", "transport": transport}
    joined = {how: enrich(left, store, on=list(store.key), how=how, **options) for how in HOWS}
    assert_same_rows(every_how(joined, [*left.columns, "price", "name", "day"]), expected)


@pytest.mark.parametrize(
    "algorithm, transport",
    [(name, ("rows", "keys")[at % 2]) for at, name in enumerate(["auto", *JOINS])]
    + [("inl", "rows"), ("pcsrj", "rows")],
)
def test_every_algorithm(algorithm: str, transport: Transport, cases: Any) -> None:
    left, store, expected = cases("string", 3)
    joined = {how: enrich(left, store, on="k", how=how, algorithm=algorithm, transport=transport) for how in HOWS}
    assert_same_rows(every_how(joined, [*left.columns, "price", "name", "day"]), expected)


@pytest.mark.parametrize("transport", ["rows", "keys"])
def test_partitions_are_the_nodes_of_pcsrj(
    transport: Transport, cases: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every key goes to one partition, which joins it alone."""
    left, store, _ = cases("string", 3)
    enrich(left, store, on="k", algorithm="pcsrj", transport=transport, memory=SMALL).explain()
    assert re.search(r"Exchange hashpartitioning\(k#\d+L?, 2\), REPARTITION_BY_NUM", capsys.readouterr().out)


@pytest.mark.parametrize("transport", ["rows", "keys"])
def test_every_master_type_comes_back(spark: SparkSession, tmp_path: Path, transport: Transport) -> None:
    count = 6
    master = {"id": pa.array(range(count), pa.int64())}
    for kind, (arrow, values, *_) in TYPES.items():
        master[f"c_{kind}"] = pa.array([None, *(values * count)][:count], arrow)
    table = pa.table(master)
    store = MasterStore.build(table, tmp_path / "s", key="id")
    left = frame(spark, pa.table({"id": pa.array([*range(count), 99, None], pa.int64())}))
    result = enrich(left, store, on="id", transport=transport, memory=SMALL, algorithm="sweep")
    expected = left.join(frame(spark, table), "id", "left")
    assert result.dtypes == expected.dtypes
    assert_same_rows(result.toArrow(), expected.toArrow())


@pytest.mark.parametrize("transport", ["rows", "keys"])
def test_the_masters_key_under_its_own_name(spark: SparkSession, tmp_path: Path, transport: Transport) -> None:
    store = MasterStore.build(master_of("long", 1).drop_columns(["name", "day"]), tmp_path / "s", key="k")
    left = frame(spark, pa.table({"key": pa.array([0, 1, 8, None], pa.int64()), "n": [0, 1, 2, 3]}))
    options: dict[str, Any] = {"transport": transport, "memory": SMALL, "algorithm": "sweep"}
    result = enrich(left, store, on={"key": "k"}, columns=["k", "price"], **options).toArrow()
    expected = model_join(left.toArrow(), master_of("long", 1), {"key": "k"}, columns=["k", "price"])
    assert_same_rows(result, expected)


@pytest.mark.parametrize("algorithm", ["sweep", "whole"])
@pytest.mark.parametrize("transport", ["rows", "keys"])
@pytest.mark.parametrize("copies", [1, 2], ids=["unique", "duplicates"])
def test_suffix_for_a_name_on_both_sides(
    spark: SparkSession, tmp_path: Path, transport: Transport, algorithm: str, copies: int
) -> None:
    master = pa.table({"id": [1, 2] * copies, "price": [1.5, 2.5] * copies, "name": ["a", "b"] * copies})
    store = MasterStore.build(master, tmp_path / "s", key="id")
    left = pa.table({"id": [1, 2, 3], "price": ["x", "y", "z"]})
    result = enrich(
        frame(spark, left),
        store,
        on="id",
        suffix="_master",
        defaults={"price_master": -1.0},
        transport=transport,
        algorithm=algorithm,
        memory=SMALL,
    )
    expected = model_join(left, master, "id", suffix="_master", defaults={"price_master": -1.0})
    assert_same_rows(result.toArrow(), expected)


@pytest.mark.parametrize("transport", ["rows", "keys"])
@pytest.mark.parametrize("how", ["left", "inner"])
def test_awkward_column_names(spark: SparkSession, tmp_path: Path, transport: Transport, how: str) -> None:
    names = ["found", "a.b", "back`tick", "with space", "Ä", "_m"]
    master = pa.table({"my.key": [1, 2], **{name: [f"{name}1", f"{name}2"] for name in names}})
    store = MasterStore.build(master, tmp_path / "s", key="my.key")
    left = pa.table({"the key": [1, 2, 3], "Ö": [1, 2, 3], "semi-stream": ["a", "b", "c"]})
    options: dict[str, Any] = {"on": {"the key": "my.key"}, "how": how}
    result = enrich(frame(spark, left), store, transport=transport, **options)
    assert_same_rows(result.toArrow(), model_join(left, master, **options))


@pytest.mark.parametrize("transport", ["rows", "keys"])
def test_stream_columns_with_dots(spark: SparkSession, tmp_path: Path, transport: Transport) -> None:
    """Spark's own mapInArrow cannot take them, so ``rows`` works around that or says so in words."""
    from semistream.errors import SemistreamError

    master = pa.table({"id": [1, 2], "price": [1.5, 2.5]})
    store = MasterStore.build(master, tmp_path / "s", key="id")
    left = pa.table({"my.id": [1, 2, 3], "back`tick": ["a", "b", "c"]})
    try:
        result = enrich(frame(spark, left), store, on={"my.id": "id"}, transport=transport)
    except SemistreamError as error:
        assert transport == "rows"
        assert "'my.id'" in str(error)  # noqa: PT017 - either answer is right
    else:
        assert_same_rows(result.toArrow(), model_join(left, master, {"my.id": "id"}))


@pytest.mark.parametrize("transport", ["rows", "keys"])
def test_names_that_semistream_uses_itself(spark: SparkSession, tmp_path: Path, transport: Transport) -> None:
    """Columns named like our own are kept, or refused in words; never lost or overwritten."""
    from semistream.errors import SchemaError

    master = pa.table({"id": [1, 2], "price": [1.5, 2.5]})
    store = MasterStore.build(master, tmp_path / "s", key="id")
    left = pa.table({"id": [1, 3], "_semistream": ["a", "b"], "_semistream_found": ["c", "d"], "__row": [5, 6]})
    try:
        result = enrich(frame(spark, left), store, on="id", transport=transport)
    except SchemaError as error:
        assert "_semistream" in str(error)  # noqa: PT017 - either answer is right
    else:
        assert_same_rows(result.toArrow(), model_join(left, master, "id"))


def nested_table(count: int) -> pa.Table:
    tags = [None if i % 6 == 5 else [f"t{i}"] * (i % 4) for i in range(count)]
    return pa.table(
        {
            "id": pa.array([None if i % 9 == 8 else i % 40 for i in range(count)], pa.int64()),
            "tags": pa.array(tags, pa.list_(pa.string())),
            "place": pa.array(
                [{"city": f"c{i}", "at": [i, None]} for i in range(count)],
                pa.struct([("city", pa.string()), ("at", pa.list_(pa.int32()))]),
            ),
            "words": pa.array(
                [[(f"w{i}", i)] if i % 3 else None for i in range(count)], pa.map_(pa.string(), pa.int64())
            ),
            **{f"wide{c}": [f"{c}-{i}-{'x' * 40}" for i in range(count)] for c in range(6)},
        }
    )  # fmt: skip


@pytest.mark.parametrize("transport", ["auto", "rows"])
@pytest.mark.parametrize("copies", [1, 2], ids=["unique", "duplicates"])
def test_wide_streams_with_nested_columns(
    spark: SparkSession, tmp_path: Path, transport: Transport, copies: int
) -> None:
    from semistream.spark import explain

    left = spark.createDataFrame(nested_table(120)).repartition(3)
    master = pa.table({"id": list(range(30)) * copies, "price": [i / 4 for i in range(30 * copies)]})
    store = MasterStore.build(master, tmp_path / "s", key="id")
    if transport == "auto":
        assert "keys: the stream's other columns" in explain(left, store, on="id")
    options: dict[str, Any] = {"memory": SMALL, "algorithm": "sweep", "transport": transport}
    result = enrich(left, store, on="id", **options)
    # Spark compares maps by no operator, so all is compared as text.
    texts = [
        f"to_json(struct({name})) as {name}" if name in ("tags", "place", "words") else name for name in result.columns
    ]
    expected = left.join(spark.createDataFrame(master), "id", "left").select(result.columns)
    assert_same_rows(result.selectExpr(*texts).toArrow(), expected.selectExpr(*texts).toArrow())


@pytest.mark.parametrize("transport", ["rows", "keys"])
def test_more_rows_than_a_window_holds(spark: SparkSession, tmp_path: Path, transport: Transport) -> None:
    """Several Arrow batches a task, a window that fills many times, a cache that cannot hold the master."""
    rng = random.Random(5)
    master = pa.table({"id": list(range(20_000)), "name": [f"name {i} " * (i % 5) for i in range(20_000)]})
    store = MasterStore.build(master, tmp_path / "s", key="id")
    ids = [min(int(rng.paretovariate(0.4)), 25_000) for _ in range(60_000)]
    left = pa.table({"id": pa.array(ids, pa.int64()), "n": list(range(60_000))})
    df = spark.createDataFrame(left).repartition(2)
    metrics = Metrics(spark)
    result = enrich(df, store, on="id", memory=SMALL, transport=transport, metrics=metrics).toArrow()
    assert_same_rows(result, model_join(left, master, "id"))
    total = metrics.collect()
    metrics.close()
    assert total.rows_in == 60_000
    assert total.hits > 20_000
    assert total.sweeps > 4


@pytest.mark.parametrize("transport", ["rows", "keys"])
@pytest.mark.parametrize("how", ["left", "anti"])
def test_streaming_as_batch(spark: SparkSession, tmp_path: Path, transport: Transport, how: str) -> None:
    files = [stream_table("string"), stream_table("string").slice(5, 7), stream_table("string").slice(0, 0)]
    files.append(stream_table("string").slice(3))
    store = MasterStore.build(master_of("string", 2), tmp_path / "s", key="k")
    df = stream(spark, tmp_path / "in", files)
    options: dict[str, Any] = {"memory": SMALL, "algorithm": "sweep", "transport": transport, "how": how}
    name = f"streaming_{transport}_{how}"
    result = to_memory(enrich(df, store, on="k", **options), name, tmp_path / "checkpoint")
    assert_same_rows(result, model_join(pa.concat_tables(files), master_of("string", 2), "k", how))


@pytest.mark.parametrize("transport", ["rows", "keys"])
def test_two_enrichments_in_one_stream(spark: SparkSession, tmp_path: Path, transport: Transport) -> None:
    left = pa.table({"a": [1, 2, 3, None], "b": ["x", "y", None, "z"]})
    one = pa.table({"id": [1, 2], "price": [1.0, 2.0]})
    two = pa.table({"code": ["x", "z", "x"], "shop": ["X", "Z", "XX"]})
    first, second = MasterStore.build(one, tmp_path / "1", key="id"), MasterStore.build(two, tmp_path / "2", key="code")
    df = stream(spark, tmp_path / "in", [left, left])
    options: dict[str, Any] = {"memory": SMALL, "algorithm": "sweep", "transport": transport}
    both = enrich(enrich(df, first, on={"a": "id"}, **options), second, on={"b": "code"}, **options)
    found = gather(both, tmp_path / "checkpoint")
    expected = model_join(model_join(left, one, {"a": "id"}), two, {"b": "code"})
    assert sorted(found) == [0, 1]
    for table in found.values():
        assert_same_rows(table, expected)
