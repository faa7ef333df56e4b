"""Pipelines whose stream is too fast: what is shed waits, and after `reconcile` it is as if nothing had been shed."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from semistream import MasterStore, Shed
from semistream.errors import ArgumentError, SchemaError
from semistream.pipeline import Decision, Pipeline, compute, load, lookup, source
from semistream.pipeline.relief import Relief, share_of
from semistream.pipeline.routes import TOO_MANY
from semistream.pipeline.status import status_of
from semistream.warehouse.contract import BatchWrites, Warehouse
from semistream.warehouse.delta_tables import DeltaWarehouse
from semistream.warehouse.postgres import PostgresWarehouse
from tests.pipeline.shop import SALE, TOO_FAST, Model, Row, Shop, sale
from tests.pipeline.test_crashes import driver, ended
from tests.shedding.clocks import Clock
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERY = "00000000-0000-0000-0000-000000000001"
FILES: list[list[Row | str]] = [[sale(n) for n in range(100 * k, 100 * k + 100)] for k in range(5)]


def decision(begun: float, seconds: float, rows: int, shed: int = 0) -> Decision:
    """A batch of the past."""
    counts = {"rows_in": rows, "shed": shed}
    made = Decision(BatchWrites("sales", QUERY, 0, ()), {}, counts, {}, {})
    return replace(made, seconds=seconds, decided_at=begun + seconds)


class TestShare:
    @pytest.mark.parametrize(
        "recent, share",
        [
            ([], 1.0),
            ([decision(0, 1, 1000)], 1.0),  # nobody knows how fast they came
            ([decision(10, 1, 1000), decision(0, 1, 500)], 1.0),  # 100 a second
            ([decision(2, 1, 1000), decision(0, 1, 500)], 0.2),  # 500 a second
            ([decision(2, 1, 0), decision(0, 1, 500)], 1.0),  # nothing came
            ([decision(2, 1, 1000), decision(3, 1, 500)], 1.0),  # a clock was set back
        ],
    )
    def test_a_rate_is_given(self, recent: list[Decision], share: float) -> None:
        assert share_of(Shed("keep_w", max_rows_per_second=100), recent, 10.0) == pytest.approx(share)

    @pytest.mark.parametrize(
        "recent, share",
        [
            ([decision(4, 4, 1000), decision(0, 4, 1000)], 1.0),  # a batch may take ten seconds
            ([decision(20, 20, 5000), decision(0, 20, 5000)], 0.5),  # 250 rows a second are 2,500 in ten
            # The one before shed so much that it was slow: what it could do before is what counts.
            ([decision(40, 1, 5000, 4990), decision(20, 20, 5000)], 0.5),
            ([decision(2, 0, 5000), decision(0, 0, 5000)], 1.0),  # nothing is known
        ],
    )
    def test_by_what_it_can_do(self, recent: list[Decision], share: float) -> None:
        assert share_of(Shed("keep_w"), recent, 10.0) == pytest.approx(share)

    def test_a_stream_that_stays_too_fast_settles(self) -> None:
        """Rows come at 1,000 a second; a batch takes 2 s and 2 ms a row, so 500 a second is all that it can ever do."""
        now, waiting, recent, kept = 0.0, 1000.0, list[Decision](), list[float]()
        for _ in range(60):
            share = share_of(Shed("keep_w"), recent[:10], 10.0)
            rows = int(waiting)
            seconds = 2 + 0.002 * rows * share
            recent.insert(0, decision(now, seconds, rows, int(rows * (1 - share))))
            kept.append(seconds)
            now += seconds
            waiting = 1000 * seconds
        assert 8 < kept[-1] < 12
        assert max(kept[-10:]) - min(kept[-10:]) < 0.5


class TestChoosing:
    """Which rows of a batch are too many, in real tasks."""

    @pytest.fixture
    def frame(self, spark: SparkSession) -> Any:
        return spark.range(0, 1000, 1, 2).selectExpr("id", "id % 10 AS product")

    def chosen(self, frame: Any, relief: Relief, share: float = 0.3) -> list[Any]:
        made = relief.mark(frame, share, {"products": 1}, (7, 1), 1.0)
        return list(made.filter(f"NOT {TOO_MANY}").collect())

    @pytest.fixture
    def relief(self, tmp_path: Path) -> Any:
        """Products 0 to 4 have a row each, product 3 has four; the others have none."""
        rows = pa.table({"id": [0, 1, 2, 3, 3, 3, 3, 4], "price": [1.0] * 8})
        MasterStore.build(rows, tmp_path / "products", key="id")

        def made(strategy: str, **more: Any) -> Relief:
            steps = [lookup(tmp_path / "products", on={"product": "id"}, **more)]
            return Relief.of(Shed(strategy), steps, ["id", "product"], 64 << 20, 2)

        return made

    def test_the_first(self, frame: Any, relief: Any) -> None:
        rows = self.chosen(frame, relief("keep_w"))
        assert sorted(row["id"] for row in rows) == [*range(150), *range(500, 650)]

    def test_those_with_the_most_matches(self, frame: Any, relief: Any) -> None:
        rows = self.chosen(frame, relief("topw"), 0.1)
        assert {row["product"] for row in rows} == {3}
        # Without a match a row is loaded all the same, or it is not: then it goes first.
        matched = {row["product"] for row in self.chosen(frame, relief("topw", on_miss="drop"), 0.5)}
        assert matched == {0, 1, 2, 3, 4}

    @pytest.mark.parametrize("strategy", ["sample_w", "cluster_sample"])
    def test_weights(self, strategy: str, frame: Any, relief: Any) -> None:
        rows = self.chosen(frame, relief(strategy), 0.2)
        assert len(rows) == pytest.approx(200, abs=2)
        if strategy == "sample_w":
            assert sum(row["_weight"] for row in rows) == pytest.approx(1000)
        else:  # rows of output: 1,000 rows, of which those of product 3 become four
            made = sum(row["_weight"] * (4 if row["product"] == 3 else 1) for row in rows)
            assert made == pytest.approx(1300, rel=0.15)

    def test_nothing_is_too_much(self, frame: Any, relief: Any) -> None:
        assert relief("keep_w").mark(frame, 1.0, {}, (), 1.0).columns == frame.columns
        assert relief("sample_w").mark(frame, 1.0, {}, (), 1.0).first()["_weight"] == 1.0


def streamed(pipeline: Pipeline, spark: SparkSession, rows: int) -> Decision:
    """As a stream, until so many rows have come; a batch a second, however long it takes."""
    clock = pipeline.clock = Clock(time.time())  # rows that it holds are looked at by drivers with clocks of their own
    done: list[Decision] = []

    def told(decision: Decision) -> None:
        clock.now += 1
        done.append(decision)

    running = pipeline.start(spark, told=told)
    try:

        def all_came() -> bool:
            running.wait(0)  # raises what stopped it
            return bool(done) and done[-1].totals["rows_in"] == rows

        wait_until(all_came)
    finally:
        running.stop()
    return done[-1]


def facts(warehouse: Warehouse) -> list[str]:
    """What does not depend on the order in which customers came."""
    rows = warehouse.read("sales").select(["sale_id", "product", "city", "quantity", "revenue"]).to_pylist()
    return sorted(map(repr, rows))


def expected(*files: list[Row | str]) -> Model:
    """The same without shedding."""
    model = Model()
    for rows in files:
        model.batch(rows)
    return model


def agrees(shop: Shop, totals: dict[str, int]) -> None:
    """Nothing is missing and nothing twice."""
    model = expected(*FILES)
    names = ("sale_id", "product", "city", "quantity", "revenue")
    assert facts(shop.warehouse()) == sorted(repr({name: row[name] for name in names}) for row in model.facts)
    assert totals["shed"] == shop.warehouse().read("sales_shed").num_rows == 0
    assert totals["held"] == len(model.held)
    assert totals["filtered"] == model.filtered
    aside = shop.warehouse().read("sales_unmatched").column("sale_id").to_pylist()
    assert sorted(aside) == sorted(row["sale_id"] for row in model.unmatched)


class TestReconciled:
    def test_as_if_nothing_was_shed(self, shop: Shop, spark: SparkSession) -> None:
        for number, rows in enumerate(FILES):
            shop.arrive(number, rows)
        pipeline = shop.pipeline(shed=TOO_FAST)
        last = streamed(pipeline, spark, 500)
        waiting = last.totals["shed"]
        assert waiting == 3 * 99  # of each batch after the first two, a row goes on
        assert shop.warehouse().read("sales_shed").num_rows == waiting
        told = dict(status_of(pipeline.state, pipeline.name, {}).lines())
        assert told["shed"] == f"{waiting:,}"
        assert sum(last.totals[name] for name in ("enriched", "unmatched", "held", "filtered", "shed")) == 500
        done = pipeline.reconcile(spark)
        assert done is not None
        assert done.counts["reconciled"] == waiting
        agrees(shop, done.totals)
        assert pipeline.reconcile(spark) is None
        # What is run to its end, and not as a stream, is never late.
        shop.arrive(5, [sale(n) for n in range(500, 600)])
        end = pipeline.run(spark, once=True)
        assert end is not None
        assert end.counts["shed"] == 0

    @pytest.mark.long
    @pytest.mark.parametrize("point", ["after_staging", "after_decision", "after_commit"])
    def test_killed(self, point: str, shop: Shop, spark: SparkSession) -> None:
        for number, rows in enumerate(FILES):
            shop.arrive(number, rows)
        assert streamed(shop.pipeline(shed=TOO_FAST), spark, 500).totals["shed"] == 3 * 99
        ended(shop, driver(shop, "reconcile", failpoint=point), -signal.SIGKILL)
        pipeline = shop.pipeline(shed=TOO_FAST)
        pipeline.reconcile(spark)
        last = status_of(pipeline.state, pipeline.name, {}).last
        assert last is not None
        agrees(shop, last.totals)

    @pytest.mark.parametrize("kind", ["delta", pytest.param("postgres", marks=pytest.mark.long)])
    def test_weights(self, kind: str, shop: Shop, spark: SparkSession, request: pytest.FixtureRequest) -> None:
        """Weights go with a row wherever it waits, and count every row once, before and after."""
        sink: Warehouse = DeltaWarehouse(shop.root / "warehouse")
        if kind == "postgres":
            address = request.getfixturevalue("postgres")
            sink = PostgresWarehouse(address, staging=shop.root / "staging", schema=shop.root.name)
        for number, rows in enumerate(FILES):
            shop.arrive(number, rows)
        pipeline = Pipeline(
            source("json", shop.incoming, schema=SALE, maxFilesPerTrigger=1),
            [
                lookup(shop.products, on={"product": "id"}, columns=["price"], on_miss="hold"),
                lookup(shop.shops, on={"shop": "number"}, on_miss="redirect"),
                compute(revenue="quantity * price"),
            ],
            sink,
            table="sales",
            state=shop.root / "state",
            memory="64MB",
            shed=Shed("sample_w", max_rows_per_second=20),
        )
        last = streamed(pipeline, spark, 500)
        assert last.totals["shed"] == 3 * 80  # 20 rows per second, of 100
        # The masters are completed: what waited and what was put aside comes too, with the weights that it had.
        MasterStore.open(shop.products).upsert(pa.table({"id": ["p5", "p6"], "price": [6.0, 7.0]}))
        MasterStore.open(shop.shops).upsert(pa.table({"number": pa.array([2], pa.int32()), "city": ["Lima"]}))
        assert pipeline.retry(spark) is not None
        loaded = sink.read("sales")
        assert sum(loaded.column("_weight").to_pylist()) == pytest.approx(500)
        assert loaded.num_rows == 500 - last.totals["shed"]
        done = pipeline.reconcile(spark)
        assert done is not None
        loaded = sink.read("sales")
        assert sorted(loaded.column("sale_id").to_pylist()) == list(range(500))
        assert sum(loaded.column("_weight").to_pylist()) == pytest.approx(500)


class TestDeclared:
    TEXT = """\
