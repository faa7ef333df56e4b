"""The contract of all warehouses: each batch once, whatever happens, on real tables and a real server."""

from __future__ import annotations

import datetime as dt
import json
import re
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semistream.errors import ArgumentError, SchemaError, SemistreamError
from semistream.stores.paged.manifest import StoreVersion
from semistream.warehouse import (
    BatchWrites,
    ForeignCheckpointError,
    MissingBatchesError,
    SinkError,
    StagedFile,
    StaleWriterError,
    Warehouse,
    Write,
    stage,
)
from semistream.warehouse.contract import encode_schema
from tests.tables import assert_same_rows
from tests.warehouse.warehouses import KINDS, LOST, OTHER, QUERY, SALES, Place, batch_of, lost, model, prepared, sales

POINTS = ["table_written", "table_written:2", "before_commit", "committed"]
KILLS = [(kind, point) for kind in KINDS for point in POINTS]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    address = request.getfixturevalue("postgres") if request.param == "postgres" else ""
    return Place(request.param, str(tmp_path / "warehouse"), address)


def assert_holds(place: Place, *numbers: int) -> None:
    warehouse = place.open()
    for table, rows in model(*numbers).items():
        assert_same_rows(warehouse.read(table), rows)


class TestExactlyOnce:
    def test_batches_arrive_in_all_their_tables(self, place: Place) -> None:
        warehouse = prepared(place)
        assert warehouse.check("shop", QUERY) == -1
        for number in range(4):
            assert warehouse.commit(batch_of(warehouse, number))
            assert warehouse.check("shop", QUERY) == number
        assert_holds(place, 0, 1, 2, 3)
        assert place.open().check("shop", QUERY) == 3

    def test_the_same_batch_three_times(self, place: Place) -> None:
        warehouse = prepared(place)
        batches = [batch_of(warehouse, number) for number in range(2)]
        assert [warehouse.commit(batch) for batch in batches] == [True, True]
        before = {table: warehouse.read(table) for table in ("sales", "lost")}
        for _ in range(3):
            again = place.open()
            assert [again.commit(batch) for batch in batches] == [False, False]
            assert {table: again.read(table) for table in before} == before
        assert_holds(place, 0, 1)

    def test_a_batch_out_of_a_redo_log(self, place: Place) -> None:
        warehouse = prepared(place)
        text = json.dumps(batch_of(warehouse, 0).to_json())
        assert place.open().commit(BatchWrites.from_json(json.loads(text)))
        assert not place.open().commit(BatchWrites.from_json(json.loads(text)))
        assert_holds(place, 0)

    def test_batches_without_rows_count_too(self, place: Place) -> None:
        warehouse = prepared(place)
        warehouse.commit(batch_of(warehouse, 0, {}))
        warehouse.commit(batch_of(warehouse, 1, {"sales": sales(0, 0)}))
        warehouse.commit(batch_of(warehouse, 2))
        assert_holds(place, 2)

    def test_two_streams_share_the_tables(self, place: Place) -> None:
        warehouse = prepared(place)
        warehouse.commit(batch_of(warehouse, 0))
        warehouse.commit(batch_of(warehouse, 0, {"sales": sales(7)}, app="web", query=OTHER))
        warehouse.commit(batch_of(warehouse, 1))
        assert warehouse.check("shop", QUERY) == 1
        assert warehouse.check("web", OTHER) == 0
        assert_same_rows(warehouse.read("sales"), model(0, 1, 7)["sales"])

    def test_a_table_is_replaced(self, place: Place) -> None:
        warehouse = prepared(place)
        warehouse.commit(batch_of(warehouse, 0, {"sales": sales(0), "lost": lost(0, 5)}))
        replacing = batch_of(warehouse, 1, {"lost": lost(9, 2)}, kind="replace")
        for _ in range(2):
            place.open().commit(replacing)
            assert_same_rows(place.open().read("lost"), lost(9, 2))
        place.open().commit(batch_of(warehouse, 2, {"lost": lost(0, 0)}, kind="replace"))
        assert_same_rows(place.open().read("lost"), lost(0, 0))
        assert_same_rows(place.open().read("sales"), sales(0))

    @pytest.mark.parametrize("place, point", KILLS, indirect=["place"])
    def test_killed_and_carried_out_again(self, place: Place, point: str) -> None:
        warehouse = prepared(place)
        warehouse.commit(batch_of(warehouse, 0))
        batch = batch_of(warehouse, 1)
        place.killed(f"warehouse.{point}", {"commit": batch.to_json()})
        done = point == "committed"
        assert place.open().check("shop", QUERY) == (1 if done else 0)
        assert place.open().commit(batch) == (not done)
        assert not place.open().commit(batch)
        assert_holds(place, 0, 1)
        place.open().commit(batch_of(warehouse, 2))
        assert_holds(place, 0, 1, 2)


