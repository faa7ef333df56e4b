"""Half-states, replays, killed workers, foreign checkpoints, poison and full disks: what is left equals the model."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from semistream import MasterStore
from semistream.errors import SemistreamError, UnmatchedRowError
from semistream.pipeline import Decision, Pipeline, lookup, source
from semistream.warehouse import ForeignCheckpointError, PostgresWarehouse
from tests.pipeline.faults import CrashError, at, crash
from tests.pipeline.shop import SALE, Model, Row, Shop, products, sale

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLES = ("sales", "sales_unmatched", "sales_quarantine", "customers")


def run(shop: Shop, spark: SparkSession, **changes: Any) -> Decision:
    done = shop.pipeline(**changes).run(spark, once=True)
    assert done is not None
    return done


def both(shop: Shop, model: Model, number: int, rows: list[Row | str]) -> None:
    """A file arrives in the shop, and goes through the model."""
    shop.arrive(number, rows)
    model.batch(rows)


def prints(shop: Shop) -> dict[str, str]:
    """A hash of the sorted rows of every table."""
    found = {}
    for table in TABLES:
        rows = sorted(map(repr, shop.warehouse().read(table).to_pylist()))
        found[table] = hashlib.sha256("\n".join(rows).encode()).hexdigest()
    return found


def uncommit(shop: Shop, number: int) -> None:
    """Spark forgets that it has done a batch."""
    for name in (str(number), f".{number}.crc"):
        (shop.root / "state" / "checkpoint" / "commits" / name).unlink(missing_ok=True)


class TestHalfStates:
    def test_converge(self, shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each batch stops at another place of being carried out; what is begun there is finished by the next run."""
        model = Model()
        for number, point in enumerate(
            ("after_decision", "after_dimensions", "warehouse.table_written", "after_commit")
        ):
            rows: list[Row | str] = [sale(n) for n in range(10 * number, 10 * number + 14)]
            both(shop, model, number, [*rows, sale(900 + number, customer=f"new{number}", quantity=1), "poison"])
            at(monkeypatch.setattr, {point: crash}, shop.root / "state", number)
            running = shop.pipeline().start(spark, once=True)
            try:
                with pytest.raises(SemistreamError, match="CrashError"):
                    running.wait()
                assert isinstance(running.error, CrashError)
                assert running.release() is None  # nothing is built on a batch that is half there
            finally:
                running.stop()
            at(monkeypatch.setattr, {})
            model.agrees(shop.warehouse(), run(shop, spark).totals)
        assert not list((shop.root / "state" / "staging").glob("*"))

    def test_the_same_batch_three_times(self, shop: Shop, spark: SparkSession) -> None:
        model = Model()
        for number in range(2):
            both(shop, model, number, [*(sale(n) for n in range(20 * number, 20 * number + 30)), "poison"])
        done = run(shop, spark)
        model.agrees(shop.warehouse(), done.totals)
        first = prints(shop)
        for _ in range(3):
            uncommit(shop, 1)
            MasterStore.open(shop.products).upsert(products([1], price=7.0))  # and the master moves on
            again = run(shop, spark)
            assert prints(shop) == first
            assert again.totals == done.totals

    @pytest.mark.long
    def test_a_master_that_lacks_rows_is_mended(self, shop: Shop, spark: SparkSession) -> None:
        """on_miss='fail' tells to add the rows; then the batch that failed must read them."""
        pipeline = Pipeline(
            source("json", shop.incoming, schema=SALE),
            [lookup(shop.products, on={"product": "id"}, on_miss="fail")],
            shop.warehouse(),
            table="sales",
            state=shop.root / "state",
            memory="32MB",
        )
        shop.arrive(0, [sale(n) for n in range(14)])
        with pytest.raises(UnmatchedRowError):
            pipeline.run(spark, once=True)
        MasterStore.open(shop.products).upsert(products([5, 6]))
        done = pipeline.run(spark, once=True)
        assert done is not None
        assert done.totals["enriched"] == 14