state = "state"

[source]
format = "json"
path = "incoming"
schema = { sale_id = "bigint", product = "string" }

[[step]]
lookup = "stores/products"
on = { product = "id" }

[sink]
delta = "warehouse"
table = "sales"

[shed]
strategy = "topw"
max_rows_per_second = 50_000
"""

    def written(self, shop: Shop, text: str) -> Path:
        path = shop.root / "sales.toml"
        path.write_text(text, encoding="utf-8")
        return path

    def test_in_a_file(self, shop: Shop) -> None:
        pipeline = load(self.written(shop, self.TEXT))
        assert pipeline.shed == Shed("topw", max_rows_per_second=50_000)
        assert "shed by topw into sales_shed, above 50,000 rows/s" in pipeline.check()
        slower = load(self.written(shop, self.TEXT.replace("max_rows_per_second = 50_000", "seed = 3")))
        assert "shed by topw into sales_shed, where a batch would take more than 10 s" in slower.check()

    @pytest.mark.parametrize(
        "old, new, words",
        [
            ('"topw"', '"best"', "line 17: strategy='best'.*'keep_w', 'sample_w', 'topw'"),
            ('strategy = "topw"', "", 'line 16: shed needs a strategy, such as strategy = "topw"'),
            ("50_000", "0", "line 18: max_rows_per_second=0 must be a number above 0"),
            (
                "max_rows_per_second",
                "most",
                "line 18: shed has no setting 'most'; it has strategy, max_rows_per_second",
            ),
        ],
    )
    def test_what_is_wrong(self, old: str, new: str, words: str, shop: Shop) -> None:
        with pytest.raises(ArgumentError, match=words):
            load(self.written(shop, self.TEXT.replace(old, new)))

    def test_no_table(self, shop: Shop) -> None:
        text = 'shed = "topw"\n' + self.TEXT.partition("[shed]")[0]
        with pytest.raises(ArgumentError, match=r"line 1: shed = 'topw' must be a table.*strategy = \"topw\""):
            load(self.written(shop, text))

    def test_in_python(self, shop: Shop, spark: SparkSession) -> None:
        with pytest.raises(ArgumentError, match="a pipeline keeps shed rows in a table of its own; leave to= out"):
            shop.pipeline(shed=Shed("topw", to=shop.root / "shed"))
        with pytest.raises(ArgumentError, match=r"shed='topw' must be a semistream.Shed"):
            shop.pipeline(shed="topw")
        with pytest.raises(SchemaError, match="has a column 'quantity' already"):
            shop.pipeline(shed=Shed("sample_w", weight_column="quantity")).check()
        shop.arrive(0, [sale(1)])
        shop.pipeline().run(spark, once=True)
        with pytest.raises(ArgumentError, match="'sales' sheds no rows"):
            shop.pipeline().reconcile(spark)
