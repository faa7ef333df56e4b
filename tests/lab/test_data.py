"""Data is made once, whole or not at all, and is the same for every arm."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from semistream import MasterStore
from semistream_lab import data as module
from semistream_lab.cells import enriched
from semistream_lab.data import BenchData, Stream
from semistream_lab.making import Making, announcement
from semistream_lab.settings import Settings


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> BenchData:
    return BenchData(tmp_path_factory.mktemp("bench"), 3000)


def test_master_in_both_orders(data: BenchData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROW_GROUP", 256)
    unsorted = pq.read_table(data.unsorted())
    ordered = pq.read_table(data.master())
    keys = ordered.column("key").to_pylist()
    assert keys == list(range(3000))
    assert unsorted.column("key").to_pylist() != keys
    assert unsorted.sort_by("key").equals(ordered.replace_schema_metadata(unsorted.schema.metadata))
    files = sorted(data.master().glob("*.parquet"))
    assert len(files) == module.FILES
    assert all(pq.ParquetFile(file).metadata.num_row_groups == 3 for file in files)
    assert MasterStore.open(data.store()).rows == 3000


def test_made_once(data: BenchData) -> None:
    before = (data.store() / "version-000001.json").stat().st_mtime_ns
    assert (data.store() / "version-000001.json").stat().st_mtime_ns == before


def test_stream_in_micro_batches(data: BenchData) -> None:
    plan = Stream(wide=True, batch_rows=7, count=3, large_rows=20, large=2)
    assert plan.sizes == [20, 20, 7, 7, 7]
    files = sorted(data.stream(plan).glob("*.parquet"), key=lambda file: file.stat().st_mtime)
    assert [file.name for file in files] == sorted(file.name for file in files)
    assert [pq.read_metadata(file).num_rows for file in files] == [10, 10, 10, 10, 3, 4, 3, 4, 3, 4]
    rows = [number for file in files for number in pq.read_table(file).column("at").to_pylist()]
    assert rows == list(range(61))
    assert "text11" in pq.read_schema(files[0]).names


@pytest.mark.parametrize("columns", ["narrow", "three", "text"])
def test_a_store_with_a_column_group(data: BenchData, columns: str) -> None:
    path, names = data.store(columns), enriched(columns)
    assert path != data.store()
    assert data.store(columns) == path
    store, plain = MasterStore.open(path), MasterStore.open(data.store())
    assert plain.manifest.groups == {}
    assert store.covering(names).group == columns
    assert store.bytes == plain.bytes  # so that a share of it is the same memory
    assert store.get([7, 2999], names) == plain.get([7, 2999], names)
    same = {file.stat().st_ino for file in path.iterdir()} & {file.stat().st_ino for file in data.store().iterdir()}
    assert len(same) >= 2  # the plain store's files under second names


def test_all_columns_need_no_group(data: BenchData) -> None:
    assert data.store("all") == data.store()


def test_what_making_takes_is_known_before(data: BenchData, tmp_path: Path) -> None:
    def asked(root: Path, rows: int, *arms: str) -> Settings:
        return Settings("core", rows, tmp_path / "out", root, arms=arms, more_rows=(100 * rows,))

    arms = ("sweep", "sweep_groups", "duckdb_table")
    making = Making.of(asked(tmp_path, 1_000_000, *arms))
    assert making.bytes == pytest.approx(101e6 * (40 + 140 + 34 + 40))
    assert making.meanwhile == 140 * 10**8
    said = announcement(asked(tmp_path, 1_000_000, *arms))
    assert said is not None
    assert "data of 1,000,000, 100,000,000 rows is made first: the master, unsorted, the store" in said
    assert "5 minutes on two idle cores, 25.7 GB of disk and 14.0 GB more meanwhile" in said
    there = Settings("core", data.rows, tmp_path / "out", data.root, arms=("sweep", "inl"))
    data.store()
    assert Making.of(there) == Making(0, 0, 0)
    assert announcement(there) is None


def test_half_made_data_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    data = BenchData(tmp_path, 100)
    monkeypatch.setattr(module, "_write_files", fail)
    with pytest.raises(OSError, match="disk full"):
        data.unsorted()
    assert list(data.directory.iterdir()) == []
