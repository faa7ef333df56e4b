"""Pipelines from files to tables, under real Spark, against the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from semistream import MasterStore
from semistream.dimensions.dimension import Dimension
from semistream.errors import BadRecordsError, MatchRateError, UnmatchedRowError
from semistream.pipeline import Decision, Pipeline, lookup, source
from semistream.pipeline.status import status_of
from semistream.warehouse import ForeignCheckpointError, StaleWriterError
from tests.pipeline.shop import SALE, Model, Row, Shop, products, sale

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POISON: list[Row | str] = [
    '{"sale_id": 1, "product": ',
    '{"sale_id": "no number", "product": "p1"}',
    sale(900, sale_id=None),
]


def run(shop: Shop, spark: SparkSession, **changes: Any) -> Decision:
    """All that is there, once."""
    done = shop.pipeline(**changes).run(spark, once=True)
    assert done is not None
    return done


class TestTheModel:
    def test_several_batches(self, shop: Shop, spark: SparkSession) -> None:
        model = Model()
        files: list[list[Row | str]] = [
            [sale(n) for n in range(40)],
            [*(sale(n) for n in range(30, 60)), *POISON, sale(77, customer=None), sale(55, quantity=9)],
        ]
        for number, rows in enumerate(files):
            shop.arrive(number, rows)
            model.batch(rows)
        done = run(shop, spark)
        assert model.held
        assert model.duplicates
        model.agrees(shop.warehouse(), done.totals)
        # The missing products arrive: p5 now, p6 never. Held sales of p5 follow, with the next file or without one.
        MasterStore.open(shop.products).upsert(products([5]))
        model.prices["p5"] = 6.0
        shop.arrive(2, [sale(100), sale(101), sale(5)])
        model.batch([sale(100), sale(101), sale(5)])
        done = run(shop, spark)
        assert done.counts["released"] > 0
        model.agrees(shop.warehouse(), done.totals)
        # Nothing new: nothing changes.
        before = shop.warehouse().read("sales").num_rows
        assert run(shop, spark).totals == done.totals
        assert shop.warehouse().read("sales").num_rows == before

    def test_released_at_rest(self, shop: Shop, spark: SparkSession) -> None:
        model = Model()
        rows: list[Row | str] = [sale(n) for n in range(14)]
        shop.arrive(0, rows)
        model.batch(rows)
        run(shop, spark)
        MasterStore.open(shop.products).upsert(products([5, 6]))
        model.prices |= {"p5": 6.0, "p6": 7.0}
        model.batch([])
        done = run(shop, spark)  # no file has come
        assert (done.counts["rows_in"], done.counts["released"], done.totals["held"]) == (0, 3, 0)
        assert 0 < done.driver_bytes <= shop.pipeline().driver_memory
        told = dict(status_of(shop.pipeline().state, shop.pipeline().name, {}).lines())
        assert told["driver"].endswith("used for rows that wait, new members and keys")
        model.agrees(shop.warehouse(), done.totals)

    def test_retry(self, shop: Shop, spark: SparkSession) -> None:
        rows: list[Row | str] = [sale(n, product="p1", quantity=1) for n in range(9)]
        shop.arrive(0, rows)
        first = run(shop, spark)
        assert first.totals["unmatched"] == 3
        pipeline = shop.pipeline()
        told = dict(status_of(pipeline.state, pipeline.name, {"products": shop.products}).lines())
        assert first.lookups["products"]["peak_bytes"] > 0
        assert "100.0% matched" in told["products"]
        assert "B used, version " in told["products"]
        assert shop.pipeline().retry(spark) is not None  # the shop is still unknown
        assert shop.warehouse().read("sales_unmatched").num_rows == 3
        import pyarrow as pa

        MasterStore.open(shop.shops).upsert(pa.table({"number": pa.array([2], pa.int32()), "city": ["Lima"]}))
        done = shop.pipeline().retry(spark)
        assert done is not None
        assert (done.counts["retried"], done.counts["enriched"], done.totals["unmatched"]) == (3, 3, 0)
        assert shop.warehouse().read("sales_unmatched").num_rows == 0
        assert sorted(shop.warehouse().read("sales").column("sale_id").to_pylist()) == list(range(9))
        assert shop.pipeline().retry(spark) is None
        assert done.totals["rows_in"] == done.totals["enriched"] == 9

    def test_an_inferred_member_is_completed(self, shop: Shop, spark: SparkSession) -> None:
        import pyarrow as pa

        shop.arrive(0, [sale(1)])
        run(shop, spark)
        [member] = [row for row in shop.warehouse().read("customers").to_pylist() if row["customer"] == "c1"]
        assert (member["inferred"], member["name"]) == (True, None)
        Dimension.open(shop.customers).apply(pa.table({"_op": ["upsert"], "customer": ["c1"], "name": ["Ada"]}))
        shop.arrive(1, [sale(8)])
        run(shop, spark)
        [now] = [row for row in shop.warehouse().read("customers").to_pylist() if row["customer"] == "c1"]
        assert (now["customer_sk"], now["inferred"], now["name"]) == (member["customer_sk"], False, "Ada")


class TestStops:
    """What must not be loaded stops the run, and nothing of the batch is written."""

    def stopped(self, shop: Shop, spark: SparkSession, kind: type[Exception], words: str, **changes: Any) -> None:
        with pytest.raises(kind, match=words):
            run(shop, spark, **changes)
        assert shop.warehouse().read("sales").num_rows == 0

    def test_bad_records(self, shop: Shop, spark: SparkSession) -> None:
        shop.arrive(0, [sale(1), *POISON])
        self.stopped(shop, spark, BadRecordsError, r"3 of 4 rows .*cannot be read.*max_bad_rate=0.5", max_bad_rate=0.5)
        run(shop, spark, max_bad_rate=0.9)
        found = shop.warehouse().read("sales_quarantine").to_pylist()
        assert sorted(row["reason"] for row in found) == [
            "sale_id is NULL, part of the business key",
            "the record cannot be read as it is declared",
            "the record cannot be read as it is declared",
        ]
        assert all("0000.json" in row["source"] and row["batch"] == 0 and row["time"] for row in found)
        assert {row["record"] for row in found} >= {POISON[0], POISON[1]}

    def test_a_match_rate_and_a_row_that_must_match(self, shop: Shop, spark: SparkSession) -> None:
        def simple(**options: Any) -> Pipeline:
            return Pipeline(
                source("json", shop.incoming, schema=SALE),
                [lookup(shop.products, on={"product": "id"}, **options)],
                shop.warehouse(),
                table="sales",
                state=shop.root / "state",
                memory="32MB",
            )

        shop.arrive(0, [sale(n) for n in range(14)])
        with pytest.raises(MatchRateError, match="only 10 of 14 rows"):
            simple(min_match_rate=0.9).run(spark, once=True)
        with pytest.raises(UnmatchedRowError, match=r"4 of 14 rows .*products: no row for p"):
            simple(on_miss="fail").run(spark, once=True)
        assert shop.warehouse().read("sales").num_rows == 0
        done = simple(on_miss="drop").run(spark, once=True)
        assert done is not None
        assert (done.counts["enriched"], done.counts["unmatched"]) == (10, 4)

    def test_hot_keys_are_kept_in_the_state(self, shop: Shop, spark: SparkSession) -> None:
        shop.arrive(0, [sale(n) for n in range(14)])
        found = Pipeline(
            source("json", shop.incoming, schema=SALE),
            [lookup(shop.products, on={"product": "id"}, algorithm="sweep", name="prices/today", on_miss="drop")],
            shop.warehouse(),
            table="sales",
            state=shop.root / "state",
            memory="32MB",
        ).run(spark, once=True)
        assert found is not None
        [kept] = (shop.root / "state" / "hot").iterdir()
        assert (kept.name, kept.stat().st_mode & 0o777) == ("prices%2Ftoday.keys", 0o600)


class TestOwnership:
    def test_a_second_driver(self, shop: Shop, spark: SparkSession) -> None:
        shop.arrive(0, [sale(1)])
        running = shop.pipeline().start(spark)
        try:
            with pytest.raises(StaleWriterError, match="another driver works with"):
                shop.pipeline().run(spark, once=True)
        finally:
            running.stop()

    def test_the_checkpoint_is_deleted(self, shop: Shop, spark: SparkSession) -> None:
        import shutil

        shop.arrive(0, [sale(1)])
        run(shop, spark)
        shutil.rmtree(shop.root / "state" / "checkpoint")
        shop.arrive(1, [sale(2)])
        with pytest.raises(ForeignCheckpointError, match=r"the checkpoint of 'sales' is gone.*--replaces"):
            run(shop, spark)
        shutil.rmtree(shop.root / "state")  # all of it: the warehouse remembers
        with pytest.raises(ForeignCheckpointError, match="another checkpoint"):
            run(shop, spark)
        assert shop.warehouse().read("sales").num_rows == 1


def test_several_rows_for_one(shop: Shop, spark: SparkSession) -> None:
    """A key with several rows gives several rows of the table, and its sale is one row of the account."""
    import pyarrow as pa

    parts = pa.table({"product": ["p1", "p1", "p2"], "part": ["a", "b", "c"]})
    MasterStore.build(parts, shop.root / "stores" / "parts", key="product")
    shop.arrive(0, [sale(1), sale(2), sale(3), sale(8)])  # p1, p2, p3, p1
    pipeline = Pipeline(
        source("json", shop.incoming, schema=SALE),
        [lookup(shop.root / "stores" / "parts", on="product", on_miss="drop")],
        shop.warehouse(),
        table="sales",
        state=shop.root / "state",
        memory="32MB",
    )
    done = pipeline.run(spark, once=True)
    assert done is not None
    assert (done.counts["rows_in"], done.counts["enriched"], done.counts["unmatched"]) == (4, 3, 1)
    found = [(row["sale_id"], row["part"]) for row in shop.warehouse().read("sales").to_pylist()]
    assert sorted(found) == [(1, "a"), (1, "b"), (2, "c"), (8, "a"), (8, "b")]
