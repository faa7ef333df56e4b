"""A store is known by its id and its manifest's digest, not only by a path and a number."""

from pathlib import Path

import pyarrow as pa
import pytest

from semistream import MasterStore
from semistream.errors import OtherVersionError

ROWS = pa.table({"id": [1, 2], "price": [1.5, 4.0]})


def test_all_versions_of_a_store_have_its_id(tmp_path: Path) -> None:
    store = MasterStore.build(ROWS, tmp_path / "a", key="id")
    changed = store.upsert(ROWS.slice(0, 1))
    replaced = MasterStore.build(ROWS, tmp_path / "a", key="id", replace=True)
    assert store.manifest.store_id
    assert {one.manifest.store_id for one in (store, changed, replaced)} == {store.manifest.store_id}
    assert len({one.manifest.identity for one in (store, changed, replaced)}) == 3


def test_identity_is_the_same_when_read_back(tmp_path: Path) -> None:
    built = MasterStore.build(ROWS, tmp_path / "a", key="id")
    assert MasterStore.open(tmp_path / "a").manifest.identity == built.manifest.identity


def test_the_same_rows_built_twice_are_two_stores(tmp_path: Path) -> None:
    first = MasterStore.build(ROWS, tmp_path / "a", key="id").manifest
    second = MasterStore.build(ROWS, tmp_path / "b", key="id").manifest
    first.identity.check(first, tmp_path / "a")
    with pytest.raises(OtherVersionError, match="another store"):
        first.identity.check(second, tmp_path / "b")
