"""What only the Parquet warehouse can meet: its manifests, damaged, lost or many; readers of the directory."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semistream.errors import ArgumentError
from semistream.warehouse import ParquetWarehouse, SinkError, parquet
from tests.tables import assert_same_rows
from tests.warehouse.warehouses import QUERY, Place, batch_of, model, prepared, sales


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("parquet", str(tmp_path / "warehouse"), "")


def manifests(place: Place) -> list[Path]:
    return sorted((Path(place.root) / "manifests").iterdir())


def test_readers_of_the_manifest_see_committed_files_only(place: Place) -> None:
    warehouse = prepared(place)
    warehouse.commit(batch_of(warehouse, 0))
    batch_of(warehouse, 1)  # staged and never committed
    path = Path(place.root) / "sales"
    assert_same_rows(parquet.read(path), sales(0))
    assert_same_rows(pa.concat_tables([pq.read_table(file) for file in parquet.files_of(path)]), sales(0))
    assert pq.read_table(path).num_rows == 6  # what whoever passes the manifest by sees


def test_many_commits(place: Place) -> None:
    """Past the manifests that repeat the whole, a new reader and an old one see the same."""
    old = place.open()
    warehouse = prepared(place)
    for number in range(120):
        rows = {"sales": sales(number, 1)}
        warehouse.commit(batch_of(warehouse, number, rows, kind="replace" if number == 60 else "append"))
        if number in (5, 70):
            assert old.read("sales").num_rows in (6, 11)
    assert len(manifests(place)) == 122
    wanted = pa.concat_tables([sales(number, 1) for number in range(60, 120)])
    for reader in (old, warehouse, place.open()):
        assert_same_rows(reader.read("sales"), wanted)
        assert reader.check("shop", QUERY) == 119
    for early in manifests(place)[:99]:
        early.unlink()  # version 100 repeats what they said
    assert_same_rows(place.open().read("sales"), wanted)


def test_a_manifest_with_a_flipped_bit(place: Place) -> None:
    """Whatever byte it hits: an error that names the file, or nothing changed."""
    warehouse = prepared(place)
    for number in range(2):
        warehouse.commit(batch_of(warehouse, number))
    path = random.Random(5).choice(manifests(place))
    good = path.read_bytes()
    choose = random.Random(7)
    errors: list[str] = []
    for _ in range(200):
        bad = bytearray(good)
        bad[choose.randrange(len(bad))] ^= 1 << choose.randrange(8)
        path.write_bytes(bytes(bad[: choose.choice([len(bad), len(bad), choose.randrange(len(bad))])]))
        try:
            found = place.open().read("sales")
        except SinkError as error:
            errors.append(str(error))
        else:
            assert_same_rows(found, model(0, 1)["sales"])
    assert len(errors) > 150
    assert all(str(path) in error for error in errors)
    path.write_bytes(good)
    assert place.open().check("shop", QUERY) == 1


def test_a_manifest_that_is_gone(place: Place) -> None:
    warehouse = prepared(place)
    for number in range(2):
        warehouse.commit(batch_of(warehouse, number))
    [*_, before, last] = manifests(place)
    before.unlink()
    with pytest.raises(SinkError, match=before.name):
        place.open().read("sales")
    last.unlink()
    with pytest.raises(SinkError, match="was set back: version 4 was there and 2 is the newest"):
        warehouse.read("sales")


def test_a_data_file_that_is_damaged(place: Place) -> None:
    warehouse = prepared(place)
    warehouse.commit(batch_of(warehouse, 0))
    [file, *_] = parquet.files_of(Path(place.root) / "sales")
    whole = file.read_bytes()
    file.write_bytes(whole[:4] + b"\xff" * 8 + whole[12:])
    with pytest.raises(SinkError, match=f"{file} is damaged"):
        place.open().read("sales")
    file.unlink()
    with pytest.raises(SinkError, match=f"{file} cannot be read"):
        place.open().read("sales")


def test_a_mirror_leaves_other_files_alone(place: Place) -> None:
    warehouse = place.open()
    for version in range(3):
        codes = range(version * 100, version * 100 + 100)
        warehouse.mirror("d", ["code"], pa.table({"code": codes, "name": ["old"] * 100}), None, version)
    before = parquet.files_of(Path(place.root) / "d")
    warehouse.mirror("d", ["code"], pa.table({"code": [150], "name": ["new"]}), None, 3)
    after = parquet.files_of(Path(place.root) / "d")
    assert len(set(before) & set(after)) == 2
    assert warehouse.read("d").num_rows == 300


def test_what_is_no_warehouse(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="remote"):
        ParquetWarehouse("s3://bucket/warehouse")
    with pytest.raises(SinkError, match="no Parquet table 'sales'; its manifests know: none"):
        parquet.read(tmp_path / "sales")
    with pytest.raises(ArgumentError, match="choose another name"):
        ParquetWarehouse(tmp_path).place("manifests")
    assert str(tmp_path) in ParquetWarehouse(tmp_path).describe()