class TestAskedBefore:
    """What a redo log asks before it takes a batch, and before it gives one up."""

    def test_what_can_be_written(self, place: Place) -> None:
        warehouse = prepared(place)
        for number in range(2):
            batch = batch_of(warehouse, number)
            warehouse.ready(batch)
            assert warehouse.visible(batch) == []
            assert place.open().check("shop", QUERY) == number - 1  # asking changes nothing
            assert warehouse.commit(batch)
            assert "sales" in place.open().visible(batch)
        assert_holds(place, 0, 1)

    def test_a_batch_that_another_copy_has_written(self, place: Place) -> None:
        warehouse = prepared(place)
        warehouse.commit(batch_of(warehouse, 0))
        with pytest.raises(StaleWriterError, match="batch 0 of 'shop' already, which this state has not decided"):
            place.open().ready(batch_of(warehouse, 0))

    def test_what_is_missing(self, place: Place) -> None:
        warehouse = prepared(place)
        batch = batch_of(warehouse, 0)
        gone = batch.writes[0].files[0]
        (warehouse.place("sales") / gone.path).unlink()
        with pytest.raises(SinkError, match="cannot be read"):
            warehouse.ready(batch)
        with pytest.raises(MissingBatchesError, match="those between are missing"):
            warehouse.ready(batch_of(warehouse, 2))
        other = Write("sales", (), pa.schema([("sale_id", pa.string())]), "replace")
        with pytest.raises(SchemaError, match="sale_id"):
            warehouse.ready(BatchWrites("shop", QUERY, 0, (other,)))
        nowhere = Write("nowhere", (), SALES, "replace")
        with pytest.raises(SinkError, match="nowhere"):
            warehouse.ready(BatchWrites("shop", QUERY, 0, (nowhere,)))

    @pytest.mark.parametrize("place", ["delta"], indirect=True)
    def test_a_batch_that_is_there_in_part(self, place: Place) -> None:
        warehouse = prepared(place)
        batch = batch_of(warehouse, 0)
        place.killed("warehouse.table_written", {"commit": batch.to_json()})
        assert warehouse.visible(batch) == ["sales"]
        with pytest.raises(StaleWriterError, match="sales holds batch 0"):
            place.open().ready(batch)

    def test_names(self, place: Place) -> None:
        warehouse = place.open()
        warehouse.check_table("sales")
        for name in ("", "_semistream_ledger", "a\0b", "x" * 300):
            with pytest.raises(ArgumentError, match="table="):
                warehouse.check_table(name)
        assert not Path(place.root).exists()

    def test_another_run_mirrors_after_the_first_look(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = pa.table({"code": [1], "name": ["one"]})
        warehouse = place.open()
        prepare = warehouse.prepare

        def late(table: str, schema: pa.Schema) -> None:
            prepare(table, schema)
            monkeypatch.undo()
            assert place.open().mirror("product", ["code"], rows, 2)

        monkeypatch.setattr(warehouse, "prepare", late)
        assert not warehouse.mirror("product", ["code"], rows.slice(0, 0), 1)
        assert warehouse.mirrored("product") == 2
        assert_same_rows(warehouse.read("product"), rows)

    def test_which_store_a_table_mirrors(self, place: Place) -> None:
        warehouse = prepared(place)
        rows = pa.table({"code": [1], "name": ["a"]})
        assert warehouse.mirrored_store("product") is None
        warehouse.mirror("product", ["code"], rows, 1)
        assert place.open().mirrored_store("product") is None  # of before there were ids
        store = StoreVersion("0123456789abcdef" * 2, 2, 0xFEDCBA98)
        assert (warehouse.mirrored_store("product"), warehouse.mirrored_digest("product", 1)) == (None, None)
        warehouse.mirror("product", ["code"], rows, 2, store=store)
        assert place.open().mirrored_store("product") == 0x0123456789ABCDE
        assert place.open().mirrored_digest("product", 2) == 0xFEDCBA98
        # By a semistream that does not know of digests: the one that is there is of another version.
        warehouse.mirror("product", ["code"], rows, 3)
        assert place.open().mirrored_digest("product", 3) is None


class TestRefused:
    def test_a_second_run_on_one_checkpoint(self, place: Place) -> None:
        first, second = prepared(place), place.open()
        batches = [batch_of(first, number) for number in range(4)]
        first.commit(batches[0])
        for batch in batches[:3]:
            second.commit(batch)
        with pytest.raises(StaleWriterError, match=r"left at batch 0 and is now at batch 2.*batch 1 was not written"):
            first.commit(batches[1])
        assert not first.commit(batches[2])  # restarted, it replays and goes on
        assert first.commit(batches[3])
        with pytest.raises(StaleWriterError):
            second.commit(batches[3])
        assert_holds(place, 0, 1, 2, 3)

    def test_of_many_runs_at_once_one_writes(self, place: Place) -> None:
        warehouse = prepared(place)
        warehouse.commit(batch_of(warehouse, 0))
        runs = [(place.open(), batch_of(warehouse, 1)) for _ in range(5)]
        ready = threading.Barrier(len(runs))
        done: list[bool] = []
        errors: list[SemistreamError] = []

        def run(warehouse: Warehouse, batch: BatchWrites) -> None:
            ready.wait()
            try:
                done.append(warehouse.commit(batch))
            except SemistreamError as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=pair) for pair in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {type(error) for error in errors} <= {StaleWriterError}
        assert len(done) + len(errors) == len(runs)
        assert sum(done) <= 1
        place.open().commit(batch_of(warehouse, 1))  # of Delta's tables each takes one run's; a repetition finishes
        assert_holds(place, 0, 1)

    def test_a_deleted_checkpoint(self, place: Place) -> None:
        warehouse = prepared(place)
        warehouse.commit(batch_of(warehouse, 0))
        fresh = place.open()
        with pytest.raises(ForeignCheckpointError, match=r"another checkpoint .*replaces='0b7f61f3-d9f5-494'"):
            fresh.check("shop", OTHER)
        with pytest.raises(ForeignCheckpointError):
            fresh.commit(batch_of(fresh, 0, query=OTHER))
        with pytest.raises(ForeignCheckpointError):
            fresh.check("shop", OTHER, replaces=OTHER)
        with pytest.raises(ArgumentError, match="not the id of a query"):
            fresh.check("shop", OTHER, replaces="the last one")
        assert_holds(place, 0)

    def test_a_deleted_checkpoint_that_may_be_replaced(self, place: Place) -> None:
        former = prepared(place)
        former.commit(batch_of(former, 0))
        fresh = place.open()
        assert fresh.check("shop", OTHER, replaces=QUERY[:17]) == -1
        fresh.commit(batch_of(fresh, 0, model(1), query=OTHER))
        assert place.open().check("shop", OTHER) == 0  # settled: the permission is no longer needed
        place.open().commit(batch_of(fresh, 1, model(2), query=OTHER))
        place.open().commit(batch_of(fresh, 2, model(3), query=OTHER))
        with pytest.raises(ForeignCheckpointError):
            former.commit(batch_of(former, 1))
        assert_holds(place, 0, 1, 2, 3)

    @pytest.mark.parametrize("done, message", [(0, "holds no batch"), (2, "ends with batch 1")])
    def test_batches_that_are_missing(self, place: Place, done: int, message: str) -> None:
        warehouse = prepared(place)
        for number in range(done):
            warehouse.commit(batch_of(warehouse, number))
        with pytest.raises(MissingBatchesError, match=message):
            place.open().commit(batch_of(warehouse, 7))
        assert_holds(place, *range(done))

    def test_a_batch_for_a_table_that_was_not_prepared(self, place: Place) -> None:
        warehouse = prepared(place)
        with pytest.raises(SinkError, match="prepare"):
            warehouse.commit(batch_of(warehouse, 0, {"sales": sales(0), "nowhere": lost(0)}))
        assert warehouse.check("shop", QUERY) == -1
        assert_holds(place)

    @pytest.mark.parametrize("fault", ["cut", "gone", "outside", "link"])
    def test_a_file_that_is_not_as_it_was(self, place: Place, fault: str, tmp_path: Path) -> None:
        warehouse = prepared(place)
        [write, other] = batch_of(warehouse, 0).writes
        file = write.files[0]
        path, elsewhere = warehouse.place("sales") / file.path, tmp_path / "elsewhere.parquet"
        if fault == "cut":
            path.write_bytes(path.read_bytes()[:-9])
        elif fault == "gone":
            path.unlink()
        else:
            path.rename(elsewhere)
            if fault == "link":
                path.symlink_to(elsewhere)
            else:
                file = StagedFile(str(elsewhere), file.rows, file.bytes)
        bad = BatchWrites("shop", QUERY, 0, (other, Write("sales", (*write.files[1:], file), SALES, "append")))
        with pytest.raises(SinkError, match=str(Path(file.path).name)):
            warehouse.commit(bad)
        assert_holds(place)
        assert fault not in ("outside", "link") or elsewhere.exists()

    def test_a_table_written_twice_in_a_batch(self) -> None:
        write = Write("sales", (), SALES, "append")
        with pytest.raises(ArgumentError, match="twice to sales"):
            BatchWrites("shop", QUERY, 0, (write, write))
        with pytest.raises(ArgumentError, match="'append', 'replace'"):
            Write("sales", (), SALES, "upsert")  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="query='7'"):
            BatchWrites("shop", "7", 0, ())
        with pytest.raises(ArgumentError, match="without '@'"):
            BatchWrites("a@b", QUERY, 0, ())