class TestOwnership:
    @pytest.mark.long
    def test_another_state_takes_nothing_away(self, shop: Shop, spark: SparkSession) -> None:
        """A new state directory on a warehouse that is there: refused, and the files of its tables stay."""
        shop.arrive(0, [sale(1), sale(15)])
        run(shop, spark)
        shop.arrive(1, [sale(30), sale(31)])  # of customers that are there: these files the tasks have written
        run(shop, spark)
        first = prints(shop)
        (shop.root / "state").rename(shop.root / "before")
        with pytest.raises(ForeignCheckpointError, match="another checkpoint"):
            run(shop, spark)
        assert prints(shop) == first
        shutil.rmtree(shop.root / "state")
        (shop.root / "before").rename(shop.root / "state")
        assert run(shop, spark).totals["rows_in"] == 4
        assert prints(shop) == first

    @pytest.mark.long
    def test_two_pipelines_into_one_table(self, shop: Shop, spark: SparkSession) -> None:
        """One's name is the beginning of the other's, and it has done less."""
        other = Shop(shop.root / "other").open()

        def load(at: Shop, name: str) -> None:
            Pipeline(
                source("json", at.incoming, schema=SALE, maxFilesPerTrigger=1),
                [lookup(shop.products, on={"product": "id"}, on_miss="null")],
                shop.warehouse(),
                table="sales",
                state=at.root / "state",
                name=name,
                memory="32MB",
            ).run(spark, once=True)

        for number in range(3):
            other.arrive(number, [sale(number)])
        load(other, "sales of Oslo")
        shop.arrive(0, [sale(100)])
        load(shop, "sales")
        load(shop, "sales")
        assert sorted(shop.warehouse().read("sales").column("sale_id").to_pylist()) == [0, 1, 2, 100]

    def test_a_replaced_query_keeps_what_waits_and_what_was_seen(self, shop: Shop, spark: SparkSession) -> None:
        model = Model()
        both(shop, model, 0, [sale(n) for n in range(14)])
        both(shop, model, 1, [sale(n) for n in range(10, 24)])
        run(shop, spark)
        former = json.loads((shop.root / "state" / "owner.json").read_text())["query"]
        shutil.rmtree(shop.root / "state" / "checkpoint")
        for path in shop.incoming.glob("*.json"):
            path.unlink()  # only new rows come in
        with pytest.raises(ForeignCheckpointError, match=f"--replaces {former}"):
            run(shop, spark)
        MasterStore.open(shop.products).upsert(products([5]))
        model.prices["p5"] = 6.0
        for number in (2, 3):  # duplicates of before, and of the first new batch
            both(shop, model, number, [sale(n) for n in (1, 15, 30, 31, 36)])
        done = shop.pipeline().run(spark, once=True, replaces=former)
        assert done is not None
        model.agrees(shop.warehouse(), done.totals)
        MasterStore.open(shop.products).upsert(products([6]))
        model.prices["p6"] = 7.0
        model.batch([])
        model.agrees(shop.warehouse(), run(shop, spark).totals)


@pytest.mark.long
def test_a_worker_is_killed(shop: Shop, spark: SparkSession) -> None:
    """The task is tried again; its files of the first try belong to nobody."""
    model = Model()
    rows: list[Row | str] = [sale(n) for n in range(60)]
    both(shop, model, 0, rows)
    flag = str(shop.root / "killed")

    def once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if not os.path.exists(flag):
            Path(flag).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def stream(session: SparkSession) -> DataFrame:
        found = source("json", shop.incoming, schema=SALE).read(session).select(*SALE)
        return found.mapInArrow(once, found.schema)

    pipeline = shop.pipeline()
    pipeline.source = stream
    done = pipeline.run(spark, once=True)
    assert os.path.exists(flag)
    assert done is not None
    model.agrees(shop.warehouse(), done.totals)


