"""The Delta sink without Spark: which batches are written, passed over or refused, on real tables."""

import datetime as dt
import json
import pickle
import threading
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from semistream.errors import ArgumentError, SchemaError, SemistreamError
from semistream.warehouse import (
    DeltaSink,
    ForeignCheckpointError,
    MissingBatchesError,
    SinkError,
    StaleWriterError,
    query_of,
)
from tests.tables import assert_same_rows

SCHEMA = pa.schema(
    [
        ("sale_id", pa.int64()),
        ("sold_at", pa.timestamp("us", tz="Asia/Tokyo")),
        ("local_time", pa.timestamp("us")),
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
        ("store", pa.int32()),
        ("vendor", pa.string()),
    ]
)


class Batch:
    """Stands for a Spark DataFrame: it can be collected, and counts how often that happens."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.collected = 0

    def toArrow(self) -> pa.Table:
        self.collected += 1
        return self.table


def batch(number: int, rows: int = 3) -> Batch:
    at = dt.datetime(2026, 3, 29, 1, 30)
    return Batch(
        pa.table(
            {
                "sale_id": [number * 100 + row for row in range(rows)],
                "sold_at": [at.replace(tzinfo=dt.UTC)] * rows,
                "local_time": [at] * rows,
                "day": [at.date()] * rows,
                "price": [Decimal("12.30")] * rows,
                "store": [7] * rows,
                "vendor": ["v", None, ""][:rows],
            },
            SCHEMA,
        )
    )


def checkpoint(at: Path) -> Path:
    """What Spark writes when a query first starts with this checkpoint."""
    at.mkdir()
    (at / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    return at


def rows_of(path: Path) -> pa.Table:
    return DeltaTable(path).to_pyarrow_table().sort_by("sale_id")


def model(*numbers: int) -> pa.Table:
    """The rows of these batches as Delta keeps them: instants in UTC."""
    table = pa.concat_tables([batch(number).table for number in numbers])
    return table.set_column(1, "sold_at", table.column("sold_at").cast(pa.timestamp("us", tz="UTC")))


@pytest.fixture
def place(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "table", checkpoint(tmp_path / "checkpoint")


class TestExactlyOnce:
    def test_batches_arrive_with_their_types(self, place: tuple[Path, Path]) -> None:
        path, check = place
        sink = DeltaSink(path, "sales", checkpoint=check)
        for number in range(3):
            sink(batch(number), number)
        assert_same_rows(rows_of(path), model(0, 1, 2))
        assert (sink.written, sink.skipped) == (3, 0)

    def test_the_same_batch_three_times_is_there_once(self, place: tuple[Path, Path]) -> None:
        path, check = place
        DeltaSink(path, "sales", checkpoint=check)(batch(0), 0)
        before = DeltaTable(path).version(), rows_of(path)
        for _ in range(3):
            sink = DeltaSink(path, "sales", checkpoint=check)
            again = batch(0)
            for _ in range(3):
                sink(again, 0)
            assert (sink.written, sink.skipped, again.collected) == (0, 3, 0)  # a replay is not even computed
        assert (DeltaTable(path).version(), rows_of(path)) == before

    def test_a_restart_goes_on_after_the_last_batch(self, place: tuple[Path, Path]) -> None:
        path, check = place
        for number in range(4):
            sink = DeltaSink(path, "sales", checkpoint=check)
            for replayed in range(number + 1):
                sink(batch(replayed), replayed)
        assert_same_rows(rows_of(path), model(0, 1, 2, 3))

    def test_an_empty_batch_is_counted_too(self, place: tuple[Path, Path]) -> None:
        path, check = place
        sink = DeltaSink(path, "sales", checkpoint=check)
        sink(batch(0, rows=0), 0)
        sink(batch(1), 1)
        sink(batch(2, rows=0), 2)
        sink(batch(3), 3)
        assert_same_rows(rows_of(path), model(1, 3))

    def test_marks_outlive_a_checkpoint_of_the_log(self, place: tuple[Path, Path]) -> None:
        path, check = place
        sink = DeltaSink(path, "sales", checkpoint=check)
        for number in range(3):
            sink(batch(number), number)
        DeltaTable(path).create_checkpoint()
        for log in sorted((path / "_delta_log").glob("*.json"))[:-1]:
            log.unlink()
        again = DeltaSink(path, "sales", checkpoint=check)
        for number in range(4):
            again(batch(number), number)
        assert_same_rows(rows_of(path), model(0, 1, 2, 3))
        assert (again.written, again.skipped) == (1, 3)

    def test_a_crash_after_creating_the_table_is_harmless(
        self, place: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path, check = place

        def crash(*_: object) -> None:
            raise KeyboardInterrupt

        sink = DeltaSink(path, "sales", checkpoint=check)
        with monkeypatch.context() as patch:
            patch.setattr(DeltaSink, "_commit", crash)
            with pytest.raises(KeyboardInterrupt):
                sink(batch(0), 0)
        assert DeltaTable(path).count() == 0
        DeltaSink(path, "sales", checkpoint=check)(batch(0), 0)
        assert_same_rows(rows_of(path), model(0))

    def test_two_streams_share_a_table(self, place: tuple[Path, Path], tmp_path: Path) -> None:
        path, check = place
        one = DeltaSink(path, "tills", checkpoint=check)
        two = DeltaSink(path, "web", checkpoint=checkpoint(tmp_path / "other"))
        one(batch(0), 0)
        two(batch(1), 0)
        one(batch(2), 1)
        two(batch(3), 1)
        two(batch(3), 1)
        assert_same_rows(rows_of(path), model(0, 1, 2, 3))

    def test_it_travels_to_another_process(self, place: tuple[Path, Path]) -> None:
        path, check = place
        sink = DeltaSink(path, "sales", checkpoint=check)
        sink(batch(0), 0)
        pickle.loads(pickle.dumps(sink))(batch(1), 1)
        assert_same_rows(rows_of(path), model(0, 1))


class TestRefused:
    def test_a_deleted_checkpoint(self, place: tuple[Path, Path], tmp_path: Path) -> None:
        path, check = place
        DeltaSink(path, "sales", checkpoint=check)(batch(0), 0)
        new = checkpoint(tmp_path / "new")
        with pytest.raises(ForeignCheckpointError, match=r"another checkpoint .* replaces=") as caught:
            DeltaSink(path, "sales", checkpoint=new)(batch(0), 0)
        assert query_of(check)[:17] in str(caught.value)
        assert query_of(new) in str(caught.value)
        assert_same_rows(rows_of(path), model(0))

    def test_a_deleted_checkpoint_that_may_be_replaced(self, place: tuple[Path, Path], tmp_path: Path) -> None:
        path, check = place
        old = query_of(check)
        former = DeltaSink(path, "sales", checkpoint=check)
        former(batch(0), 0)
        new = checkpoint(tmp_path / "new")
        DeltaSink(path, "sales", checkpoint=new, replaces=old[:17])(batch(1), 0)
        # The permission is for one query only: left in the code it opens the table to nobody else.
        settled = DeltaSink(path, "sales", checkpoint=new, replaces=old)
        settled(batch(1), 0)
        settled(batch(2), 1)
        with pytest.raises(ForeignCheckpointError):
            DeltaSink(path, "sales", checkpoint=checkpoint(tmp_path / "third"), replaces=old)(batch(3), 0)
        with pytest.raises(ForeignCheckpointError):
            former(batch(3), 1)
        assert_same_rows(rows_of(path), model(0, 1, 2))

    def test_a_second_run_on_one_checkpoint(self, place: tuple[Path, Path]) -> None:
        path, check = place
        first = DeltaSink(path, "sales", checkpoint=check)
        first(batch(0), 0)
        second = DeltaSink(path, "sales", checkpoint=check)
        for number in range(3):
            second(batch(number), number)
        with pytest.raises(StaleWriterError, match=r"left at batch 0 and is now at batch 2.*batch 1 was not written"):
            first(batch(1), 1)
        assert_same_rows(rows_of(path), model(0, 1, 2))
        first(batch(2), 2)  # restarted, it replays and goes on
        first(batch(3), 3)
        with pytest.raises(StaleWriterError):
            second(batch(3), 3)
        assert_same_rows(rows_of(path), model(0, 1, 2, 3))

    @pytest.mark.parametrize("done", [0, 1])
    def test_a_run_that_commits_in_between(self, place: tuple[Path, Path], done: int) -> None:
        path, check = place
        for number in range(done):
            DeltaSink(path, "sales", checkpoint=check)(batch(number), number)

        class Slow(Batch):
            def toArrow(self) -> pa.Table:
                DeltaSink(path, "sales", checkpoint=check)(batch(done), done)
                return self.table

        slow = DeltaSink(path, "sales", checkpoint=check)
        with pytest.raises(StaleWriterError, match="another run wrote to the table while"):
            slow(Slow(batch(done).table), done)
        assert_same_rows(rows_of(path), model(*range(done + 1)))
        slow(batch(done), done)
        assert slow.skipped == 1

    @pytest.mark.parametrize("done", [0, 1])
    def test_of_many_runs_at_once_one_writes(self, place: tuple[Path, Path], done: int) -> None:
        path, check = place
        for number in range(done):
            DeltaSink(path, "sales", checkpoint=check)(batch(number), number)
        sinks = [DeltaSink(path, "sales", checkpoint=check) for _ in range(6)]
        ready, errors = threading.Barrier(len(sinks)), []

        def write(sink: DeltaSink) -> None:
            ready.wait()
            try:
                sink(batch(done), done)
            except SemistreamError as error:
                errors.append(error)

        threads = [threading.Thread(target=write, args=(sink,)) for sink in sinks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(sink.written for sink in sinks) == 1
        assert {type(error) for error in errors} <= {StaleWriterError}
        assert_same_rows(rows_of(path), model(*range(done + 1)))

    def test_an_unrelated_commit_in_between_is_no_conflict(self, place: tuple[Path, Path]) -> None:
        path, check = place
        DeltaSink(path, "sales", checkpoint=check)(batch(0), 0)

        class Slow(Batch):
            def toArrow(self) -> pa.Table:
                write_deltalake(path, batch(5).table, mode="append")
                return self.table

        DeltaSink(path, "sales", checkpoint=check)(Slow(batch(1).table), 1)
        assert_same_rows(rows_of(path), model(0, 1, 5))

    @pytest.mark.parametrize("done, message", [(0, "holds no batch"), (2, "ends with batch 1")])
    def test_a_table_that_lost_batches(self, place: tuple[Path, Path], done: int, message: str) -> None:
        path, check = place
        sink = DeltaSink(path, "sales", checkpoint=check)
        for number in range(done):
            sink(batch(number), number)
        with pytest.raises(MissingBatchesError, match=message):
            DeltaSink(path, "sales", checkpoint=check)(batch(7), 7)
        assert path.exists() == bool(done)

    @pytest.mark.parametrize(
        "change, message",
        [
            (lambda t: t.drop_columns(["vendor"]), r"vendor \(string\) is gone"),
            (lambda t: t.append_column("colour", t.column("vendor")), r"colour \(string\) is new"),
            (lambda t: t.set_column(0, "sale_id", t.column(0).cast("int32")), "sale_id was int64 and is int32"),
            (lambda t: t.set_column(1, "sold_at", t.column("local_time")), "sold_at was .*UTC.* and is timestamp"),
        ],
    )
    def test_other_columns_than_the_table_has(
        self, place: tuple[Path, Path], change: Callable[[pa.Table], pa.Table], message: str
    ) -> None:
        path, check = place
        DeltaSink(path, "sales", checkpoint=check)(batch(0), 0)
        with pytest.raises(SchemaError, match=message):
            DeltaSink(path, "sales", checkpoint=check)(Batch(change(batch(1).table)), 1)
        assert_same_rows(rows_of(path), model(0))

    def test_another_order_of_columns_is_fine(self, place: tuple[Path, Path]) -> None:
        path, check = place
        DeltaSink(path, "sales", checkpoint=check)(batch(0), 0)
        DeltaSink(path, "sales", checkpoint=check)(Batch(batch(1).table.select(SCHEMA.names[::-1])), 1)
        assert_same_rows(rows_of(path), model(0, 1))

    def test_a_type_that_delta_does_not_have(self, place: tuple[Path, Path]) -> None:
        path, check = place
        odd = pa.table({"wait": pa.array([1], pa.duration("us"))})
        with pytest.raises(SinkError, match=r"cannot be made: .*Duration[^\n]*$"):
            DeltaSink(path, "sales", checkpoint=check)(Batch(odd), 0)

    @pytest.mark.parametrize(
        "arguments, message",
        [
            ({"app": ""}, "no name"),
            ({"app": "a@b"}, "without '@'"),
            ({"app": 7}, "no name"),
            ({"app": "a", "path": "s3://bucket/table"}, "remote"),
            ({"app": "a", "replaces": "last one"}, "not the id of a query"),
            ({"app": "a", "replaces": "0123"}, "not the id of a query"),
        ],
    )
    def test_bad_arguments(self, tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ArgumentError, match=message):
            DeltaSink(**{"path": tmp_path, **arguments})

    def test_a_batch_of_no_known_query(self, tmp_path: Path) -> None:
        with pytest.raises(ArgumentError, match="checkpoint="):
            DeltaSink(tmp_path / "table", "sales")(batch(0), 0)


@pytest.mark.parametrize("content", [None, "", "{}", "[]", '{"id": "7"}', '{"id": 7}', "v1"])
def test_a_checkpoint_without_a_query(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "metadata").write_text(content)
    with pytest.raises(SinkError, match="metadata"):
        query_of(tmp_path)