class TestSchemas:
    @pytest.mark.parametrize(
        "other, message",
        [
            (SALES.remove(2), r"vendor \(\w+\) is gone"),
            (SALES.append(pa.field("colour", pa.string())), r"colour \(\w+\) is new"),
            (SALES.set(0, pa.field("sale_id", pa.int32())), r"sale_id was \w+ and is int"),
            (SALES.set(1, pa.field("price", pa.decimal128(12, 3))), r"price was .* and is "),
        ],
    )
    def test_other_columns_than_the_table_has(self, place: Place, other: pa.Schema, message: str) -> None:
        warehouse = prepared(place)
        with pytest.raises(SchemaError, match=message):
            warehouse.prepare("sales", other)
        with pytest.raises(SchemaError, match=message):
            warehouse.commit(batch_of(warehouse, 0, {"sales": other.empty_table(), "lost": lost(0)}, kind="replace"))
        assert_holds(place)

    def test_columns_may_be_added_when_asked_for(self, place: Place) -> None:
        old = prepared(place)
        old.commit(batch_of(old, 0))
        decided = batch_of(old, 1)
        warehouse = place.open(evolve=True)
        wide = SALES.append(pa.field("colour", pa.string()))
        with pytest.raises(SchemaError, match="must allow NULL"):
            warehouse.prepare("sales", SALES.append(pa.field("colour", pa.string(), nullable=False)))
        with pytest.raises(SchemaError, match=r"vendor .* is gone"):
            warehouse.prepare("sales", wide.remove(2))
        for _ in range(2):
            warehouse.prepare("sales", wide)
        warehouse.commit(decided)  # decided before the column was there
        blue = sales(2).append_column("colour", pa.array(["blue"] * 3))
        warehouse.commit(batch_of(warehouse, 2, {"sales": blue.select(blue.column_names[::-1])}))
        none = [model(n)["sales"].append_column("colour", pa.nulls(3, pa.string())) for n in (0, 1)]
        assert_same_rows(warehouse.read("sales"), pa.concat_tables([*none, blue]))

    def test_every_type_comes_back(self, place: Place) -> None:
        at = dt.datetime(2026, 3, 29, 1, 30, 0, 123456)
        odd = dt.datetime(1899, 12, 31, 23, 59, 59, 999999)
        columns: dict[str, tuple[pa.DataType, list[Any]]] = {
            "id": (pa.int64(), [1, 2, 3, 4]),
            "flag": (pa.bool_(), [True, False, None, True]),
            "small": (pa.int16(), [-(2**15), 2**15 - 1, None, 0]),
            "medium": (pa.int32(), [-(2**31), 2**31 - 1, None, 0]),
            "large": (pa.int64(), [-(2**63), 2**63 - 1, None, 0]),
            "single": (pa.float32(), [1.5, float("inf"), None, float("nan")]),
            "double": (pa.float64(), [0.1, -1e-300, None, float("-inf")]),
            "money": (pa.decimal128(10, 2), [Decimal("-12.30"), Decimal("99999999.99"), None, Decimal("0.00")]),
            "wide": (pa.decimal128(38, 18), [Decimal("1e-18"), Decimal("-9" * 1 + "9" * 19), None, Decimal(0)]),
            "day": (pa.date32(), [at.date(), dt.date(1, 1, 1), None, dt.date(9999, 12, 31)]),
            "local": (pa.timestamp("us"), [at, odd, None, dt.datetime(9999, 12, 31)]),
            "instant": (
                pa.timestamp("us", tz="Asia/Tokyo"),
                [at.replace(tzinfo=dt.UTC), odd.replace(tzinfo=dt.UTC), None, at.replace(tzinfo=dt.UTC)],
            ),
            "text": (pa.string(), ["", "né\u0301 日本 🎉", None, 'a,"b"\r\n\\.\n\\N NULL\t']),
            "long text": (pa.large_string(), ["x" * 100_000, "'; DROP TABLE sales; --", None, "\\x00"]),
            "bytes": (pa.binary(), [b"", bytes(range(256)), None, b"\\x00"]),
        }
        rows = pa.table([pa.array(v, k) for k, v in columns.values()], names=list(columns))
        warehouse = place.open()
        warehouse.prepare("types", rows.schema)
        warehouse.commit(batch_of(warehouse, 0, {"types": rows}))
        kept = rows.set_column(11, "instant", rows.column("instant").cast(pa.timestamp("us", tz="UTC")))
        kept = kept.set_column(13, "long text", kept.column("long text").cast(pa.string()))
        assert_same_rows(warehouse.read("types"), kept)
        warehouse.prepare("types", rows.schema)
        # The same through a mirror, which writes by another way.
        warehouse.mirror("mirrored", ["id"], rows.slice(0, 2), 1)
        warehouse.mirror("mirrored", ["id"], rows.slice(1), 2)
        assert_same_rows(warehouse.read("mirrored"), kept)

    def test_one_column_of_nulls(self, place: Place) -> None:
        rows = pa.table({"note": pa.array([None, "", None], pa.string())})
        warehouse = place.open()
        warehouse.prepare("notes", rows.schema)
        warehouse.commit(batch_of(warehouse, 0, {"notes": rows}))
        assert_same_rows(warehouse.read("notes"), rows)

    def test_odd_names_of_columns(self, place: Place) -> None:
        odd = [
            'quo"te',
            "it's",
            "semi;--",
            "per%cent %s %(x)s",
            "{brace}",
            "a.b",
            "ÄÖ 日本",
            "Select",
            "back`tick",
        ]
        rows = pa.table({"id": [1, 2], **{name: [name, None] for name in odd}})
        warehouse = place.open()
        warehouse.prepare("odd", rows.schema)
        warehouse.commit(batch_of(warehouse, 0, {"odd": rows}))
        assert_same_rows(warehouse.read("odd"), rows)
        one = rows.slice(0, 1)
        for table, key in (("by id", ["id"]), ("by all", odd)):
            for version in (1, 2):
                warehouse.mirror(table, key, one, version)
                assert_same_rows(warehouse.read(table), one)

    @pytest.mark.parametrize(
        "table", ['quo"te', "it's", "semi;--", "per%sent", "..", "a/b", "", "nul\0", "x" * 300, "_semistream_ledger"]
    )
    def test_odd_names_of_tables(self, place: Place, table: str) -> None:
        """Quoted or refused, never misread."""
        warehouse = place.open()
        if place.kind == "postgres" and 0 < len(table) < 64 and "\0" not in table and not table.startswith("_semi"):
            warehouse.prepare(table, LOST)
            warehouse.commit(batch_of(warehouse, 0, {table: lost(0)}))
            assert_same_rows(warehouse.read(table), lost(0))
            return
        with pytest.raises(ArgumentError, match=re.escape(repr(table))):
            warehouse.prepare(table, LOST)
        with pytest.raises(ArgumentError, match=re.escape(repr(table))):
            warehouse.place(table)