def test_poison(shop: Shop, spark: SparkSession) -> None:
    """Bytes that are no UTF-8, broken JSON, a field of 50 MB: each in quarantine, with a reason, the others loaded."""
    good: list[Row | str] = [sale(n) for n in range(5)]
    lines = [json.dumps(row).encode() for row in good]
    lines += [
        b'{"sale_id": 70, "product": "p\xff\xfe1", "shop": 0, "customer": "c1", "quantity": 1}',
        b'{"sale_id": 71, "product": "p1", ',
        b"\x00\x01\x02",
        json.dumps(sale(72, customer="x" * 2_000_000)).encode(),
        json.dumps(sale(73, customer="x" * 50_000_000)).encode(),
    ]
    (shop.incoming / "0000.json").write_bytes(b"\n".join(lines) + b"\n")
    done = run(shop, spark)
    model = Model()
    model.batch([*good, "bad bytes", "broken", "no text", "long", "very long"])
    model.agrees(shop.warehouse(), done.totals)
    found = shop.warehouse().read("sales_quarantine").to_pylist()
    assert all(row["reason"] and "0000.json" in row["source"] for row in found)
    reasons = sorted(row["reason"] for row in found)
    assert any("customer is longer than 1,048,576 bytes" in reason for reason in reasons), reasons
    assert max(len(row["record"] or "") for row in found) <= 1 << 20


def test_late_and_twice(shop: Shop, spark: SparkSession) -> None:
    """Sales come before their product, again and again; it arrives three batches later: each is loaded once."""
    model = Model()
    for number in range(3):
        both(shop, model, number, [sale(6), sale(13), sale(13), sale(100 + number), sale(6 + 21 * number)])
    both(shop, model, 3, [])  # a file without rows is a batch too
    done = run(shop, spark)
    assert done.totals["held"] == len(model.held) > 3
    model.agrees(shop.warehouse(), done.totals)
    MasterStore.open(shop.products).upsert(products([6]))
    model.prices["p6"] = 7.0
    both(shop, model, 4, [sale(6), sale(34)])
    done = run(shop, spark)
    model.agrees(shop.warehouse(), done.totals)
    assert shop.warehouse().read("sales").column("sale_id").to_pylist().count(6) == 1


@pytest.mark.long
def test_a_full_disk(shop: Shop, spark: SparkSession) -> None:
    """No file may grow past a limit, wherever the driver writes: a clear error, and it goes on when there is room."""
    model = Model()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    both(shop, model, 0, [sale(n) for n in range(30)])
    failed = []
    for limit in (0, 300, 1_500, 3_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            run(shop, spark)
        except (SemistreamError, OSError) as error:
            failed.append(str(error))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(failed) >= 3
    assert all("File too large" in text or "No space" in text for text in failed), failed
    model.agrees(shop.warehouse(), run(shop, spark).totals)


def test_postgres(shop: Shop, spark: SparkSession, request: pytest.FixtureRequest) -> None:
    def sink() -> PostgresWarehouse:
        address = request.getfixturevalue("postgres")
        return PostgresWarehouse(address, staging=shop.root / "staging", schema=shop.root.name)

    model = Model()
    both(shop, model, 0, [*(sale(n) for n in range(30)), "poison", sale(77, customer=None)])
    both(shop, model, 1, [sale(n) for n in range(25, 45)])
    shop.pipeline(sink()).run(spark, once=True)
    uncommit(shop, 1)
    MasterStore.open(shop.products).upsert(products([5]))
    model.prices["p5"] = 6.0
    both(shop, model, 2, [sale(5), sale(50)])
    done = shop.pipeline(sink()).run(spark, once=True)
    assert done is not None
    model.agrees(sink(), done.totals)


def test_a_damaged_ledger_stops_the_run(shop: Shop, spark: SparkSession) -> None:
    shop.arrive(0, [sale(1)])
    run(shop, spark)
    path = shop.root / "state" / "batches" / "000000000.json"
    path.write_text(path.read_text().replace('"enriched": 1', '"enriched": 2'))
    with pytest.raises(SemistreamError, match=r"000000000\.json is damaged"):
        run(shop, spark)
