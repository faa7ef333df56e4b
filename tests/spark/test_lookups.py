"""Several lookups in one crossing: a plain loop over the rows gives the same, whatever asks for what."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from semistream import MasterStore
from semistream.errors import FanOutError
from semistream.spark import enrich
from semistream.spark.blocks import BlockSize, TooManyAnswersError, answer_block
from semistream.spark.lookups import CrossingLookup, look_up_all
from semistream.spark.metrics import add_reports
from semistream.spark.prepare import FrameFacts, prepare
from semistream.spark.spec import EnrichSpec, Transport
from tests.spark.streams import SMALL, frame

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

Row = dict[str, Any]
ROWS = 3000


def sales() -> list[Row]:
    rng = random.Random(1)
    return [
        {
            "n": n,
            "product": None if rng.random() < 0.05 else rng.randrange(60),
            "shop": None if rng.random() < 0.05 else f"shop {rng.randrange(12)}",
            "out": rng.random() < 0.1,
            "waited": rng.random() < 0.3,
        }
        for n in range(ROWS)
    ]


PRODUCTS = [{"id": n, "vendor": n % 9, "price": 1.5 * n} for n in range(50)]
VENDORS = [{"id": n, "country": f"country {n}"} for n in range(7)]
SHOPS = [{"name": f"shop {n}", "city": f"city {n}"} for n in range(10)]
TAGS = [{"product": n % 40, "tag": f"tag {n}"} for n in range(70)]  # of a product one or two, or none


def modelled(rows: list[Row], *, many: bool) -> list[tuple[Any, ...]]:
    """Each row by itself: products leave when they miss, shops without a name are not asked, tags let waiters stay."""
    out: list[tuple[Any, ...]] = []
    for row in rows:
        way = not row["out"]
        product = next((one for one in PRODUCTS if way and one["id"] == row["product"]), None)
        found = product is not None if way else None
        way = way and bool(found)
        vendor = next((one for one in VENDORS if product and one["id"] == product["vendor"]), None)
        of_vendor = vendor is not None if way else None
        way = way and row["shop"] is not None
        shop = next((one for one in SHOPS if way and one["name"] == row["shop"]), None)
        of_shop = shop is not None if way else None
        told = (
            row["n"],
            product and product["vendor"],
            product and product["price"],
            found,
            vendor["country"] if vendor else "nowhere",
            of_vendor,
            shop and shop["city"],
            of_shop,
        )
        tags = [one["tag"] for one in TAGS if way and one["product"] == row["product"]] if many else []
        of_tags = (bool(tags) if way else None,) if many else ()
        out += [(*told, tag, *of_tags) for tag in tags or [None]] if many else [told]
    return sorted(out, key=str)


@pytest.mark.parametrize("many", [False, True])
def test_as_a_loop_over_the_rows(spark: SparkSession, tmp_path: Path, many: bool) -> None:
    rows = sales()
    df = frame(spark, pa.Table.from_pylist(rows), 3)
    about = FrameFacts.of(df)

    def asked(name: str, master: list[Row], key: str, by: str, kind: pa.DataType, **more: Any) -> CrossingLookup:
        store = MasterStore.build(pa.Table.from_pylist(master), tmp_path / name, key=key)
        stream = replace(about, schema=pa.schema([("asked", kind)]))
        defaults = more.pop("defaults", None)
        spec = EnrichSpec(on={"asked": key}, memory=SMALL, transport="keys", defaults=defaults, algorithm="sweep")
        prepared = prepare(stream, store, spec)
        return CrossingLookup.of(prepared, (by,), prepared.plan.names, f"status_{name}", **more)

    lookups = [
        asked("products", PRODUCTS, "id", "product", pa.int64(), leaves=True),
        asked("vendors", VENDORS, "id", "vendor", pa.int64(), defaults={"country": "nowhere"}),
        asked("shops", SHOPS, "name", "shop", pa.string(), refuses_null=True),
    ]
    if many:
        lookups.append(asked("tags", TAGS, "product", "product", pa.int64()))
    joined = look_up_all(df, lookups, ~df["out"])
    answers = joined.drop("product", "shop", "out", "waited").collect()
    assert sorted((tuple(row) for row in answers), key=str) == modelled(rows, many=many)


def test_a_row_that_waited_in_vain_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.createDataFrame([(1, False), (9, False), (9, True)], "id long, waited boolean")
    store = MasterStore.build(pa.table({"id": [1, 2], "price": [1.0, 2.0]}), tmp_path / "store", key="id")
    stream = replace(FrameFacts.of(df), schema=pa.schema([("first", pa.int64()), ("second", pa.int64())]))
    once, twice = (
        prepare(stream, store, EnrichSpec(on={name: "id"}, memory=SMALL, transport="keys"))
        for name in ("first", "second")
    )
    first = CrossingLookup.of(once, ("id",), ("price",), "found", leaves=True, unless_given_up=True)
    second = CrossingLookup.of(twice, ("id",), ("again",), "found_again")
    rows = look_up_all(df, [first, second], df["id"] > 0, df["waited"]).collect()
    assert [(row["found"], row["found_again"]) for row in rows] == [(True, True), (False, None), (False, False)]


def test_counters_of_several_crossings_count_once(spark: SparkSession, tmp_path: Path) -> None:
    """The second crossing makes three rows of each, of the one that carries the first crossing's counters too."""
    df = frame(spark, pa.table({"id": list(range(100))}), 4)
    about = replace(FrameFacts.of(df), schema=pa.schema([("asked", pa.int64())]))
    master = {"once": list(range(80)), "thrice": [n for n in range(50) for _ in range(3)]}
    for name, keys in master.items():
        store = MasterStore.build(pa.table({"id": keys, name: keys}), tmp_path / name, key="id")
        prepared = prepare(about, store, EnrichSpec(on={"asked": "id"}, memory=SMALL, transport="keys"))
        df = look_up_all(
            df, [CrossingLookup.of(prepared, ("id",), (name,), f"found_{name}")], carrier=f"counters_{name}"
        )
    rows = df.repartition(3).collect()
    texts = [row[f"counters_{name}"] for row in rows for name in master]
    found = add_reports(text for text in texts if text is not None)
    assert {name: (one.rows_in, one.matched) for name, one in found.items()} == {
        "found_once": (100, 80),
        "found_thrice": (100, 50),
    }


