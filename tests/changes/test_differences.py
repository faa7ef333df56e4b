"""Snapshots against stores: what is new, changed and gone, and that applying it gives the snapshot."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.changes import apply_changes, snapshot_differences
from semistream.changes.rows import change_schema
from semistream.errors import ArgumentError, SchemaError
from semistream.stores import MasterStore
from tests.tables import assert_same_rows, table_of

NAN = float("nan")
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.float64()), ("t", pa.string())])


def table(rows: dict[str, tuple[Any, Any]]) -> pa.Table:
    values = [{"k": key, "v": v, "t": t} for key, (v, t) in rows.items()]
    return pa.Table.from_pylist(values, schema=SCHEMA)


def found(snapshot: Any, store: MasterStore, **options: Any) -> dict[str, str]:
    changes = [row for batch in snapshot_differences(snapshot, store, **options) for row in batch.to_pylist()]
    ops = {row["k"]: row["_op"] for row in changes}
    assert len(ops) == len(changes), "a key has one change"
    return ops


@pytest.fixture
def store(tmp_path: Path) -> MasterStore:
    rows = {"a": (1.0, "x"), "b": (NAN, None), "c": (None, "z"), "d": (-0.0, "")}
    return MasterStore.build(table(rows), tmp_path / "store", key="k")


def test_nothing_differs(store: MasterStore) -> None:
    rows = {"c": (None, "z"), "b": (NAN, None), "d": (0.0, ""), "a": (1.0, "x")}
    assert found(table(rows), store) == {}
    assert sorted(os.listdir(store.path.parent)) == ["store"], "no files are left"


def test_every_difference(store: MasterStore) -> None:
    rows = {"a": (None, "x"), "b": (1.0, None), "d": (0.0, None), "e": (None, None)}
    changes = pa.Table.from_batches(snapshot_differences(table(rows), store))
    assert found(table(rows), store) == {"a": "update", "b": "update", "c": "delete", "d": "update", "e": "insert"}
    done = apply_changes(store, changes)
    assert (done.inserted, done.updated, done.deleted) == (1, 3, 1)
    assert_same_rows(table_of(done.store.scan(), store.schema), table(rows))
    assert found(table(rows), done.store) == {}


def test_an_empty_snapshot_and_an_empty_store(store: MasterStore, tmp_path: Path) -> None:
    assert set(found(SCHEMA.empty_table(), store).values()) == {"delete"}
    empty = MasterStore.build(SCHEMA.empty_table(), tmp_path / "empty", key="k")
    assert found(table({"a": (1.0, "x")}), empty) == {"a": "insert"}
    assert found(SCHEMA.empty_table(), empty) == {}


def test_columns_in_another_order_and_more_of_them(store: MasterStore) -> None:
    rows = table({"a": (1.0, "x"), "b": (NAN, None), "c": (None, "z"), "d": (0.0, "")})
    assert found(rows.append_column("more", [[1, 2, 3, 4]]).select(["more", "t", "v", "k"]), store) == {}


def test_what_is_refused(store: MasterStore, tmp_path: Path) -> None:
    twice = pa.concat_tables([table({"a": (1.0, "x"), "q": (1.0, "x")}), table({"q": (2.0, "y")})])
    with pytest.raises(SchemaError, match=r"several rows for the key {'k': 'q'}"):
        found(twice, store)
    with pytest.raises(SchemaError, match="the snapshot has no column 't'"):
        snapshot_differences(twice.drop_columns(["t"]), store)
    null = pa.Table.from_pylist([{"k": None, "v": 1.0, "t": ""}], schema=SCHEMA)
    with pytest.raises(SchemaError, match="1 rows whose key column 'k' is NULL"):
        found(null, store)
    several = MasterStore.build(twice, tmp_path / "several", key="k")
    with pytest.raises(ArgumentError, match="keys with several rows"):
        snapshot_differences(twice, several)


def test_larger_than_memory(tmp_path: Path) -> None:
    """40,000 rows on either side, 2 MB of memory, the snapshot as a stream in another order."""
    rows = 40_000
    old = pa.table({"k": range(rows), "v": range(rows), "t": ["some text"] * rows})
    store = MasterStore.build(old, tmp_path / "store", key="k", memory="2MB")
    keys = [(number * 7_919) % rows + 100 for number in range(rows)]
    values = [key + (key % 1_000 == 0) for key in keys]
    new = pa.table({"k": keys, "v": values, "t": ["some text"] * rows})
    counts: dict[str, int] = {}
    for batch in snapshot_differences(iter(new.to_batches(4_000)), store, memory="2MB"):
        counts[batch.column(0)[0].as_py()] = counts.get(batch.column(0)[0].as_py(), 0) + batch.num_rows
    assert counts == {"insert": 100, "delete": 100, "update": 39}


ROWS = st.dictionaries(
    st.text("ab", max_size=2),
    st.tuples(st.sampled_from([None, 0.0, -0.0, 1.0, NAN]), st.sampled_from([None, "", "x"])),
    max_size=6,
)


@settings(max_examples=20, deadline=None)
@given(old=ROWS, new=ROWS)
def test_applied_they_give_the_snapshot(
    old: dict[str, Any], new: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = MasterStore.build(table(old), tmp_path_factory.mktemp("differences") / "store", key="k")
    changes = table_of(snapshot_differences(table(new), store), change_schema(SCHEMA))
    expected = {key for key in {*old, *new} if plain(old.get(key)) != plain(new.get(key))}
    assert set(changes["k"].to_pylist()) == expected
    assert_same_rows(table_of(apply_changes(store, changes).store.scan(), store.schema), table(new))


def plain(row: Any) -> str:
    return repr(row).replace("-0.0", "0.0")
