"""One version of the master a batch: refreshed as asked, the same on replay, refused when it cannot be the same."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from semistream import MasterStore
from semistream.durable import create_once
from semistream.errors import CorruptStoreError, StoreNotFoundError
from semistream.spark import Metrics, enrich
from semistream.spark.pins import pinned_version
from semistream.spark.spec import Transport
from semistream.stores.paged.manifest import Manifest
from tests.spark.streams import (
    SMALL,
    add_file,
    build,
    column,
    fails,
    frame,
    gather,
    keys,
    master_table,
    run,
    stream,
    to_memory,
    wait_until,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TRANSPORTS = pytest.mark.parametrize("transport", ["rows", "keys"])


def raise_prices(store: MasterStore, count: int = 3, mark: float = 0.5) -> MasterStore:
    """A new version in which the first keys cost more."""
    return store.latest().upsert(master_table(count, mark))


class TestRefresh:
    @pytest.mark.parametrize("algorithm", ["sweep", "whole"])
    @TRANSPORTS
    def test_every_batch(self, spark: SparkSession, tmp_path: Path, transport: Transport, algorithm: str) -> None:
        store = build(tmp_path / "s")
        df = stream(spark, tmp_path / "in", [keys(1, 2, 50, 300)] * 3)
        found: dict[int, list[Any]] = {}

        def each(batch: DataFrame, number: int) -> None:
            found[number] = column(batch.toArrow(), "price")
            if number == 0:
                raise_prices(store).upsert(pa.table({"id": [300], "price": [9.0], "name": ["new"]}))
            else:
                store.latest().delete([2])

        options: dict[str, Any] = {"transport": transport, "algorithm": algorithm, "memory": SMALL}
        run(enrich(df, store, on="id", **options), tmp_path / "checkpoint", each)
        assert found == {0: [1.0, 2.0, 50.0, None], 1: [1.5, 2.5, 50.0, 9.0], 2: [1.5, None, 50.0, 9.0]}

    @pytest.mark.parametrize("refresh", ["never", "1 hour"])
    def test_less_often(self, spark: SparkSession, tmp_path: Path, refresh: str) -> None:
        store = build(tmp_path / "s")
        df = stream(spark, tmp_path / "in", [keys(1, 50)] * 2)
        found: dict[int, list[Any]] = {}

        def each(batch: DataFrame, number: int) -> None:
            found[number] = column(batch.toArrow(), "price")
            raise_prices(store)

        run(enrich(df, store, on="id", refresh=refresh), tmp_path / "checkpoint", each)
        # Also after a restart that plans with the new version.
        add_file(tmp_path / "in", keys(1, 50))
        run(enrich(df, store, on="id", refresh=refresh), tmp_path / "checkpoint", each)
        assert found == {number: [1.0, 50.0] for number in range(3)}

    def test_a_fixed_version(self, spark: SparkSession, tmp_path: Path) -> None:
        store = build(tmp_path / "s")
        raise_prices(store)
        df = stream(spark, tmp_path / "in", [keys(1, 50)])
        fixed = gather(enrich(df, store, on="id", master_version=1), tmp_path / "fixed")
        assert column(fixed[0], "price") == [1.0, 50.0]
        batch = frame(spark, keys(1, 50))
        assert column(enrich(batch, store, on="id", master_version=1).toArrow(), "price") == [1.0, 50.0]
        # A store object of an old version is brought up to date; only master_version= fixes it.
        assert column(enrich(batch, store, on="id").toArrow(), "price") == [1.5, 50.0]

    @pytest.mark.parametrize(
        "transport, text",
        [
            pytest.param(way, text, id=f"{way}-{'text' if text else 'fixed width'}", marks=marks)
            for way, text, marks in (
                ("rows", True, []),
                ("keys", False, []),
                ("rows", False, [pytest.mark.long]),
                ("keys", True, [pytest.mark.long]),
            )
        ],
    )
    def test_only_changed_keys_leave_the_cache(
        self, spark: SparkSession, tmp_path: Path, transport: Transport, text: bool
    ) -> None:
        count = 2_000
        table = master_table(count) if text else master_table(count).drop_columns(["name"])
        store = build(tmp_path / "s", table)
        df = stream(spark, tmp_path / "in", [keys(*range(count))] * 4)
        metrics = Metrics(spark, run_log=tmp_path / "run.jsonl")
        seen: list[list[float]] = []

        def each(batch: DataFrame, number: int) -> None:
            seen.append(column(batch.select("n", "price").toArrow(), "price")[:12])

        def change(number: int) -> None:
            fresh = table.slice(0, 10).set_column(1, "price", pa.array([float(number)] * 10))
            store.latest().upsert(fresh)

        options: dict[str, Any] = {"memory": "4MB", "algorithm": "sweep", "transport": transport, "metrics": metrics}
        result = enrich(df, store, on="id", **options)

        def written(batch: DataFrame, number: int) -> None:
            each(batch, number)
            if number >= 1:
                change(-number)

        run(result, tmp_path / "checkpoint", written)
        wait_until(lambda: metrics.batches == 4)
        metrics.close()
        assert seen[1] == [float(number) for number in range(12)]
        assert seen[2] == [-1.0] * 10 + [10.0, 11.0]
        assert seen[3] == [-2.0] * 10 + [10.0, 11.0]
        lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
        hits = [(line["master_version"], line["hits"]) for line in lines]
        assert hits[1] == (1, count)
        assert hits[2:] == [(2, count - 10), (3, count - 10)]


class TestReplay:
    @TRANSPORTS
    def test_the_same_version_after_a_failure(self, spark: SparkSession, tmp_path: Path, transport: Transport) -> None:
        store = build(tmp_path / "s")
        df = stream(spark, tmp_path / "in", [keys(1, 50)] * 3)
        interrupted(df, store, tmp_path, at=1, transport=transport)
        raise_prices(store)
        options: dict[str, Any] = {"transport": transport, "algorithm": "sweep", "memory": SMALL}
        found = gather(enrich(df, store, on="id", **options), tmp_path / "checkpoint")
        assert {number: column(table, "price") for number, table in found.items()} == {1: [1.0, 50.0], 2: [1.5, 50.0]}

    def test_the_version_is_gone(self, spark: SparkSession, tmp_path: Path) -> None:
        store = build(tmp_path / "s")
        df = stream(spark, tmp_path / "in", [keys(1, 50)])
        interrupted(df, store, tmp_path, at=0)
        raise_prices(store).compact().vacuum(keep=1)
        with fails(r"StoreNotFoundError: batch 0 of query .* was begun with version 1 of .*/s, which is gone \(vacuum"):
            gather(enrich(df, store, on="id"), tmp_path / "checkpoint")
        [pin] = (tmp_path / "s" / "pins").rglob("*.json")
        pin.unlink()  # as the message says
        assert column(gather(enrich(df, store, on="id"), tmp_path / "checkpoint")[0], "price") == [1.5, 50.0]

    def test_a_damaged_pin(self, spark: SparkSession, tmp_path: Path) -> None:
        store = build(tmp_path / "s")
        df = stream(spark, tmp_path / "in", [keys(1, 50)])
        interrupted(df, store, tmp_path, at=0)
        [pin] = (tmp_path / "s" / "pins").rglob("*.json")
        pin.write_bytes(pin.read_bytes()[:10])
        with fails(rf"CorruptStoreError: {pin} is damaged"):
            gather(enrich(df, store, on="id"), tmp_path / "checkpoint")

    def test_pins_are_private(self, spark: SparkSession, tmp_path: Path) -> None:
        store = build(tmp_path / "s")
        df = stream(spark, tmp_path / "in", [keys(1)])
        to_memory(enrich(df, store, on="id"), "private_pins", tmp_path / "checkpoint")
        query = json.loads((tmp_path / "checkpoint" / "metadata").read_text())["id"]
        pin = tmp_path / "s" / "pins" / query / "000000000.json"
        assert json.loads(pin.read_text())["version"] == 1
        assert pin.stat().st_mode & 0o777 == 0o600
        assert pin.parent.stat().st_mode & 0o777 == 0o700


def interrupted(df: DataFrame, store: MasterStore, place: Path, at: int, transport: Transport = "rows") -> None:
    """Run the stream up to batch ``at``, which is enriched and then fails."""

    def each(batch: DataFrame, number: int) -> None:
        batch.toArrow()
        if number == at:
            raise OSError("the warehouse is down")

    with fails("the warehouse is down"):
        run(enrich(df, store, on="id", transport=transport), place / "checkpoint", each)


class TestOtherShape:
    """A version that does not fit the running query stops it, with the difference named."""

    def test_other_types(self, spark: SparkSession, tmp_path: Path) -> None:
        store = build(tmp_path / "s")
        df = stream(spark, tmp_path / "in", [keys(1)] * 2)

        def each(batch: DataFrame, number: int) -> None:
            batch.toArrow()
            changed = pa.table({"id": [1], "price": ["cheap"], "name": ["n"]})
            MasterStore.build(changed, store.path, key="id", replace=True)

        with fails(r"SchemaError: version 2 of .* has other column types than version 1.*'price': 'string'.*'double'"):
            run(enrich(df, store, on="id"), tmp_path / "checkpoint", each)

    def test_a_column_is_gone(self, spark: SparkSession, tmp_path: Path) -> None:
        store = build(tmp_path / "s")
        df = stream(spark, tmp_path / "in", [keys(1)] * 2)

        def each(batch: DataFrame, number: int) -> None:
            batch.toArrow()
            MasterStore.build(master_table().drop_columns(["name"]), store.path, key="id", replace=True)

        with fails(r"(Schema|Argument)Error: .*version 2.*'name'"):
            run(enrich(df, store, on="id"), tmp_path / "checkpoint", each)

    def test_a_column_more_does_no_harm(self, spark: SparkSession, tmp_path: Path) -> None:
        store = build(tmp_path / "s")
        df = stream(spark, tmp_path / "in", [keys(1)] * 2)
        found: list[list[Any]] = []

        def each(batch: DataFrame, number: int) -> None:
            found.append(batch.toArrow().to_pylist())
            more = master_table(mark=0.5).append_column("more", pa.array(range(100)))
            MasterStore.build(more, store.path, key="id", replace=True)

        run(enrich(df, store, on="id"), tmp_path / "checkpoint", each)
        assert [rows[0]["price"] for rows in found] == [1.0, 1.5]
        assert "more" not in found[1][0]

    def test_an_empty_version(self, spark: SparkSession, tmp_path: Path) -> None:
        store = build(tmp_path / "s")
        df = stream(spark, tmp_path / "in", [keys(1)] * 2)

        def each(batch: DataFrame, number: int) -> None:
            batch.toArrow()
            MasterStore.build(master_table(0), store.path, key="id", replace=True)

        with fails(r"EmptyMasterError: the master at .* \(version 2\) is empty"):
            run(enrich(df, store, on="id"), tmp_path / "checkpoint", each)

    @TRANSPORTS
    def test_keys_are_no_longer_unique(self, spark: SparkSession, tmp_path: Path, transport: Transport) -> None:
        store = build(tmp_path / "s")
        df = stream(spark, tmp_path / "in", [keys(1, 2)] * 2)
        found: list[list[Any]] = []

        def each(batch: DataFrame, number: int) -> None:
            found.append(column(batch.toArrow(), "price", "price"))
            store.latest().upsert(pa.concat_tables([master_table(2, 0.5), master_table(2, 0.75)]))

        options: dict[str, Any] = {"transport": transport, "algorithm": "sweep", "memory": SMALL}
        if transport == "rows":
            run(enrich(df, store, on="id", **options), tmp_path / "checkpoint", each)
            assert found == [[1.0, 2.0], [1.5, 1.75, 2.0]]
            return
        with fails(
            r"SchemaError: version 2 of .* has keys with several rows, which version 1, .* use transport='rows'"
        ):
            run(enrich(df, store, on="id", **options), tmp_path / "checkpoint", each)
        assert found == [[1.0, 2.0]]


def pinned(store: MasterStore, query: str, batch: int, refresh: str, planned: int = 1) -> int:
    return pinned_version(store.path, query, batch, refresh, Manifest.load(store.path, planned).identity).number


class TestPins:
    """Pins alone, without Spark."""

    def test_the_content_is_named(self, tmp_path: Path) -> None:
        store = build(tmp_path / "s")
        identity = store.manifest.identity
        for _ in range(2):
            assert pinned_version(store.path, "q", 0, "every_batch", identity) == identity
        [pin] = (store.path / "pins" / "q").glob("*.json")
        content = json.loads(pin.read_text())
        assert (content["store_id"], content["version"], content["digest"]) == (identity.store_id, 1, identity.digest)

    def test_a_pin_of_before_there_were_ids(self, tmp_path: Path) -> None:
        store = build(tmp_path / "s")
        raise_prices(store)
        (store.path / "pins" / "q").mkdir(parents=True)
        create_once(store.path / "pins" / "q" / "000000000.json", {"version": 1, "since": 1e12, "query": "q"})
        for batch in (0, 1):  # itself, and the one that keeps to it
            assert pinned_version(store.path, "q", batch, "1 hour", store.latest().manifest.identity) == (
                store.manifest.identity
            )

    def test_one_version_for_all_tasks(self, tmp_path: Path) -> None:
        store = build(tmp_path / "s")
        answers: list[int] = []
        start = threading.Barrier(8)

        def task() -> None:
            start.wait()
            answers.append(pinned(store, "q", 0, "every_batch"))

        def publish() -> None:
            start.wait()
            for _ in range(3):
                raise_prices(store)

        threads = [threading.Thread(target=task) for _ in range(7)] + [threading.Thread(target=publish)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 7
        assert len(set(answers)) == 1

    def test_refresh_by_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = build(tmp_path / "s")
        now = [1000.0]
        monkeypatch.setattr("semistream.spark.pins.time.time", lambda: now[0])
        assert pinned(store, "q", 0, "5 minutes") == 1
        raise_prices(store)
        now[0] += 299
        assert pinned(store, "q", 1, "5 minutes") == 1
        now[0] += 2
        assert pinned(store, "q", 2, "5 minutes") == 2
        assert pinned(store, "q", 1, "5 minutes") == 1
        raise_prices(store)
        now[0] += 200
        assert pinned(store, "q", 3, "5 minutes") == 2
        assert pinned(store, "another", 0, "5 minutes") == 3

    def test_old_pins_are_forgotten(self, tmp_path: Path) -> None:
        store = build(tmp_path / "s")
        for number in range(105):
            pinned(store, "q", number, "every_batch")
        names = sorted(path.name for path in (store.path / "pins" / "q").iterdir())
        assert names[0] == "000000004.json"
        assert len(names) == 101

    def test_every_flipped_bit_is_noticed(self, tmp_path: Path) -> None:
        """Whatever happens to the file: the same version, or an error that names it; never another version."""
        store = build(tmp_path / "s")
        for _ in range(9):
            store = raise_prices(store)
        pinned(store, "q", 0, "never", 4)
        [pin] = (store.path / "pins" / "q").glob("*.json")
        good = pin.read_bytes()
        wrong = []
        for position in range(8 * len(good)):
            bad = bytearray(good)
            bad[position // 8] ^= 1 << position % 8
            pin.write_bytes(bytes(bad))
            try:
                version = pinned(store, "q", 0, "never", 4)
            except (CorruptStoreError, StoreNotFoundError) as error:
                assert str(pin) in str(error)  # noqa: PT017 - either answer is right
            except Exception as error:  # noqa: BLE001
                wrong.append((position, repr(error)))
            else:
                if version != 4:
                    wrong.append((position, f"version {version}"))
        assert not wrong

    def test_every_cut_is_noticed(self, tmp_path: Path) -> None:
        store = build(tmp_path / "s")
        pinned(store, "q", 0, "never")
        [pin] = (store.path / "pins" / "q").glob("*.json")
        good = pin.read_bytes()
        for length in range(len(good)):
            pin.write_bytes(good[:length])
            with pytest.raises(CorruptStoreError, match=str(pin)):
                pinned(store, "q", 0, "never")

    def test_names_stay_below_the_store(self, tmp_path: Path) -> None:
        store = build(tmp_path / "s")
        pinned(store, "../../outside", 0, "every_batch")
        assert not list(tmp_path.parent.rglob("outside*"))
        assert [path.parent.parent for path in store.path.rglob("000000000.json")] == [store.path / "pins"]