@pytest.mark.parametrize("transport", ["lookups", "keys"])
def test_a_hot_key_is_answered_piece_by_piece(spark: SparkSession, tmp_path: Path, transport: Transport) -> None:
    """More matches than the memory for a block holds: 200 rows with 400 each, beside rows with one."""
    master = pa.table({"id": [0] * 400 + list(range(1, 300)), "price": pa.array(range(699), pa.float64())})
    store = MasterStore.build(master, tmp_path / "store", key="id")
    df = frame(spark, pa.table({"id": [n if n % 4 else 0 for n in range(800)]}), 2)
    if transport == "keys":
        joined = enrich(df, store, on="id", memory=SMALL, transport="keys", algorithm="sweep")
    else:
        stream = replace(FrameFacts.of(df), schema=pa.schema([("asked", pa.int64())]))
        spec = EnrichSpec(on={"asked": "id"}, memory=SMALL, transport="keys", algorithm="sweep")
        prepared = prepare(stream, store, spec)
        joined = look_up_all(df, [CrossingLookup.of(prepared, ("id",), ("price",), "found")], df["id"] >= 0)
    counted = joined.groupBy((joined["id"] == 0).alias("hot")).agg({"*": "count", "price": "sum"}).collect()
    found = {row["hot"]: (row["count(1)"], row["sum(price)"]) for row in counted}
    known = [n for n in range(800) if n % 4 and n < 300]
    assert found[True] == (200 * 400, 200 * sum(range(400)))
    assert found[False] == (600, sum(399 + n for n in known))


def test_one_row_with_too_many_matches_is_an_error() -> None:
    def answer(pieces: Iterable[pa.RecordBatch], most_bytes: int) -> pa.Array:
        raise TooManyAnswersError(list(pieces))

    block = pa.record_batch({"id": [1, 2]})
    with pytest.raises(FanOutError, match=r"one row has more than 67\.1 MB of matches.*multiple='first'"):
        list(answer_block([block], answer, BlockSize([], many=True), 2))


def test_long_keys_make_blocks_small() -> None:
    size = BlockSize([], many=False)
    size._room = 64 << 20
    before = size()
    size.note_keys(pa.record_batch({"key": ["k" * 1000] * 100}))
    assert 1000 * size() <= 64 << 20 < 1000 * before
