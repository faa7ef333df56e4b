"""What only the Delta warehouse can meet: tables set back, a ledger lost, other readers."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from semistream.errors import ArgumentError
from semistream.warehouse import DeltaWarehouse, ForeignCheckpointError, MissingBatchesError, SinkError
from tests.tables import assert_same_rows
from tests.warehouse.warehouses import OTHER, QUERY, Place, batch_of, model, prepared, sales


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("delta", str(tmp_path / "warehouse"), "")


def test_other_readers_see_the_rows(place: Place) -> None:
    warehouse = prepared(place)
    for number in range(3):
        warehouse.commit(batch_of(warehouse, number))
    path = Path(place.root) / "sales"
    wanted = model(0, 1, 2)["sales"]
    assert DeltaTable(path).count() == wanted.num_rows  # from the log's statistics
    assert_same_rows(pl.read_delta(str(path)).to_arrow().cast(wanted.schema), wanted)
    dataset = DeltaTable(path).to_pyarrow_dataset()  # noqa: F841 - DuckDB finds it by its name
    counted = duckdb.execute("SELECT count(*), sum(price) FROM dataset").fetchall()
    assert counted == [(9, pa.compute.sum(wanted["price"]).as_py())]
    # The tasks' own files are the table: nothing was copied.
    assert {Path(uri).name for uri in DeltaTable(path).file_uris()} == {file.name for file in path.glob("part-*")}


def test_read_whatever_the_directory_is_called(tmp_path: Path) -> None:
    warehouse = prepared(Place("delta", str(tmp_path / "große Halle"), ""))
    warehouse.commit(batch_of(warehouse, 0))
    assert_same_rows(warehouse.read("sales"), model(0)["sales"])


def test_batches_are_in_the_history(place: Place) -> None:
    warehouse = prepared(place)
    warehouse.commit(batch_of(warehouse, 0))
    [commit] = [c for c in DeltaTable(Path(place.root) / "_semistream_ledger").history() if "semistream.batch" in c]
    assert (commit["semistream.app"], commit["semistream.batch"]) == ("shop", "0")
    assert commit["semistream.rows"] == '{"sales": 3}'


@pytest.mark.parametrize("how", ["deleted", "emptied"])
def test_a_table_that_was_set_back(place: Place, how: str) -> None:
    warehouse = prepared(place)
    warehouse.commit(batch_of(warehouse, 0))
    shutil.rmtree(Path(place.root) / "sales")
    if how == "emptied":
        prepared(place)
    with pytest.raises(MissingBatchesError, match=r"sales (is gone|was set back): batch 0 of 'shop'"):
        place.open().commit(batch_of(warehouse, 1))


def test_a_ledger_that_was_deleted(place: Place) -> None:
    warehouse = prepared(place)
    for number in range(2):
        warehouse.commit(batch_of(warehouse, number))
    shutil.rmtree(Path(place.root) / "_semistream_ledger")
    with pytest.raises(MissingBatchesError):
        place.open().commit(batch_of(warehouse, 2))
    with pytest.raises(ForeignCheckpointError):  # the tables know whose they are
        place.open().check("shop", OTHER)
    with pytest.raises(ForeignCheckpointError):
        place.open().commit(batch_of(warehouse, 0, query=OTHER))
    assert_same_rows(warehouse.read("sales"), model(0, 1)["sales"])


def test_half_a_batch_of_another_query(place: Place) -> None:
    """Killed between two tables, and the checkpoint deleted: the ledger knows nothing yet, the table does."""
    warehouse = prepared(place)
    place.killed("warehouse.table_written", {"commit": batch_of(warehouse, 0).to_json()})
    with pytest.raises(ForeignCheckpointError):
        place.open().check("shop", OTHER)
    assert place.open().check("shop", QUERY) == -1


def test_a_table_that_has_the_batch_is_left_alone(place: Place) -> None:
    """Also when its rows were staged again: what counts is the number, not the files."""
    warehouse = prepared(place)
    place.killed("warehouse.table_written", {"commit": batch_of(warehouse, 0).to_json()})
    assert_same_rows(warehouse.read("sales"), sales(0))
    before = DeltaTable(Path(place.root) / "sales").version()
    assert place.open().commit(batch_of(warehouse, 0))
    assert DeltaTable(Path(place.root) / "sales").version() == before


def test_marks_outlive_a_checkpoint_of_the_log(place: Place) -> None:
    warehouse = prepared(place)
    batches = [batch_of(warehouse, number) for number in range(3)]
    for batch in batches:
        warehouse.commit(batch)
    for table in ("sales", "_semistream_ledger"):
        path = Path(place.root) / table
        DeltaTable(path).create_checkpoint()
        for log in sorted((path / "_delta_log").glob("*.json"))[:-1]:
            log.unlink()
    assert not any(place.open().commit(batch) for batch in batches)
    assert place.open().commit(batch_of(warehouse, 3))
    assert_same_rows(warehouse.read("sales"), model(0, 1, 2, 3)["sales"])


def test_an_unrelated_commit_is_no_conflict(place: Place) -> None:
    warehouse = prepared(place)
    warehouse.commit(batch_of(warehouse, 0))
    write_deltalake(Path(place.root) / "sales", sales(5), mode="append")
    assert warehouse.commit(batch_of(warehouse, 1))
    assert_same_rows(warehouse.read("sales"), model(0, 1, 5)["sales"])


def test_a_mirror_leaves_other_files_alone(place: Place) -> None:
    warehouse = place.open()
    for version in range(3):
        codes = range(version * 100, version * 100 + 100)
        warehouse.mirror("d", ["code"], pa.table({"code": codes, "name": ["old"] * 100}), version)
    path = Path(place.root) / "d"
    before = set(DeltaTable(path).file_uris())
    warehouse.mirror("d", ["code"], pa.table({"code": [150], "name": ["new"]}), 3)
    assert len(before & set(DeltaTable(path).file_uris())) >= 2
    assert DeltaTable(path).count() == 300


def test_a_deltalake_that_would_lose_the_marks(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    warehouse = prepared(place)
    batch = batch_of(warehouse, 0)
    monkeypatch.setattr("deltalake.__version__", "1.5.1")
    with pytest.raises(SinkError, match=r"deltalake 1.5.1 is too old .*pip install 'deltalake>=1.6'"):
        warehouse.commit(batch)
    assert warehouse.read("sales").num_rows == 0


def test_what_is_no_warehouse(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="remote"):
        DeltaWarehouse("s3://bucket/warehouse")
    with pytest.raises(SinkError, match="no Delta table 'sales'"):
        DeltaWarehouse(tmp_path).read("sales")
    assert str(tmp_path) in DeltaWarehouse(tmp_path).describe()
    with pytest.raises(SinkError, match=r"cannot be made: .*Duration[^\n]*$"):
        DeltaWarehouse(tmp_path).prepare("odd", pa.schema([("wait", pa.duration("us"))]))
