"""A decision needs what it names: looked at before it is written; and if it cannot be carried out, withdrawn."""

from __future__ import annotations

import shutil
import signal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from semistream import MasterStore
from semistream.dimensions.dimension import Dimension
from semistream.errors import ArgumentError, SchemaError, SemistreamError, StateError
from semistream.pipeline import Decision
from semistream.pipeline.ledger import Ledger
from semistream.warehouse import SinkError
from tests.pipeline.faults import at, crash
from tests.pipeline.shop import Model, Row, Shop, products, sale
from tests.pipeline.test_crashes import driver
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(shop: Shop, spark: SparkSession, **changes: Any) -> Decision:
    done = shop.pipeline(**changes).run(spark, once=True)
    assert done is not None
    return done


def both(shop: Shop, model: Model, number: int, rows: list[Row | str]) -> None:
    shop.arrive(number, rows)
    model.batch(rows)


def last(shop: Shop) -> int | None:
    return Ledger(shop.root / "state", "sales").last("batches")


class TestBeforeTheDecision:
    @pytest.mark.parametrize("name", ["sales", "Sales", "sales_unmatched", "sales_shed", "sales_quarantine"])
    def test_tables_of_one_name(self, shop: Shop, name: str) -> None:
        other = Dimension.create(
            shop.root / "stores" / "other",
            key=pa.schema({"id": pa.string()}),
            attributes=pa.schema({"name": pa.string()}),
            surrogate="other_sk",
        )
        with pytest.raises(ArgumentError, match=rf"'{name}' would be both the table of .* and the table of dimension"):
            shop.pipeline(dimensions={name: other.path}).check()

    def test_one_table_for_two_dimensions(self, shop: Shop) -> None:
        with pytest.raises(ArgumentError, match="table 'customers' would follow both"):
            shop.pipeline(dimensions={"customers": shop.products}).check()

    def test_a_name_that_the_warehouse_cannot_keep(self, shop: Shop) -> None:
        with pytest.raises(ArgumentError, match="cannot name a directory"):
            shop.pipeline(dimensions={"a/b": shop.customers}).check()

    def test_the_table_of_a_dimension_is_another_one(self, shop: Shop, spark: SparkSession) -> None:
        shop.warehouse().prepare("customers", pa.schema({"id": pa.int64()}))
        shop.arrive(0, [sale(1)])
        with pytest.raises(SchemaError, match=r"customers: the columns of the batch are not those of the table"):
            run(shop, spark)
        assert last(shop) is None

    def test_files_that_the_driver_does_not_see(
        self, shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Tasks wrote on another disk: nothing is decided, and the next run loads all."""
        model = Model()
        both(shop, model, 0, [sale(1), sale(15, customer="c0")])
        run(shop, spark)
        both(shop, model, 1, [sale(n) for n in range(40)])

        def remove() -> None:
            files = sorted((shop.root / "warehouse" / "sales").glob("sales-*b000000001*.parquet"))
            files[0].unlink()

        at(monkeypatch.setattr, {"after_staging": remove})
        with pytest.raises(
            StateError, match=r"a task wrote .*b000000001.* the driver cannot read it .*Nothing is deci"
        ):
            run(shop, spark)
        assert last(shop) == 0
        at(monkeypatch.setattr, {})
        model.agrees(shop.warehouse(), run(shop, spark).totals)

    def test_a_table_that_was_dropped_meanwhile(
        self, shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table, aside = shop.root / "warehouse" / "sales_quarantine" / "_delta_log", shop.root / "aside"
        shop.arrive(0, [sale(1), "poison"])

        def drop() -> None:
            table.rename(aside)

        at(monkeypatch.setattr, {"after_staging": drop})
        with pytest.raises(SinkError, match="sales_quarantine is no Delta table"):
            run(shop, spark)
        assert last(shop) is None

    def test_a_dimension_that_was_built_again(self, shop: Shop, spark: SparkSession) -> None:
        shop.arrive(0, [sale(1)])
        run(shop, spark)
        shutil.rmtree(shop.customers)
        Dimension.create(
            shop.customers,
            key=pa.schema({"customer": pa.string()}),
            attributes=pa.schema({"name": pa.string()}),
            surrogate="customer_sk",
        )
        shop.arrive(1, [sale(2)])
        with pytest.raises(
            StateError, match=r"'customers' of .* follows another dimension than the one that is now at"
        ):
            run(shop, spark)
        assert last(shop) == 0

    @pytest.mark.long
    def test_a_master_that_was_built_again(self, shop: Shop, spark: SparkSession) -> None:
        """Between two batches: rows that wait are looked up again. In a batch that was begun: refused by name."""
        model = Model()
        both(shop, model, 0, [sale(n) for n in range(14)])
        run(shop, spark)
        shutil.rmtree(shop.products)
        MasterStore.build(products(range(6)), shop.products, key="id")  # version 1 again, and p5 is there
        model.prices["p5"] = 6.0
        both(shop, model, 1, [sale(40)])
        rows: list[Row | str] = [sale(n) for n in range(50, 64)]
        shop.arrive(2, rows)
        killed = driver(shop, failpoint="after_pin:2")
        said, _ = killed.communicate(timeout=PATIENCE)
        assert killed.returncode == -signal.SIGKILL, said.decode()
        shutil.rmtree(shop.products)
        MasterStore.build(products(range(7), price=2.0), shop.products, key="id")
        with pytest.raises(StateError, match=r"batch 2 was begun with version 1 of .*built again.*or delete (.*) to"):
            run(shop, spark)
        last = Ledger(shop.root / "state", "sales").newest()
        assert last is not None
        model.agrees(shop.warehouse(), last.totals)
        (shop.root / "state" / "pins" / "000000002.json").unlink()
        again = driver(shop)
        said, _ = again.communicate(timeout=PATIENCE)
        assert again.returncode == 0, said.decode()
        model.prices = {f"p{n}": 2.0 * (n + 1) for n in range(7)}
        model.batch(rows)
        last = Ledger(shop.root / "state", "sales").newest()
        assert last is not None
        model.agrees(shop.warehouse(), last.totals)


class TestUndo:
    def test_of_a_batch(self, shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
        """Rows were released by it, others began to wait, files of it are lost: all come again, once."""
        model = Model()
        both(shop, model, 0, [sale(n) for n in range(14)])
        run(shop, spark)
        MasterStore.open(shop.products).upsert(products([5]))
        model.prices["p5"] = 6.0
        both(shop, model, 1, [*(sale(n) for n in range(20, 41)), "poison"])

        def lose() -> None:
            for file in (shop.root / "warehouse").glob("*/sales-*-b000000001-*.parquet"):
                file.unlink()

        at(monkeypatch.setattr, {"after_decision": lose}, shop.root / "state", 1)
        for _ in range(2):  # the same at every start
            with pytest.raises(SinkError, match=r"b000000001.*cannot be read .* `semistream undo`"):
                run(shop, spark)
        assert last(shop) == 1
        with pytest.raises(ArgumentError, match="batch=0 is not the one decided last, which is 1"):
            shop.pipeline().undo(0)
        assert shop.pipeline().undo(1).writes.batch == 1
        assert last(shop) == 0
        assert [path.name for path in (shop.root / "state" / "withdrawn").iterdir()] == ["batches-000000001-0.json"]
        model.agrees(shop.warehouse(), run(shop, spark).totals)
        with pytest.raises(StateError, match="batch 1 of 'sales' is done"):
            shop.pipeline().undo()
        assert run(shop, spark).writes.batch == 1

    @pytest.mark.long
    def test_of_work_beside_the_batches(self, shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
        """Held rows are released at rest; before it there was such work, and then a batch."""
        model = Model()
        both(shop, model, 0, [sale(n) for n in range(14)])
        run(shop, spark)
        MasterStore.open(shop.products).upsert(products([5]))
        model.prices["p5"] = 6.0
        model.batch([])
        run(shop, spark)  # side 0
        both(shop, model, 1, [sale(n) for n in range(20, 34)])
        run(shop, spark)
        MasterStore.open(shop.products).upsert(products([6]))
        model.prices["p6"] = 7.0
        model.batch([])
        at(monkeypatch.setattr, {"after_decision": crash})
        with pytest.raises(SemistreamError, match="CrashError"):
            run(shop, spark)  # side 1
        at(monkeypatch.setattr, {})
        for file in (shop.root / "warehouse").glob("*/sales.side*-s000000001-*.parquet"):
            file.unlink()
        with pytest.raises(SinkError, match="semistream undo"):
            run(shop, spark)
        assert shop.pipeline().undo().counts["released"] > 0
        model.agrees(shop.warehouse(), run(shop, spark).totals)

    @pytest.mark.parametrize("point", ["warehouse.table_written", "after_commit"])
    def test_not_of_what_is_seen(
        self, shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, point: str
    ) -> None:
        model = Model()
        both(shop, model, 0, [*(sale(n) for n in range(14)), "poison"])
        at(monkeypatch.setattr, {point: crash})
        with pytest.raises(SemistreamError, match="CrashError"):
            run(shop, spark)
        at(monkeypatch.setattr, {})
        with pytest.raises(StateError, match=r"batch 0 of 'sales' is in sales.* already"):
            shop.pipeline().undo()
        model.agrees(shop.warehouse(), run(shop, spark).totals)

    def test_nothing_is_there(self, shop: Shop) -> None:
        with pytest.raises(StateError, match="has decided nothing"):
            shop.pipeline().undo()