DIMENSION = pa.schema(
    [("source", pa.string()), ("code", pa.int64()), ("key", pa.int64()), ("name", pa.string()), ("until", pa.int32())]
)


def members(*rows: tuple[Any, ...]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(DIMENSION.names, row, strict=True)) for row in rows], DIMENSION)


class TestMirror:
    def test_versions_of_a_dimension(self, place: Place) -> None:
        warehouse = place.open()
        assert warehouse.mirrored("product") == -1
        first = members(("web", 1, 10, "one", None), ("web", 2, 11, "two", None), ("till", 1, 12, "eins", None))
        assert warehouse.mirror("product", ["source", "code"], first, 1)
        # Type 2: the key's row is closed and another one added; its neighbours in either key column stay.
        change = members(("web", 1, 10, "one", 7), ("web", 1, 13, "uno", None), ("till", 5, 14, "fünf", None))
        for _ in range(3):
            place.open().mirror("product", ["source", "code"], change, 4)
            assert place.open().mirrored("product") == 4
        wanted = members(*[tuple(row.values()) for row in pa.concat_tables([change, first.slice(1)]).to_pylist()])
        assert_same_rows(warehouse.read("product"), wanted)
        assert not warehouse.mirror("product", ["source", "code"], first, 3)
        assert_same_rows(warehouse.read("product"), wanted)
        # Nothing changed: the version counts all the same.
        assert warehouse.mirror("product", ["source", "code"], change.slice(0, 0), 5)
        assert warehouse.mirrored("product") == 5
        assert_same_rows(warehouse.read("product"), wanted)

    @pytest.mark.parametrize("point", ["before_commit", "committed"])
    def test_killed_and_mirrored_again(self, place: Place, point: str) -> None:
        warehouse = place.open()
        warehouse.mirror("product", ["code"], members(("web", 1, 10, "one", None), ("web", 2, 11, "two", None)), 1)
        change = members(("web", 1, 10, "one", 7), ("web", 1, 13, "uno", None))
        what = {"table": "product", "key": ["code"], "version": 2}
        what |= {"rows": change.to_pylist(), "schema": encode_schema(DIMENSION)}
        place.killed(f"mirror.{point}", what)
        assert place.open().mirrored("product") == (2 if point == "committed" else 1)
        place.open().mirror("product", ["code"], change, 2)
        assert_same_rows(
            warehouse.read("product"),
            members(("web", 1, 10, "one", 7), ("web", 1, 13, "uno", None), ("web", 2, 11, "two", None)),
        )

    def test_two_at_once(self, place: Place) -> None:
        start = members(*[("web", code, code, "old", None) for code in range(6)])
        place.open().mirror("product", ["code"], start, 1)
        ready = threading.Barrier(4)
        done: list[bool] = []
        errors: list[SemistreamError] = []

        def run() -> None:
            warehouse = place.open()
            ready.wait()
            try:
                done.append(warehouse.mirror("product", ["code"], members(("web", 3, 3, "new", None)), 2))
            except SemistreamError as error:
                errors.append(error)

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(done) == 1
        assert {type(error) for error in errors} <= {StaleWriterError}
        rows = {row["code"]: row["name"] for row in place.open().read("product").to_pylist()}
        assert rows == {code: "new" if code == 3 else "old" for code in range(6)}
        assert place.open().read("product").num_rows == 6

    def test_rows_that_have_no_key(self, place: Place) -> None:
        warehouse = place.open()
        with pytest.raises(SchemaError, match="no key column nope"):
            warehouse.mirror("product", ["nope"], members(("web", 1, 1, "x", None)), 1)
        with pytest.raises(SchemaError, match="code holds NULL"):
            warehouse.mirror("product", ["code"], members(("web", None, 1, "x", None)), 1)
        assert warehouse.mirrored("product") == -1

    @settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
    @given(
        st.lists(
            st.dictionaries(
                st.integers(0, 6), st.lists(st.sampled_from(["a", "b", None]), min_size=1, max_size=3), max_size=4
            ),
            min_size=1,
            max_size=4,
        )
    )
    def test_any_history(self, place: Place, tmp_path: Path, history: list[dict[int, list[str | None]]]) -> None:
        """The rows of a key are those of its last change."""
        fresh = Place(place.kind, f"{place.root}-{len(list(tmp_path.iterdir()))}", place.address)
        Path(fresh.root).mkdir()
        warehouse = fresh.open()
        state: dict[int, list[str | None]] = {}
        for version, change in enumerate(history):
            rows = members(*[("s", code, code, name, None) for code, names in change.items() for name in names])
            warehouse.mirror("d", ["code"], rows, version)
            state |= change
        wanted = [("s", code, code, name, None) for code, names in state.items() for name in names]
        assert_same_rows(warehouse.read("d"), members(*wanted))


def test_staged_rows_are_stored_rows(tmp_path: Path) -> None:
    rows = pa.table(
        {"at": pa.array([1_000], pa.timestamp("ns", "Asia/Tokyo")), "name": pa.array(["x"], pa.large_string())}
    )
    file = stage(tmp_path, rows, rows.schema)
    found = pq.read_table(tmp_path / file.path)
    assert (file.rows, file.bytes) == (1, (tmp_path / file.path).stat().st_size)
    assert found.schema.field("at").type == pa.timestamp("us", "UTC")


def test_files_of_a_table_are_known(place: Place) -> None:
    """So that nobody who tidies up takes one of them for a leftover."""
    warehouse = prepared(place)
    stage(warehouse.place("sales"), sales(9), SALES)  # of a task whose batch was never decided
    batch = batch_of(warehouse, 0)
    warehouse.commit(batch)
    wanted = {file.path for file in batch.writes[0].files} if place.kind != "postgres" else set()
    assert place.open().files("sales") == wanted
    assert place.open().files("lost") == set()
