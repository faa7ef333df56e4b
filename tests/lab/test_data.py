"""Data is made once, whole or not at all, and is the same for every arm."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from semistream import MasterStore
from semistream_lab import data as module
from semistream_lab.data import BenchData, Stream


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


def test_half_made_data_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    data = BenchData(tmp_path, 100)
    monkeypatch.setattr(module, "_write_files", fail)
    with pytest.raises(OSError, match="disk full"):
        data.unsorted()
    assert list(data.directory.iterdir()) == []
