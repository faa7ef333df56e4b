"""Versions: upsert, delete, compact, vacuum, who may write, and what readers see meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semistream.errors import ArgumentError, ConcurrentWriteError, SchemaError, StoreError, StoreNotFoundError
from semistream.stores import MasterStore
from semistream.stores.paged.manifest import Manifest
from semistream.stores.paged.publishing import publish
from tests.tables import assert_same_rows, table_of

NAN = float("nan")


def rows(store: MasterStore) -> list[tuple[Any, ...]]:
    table = table_of(store.scan(), store.schema)
    return sorted(zip(*table.to_pydict().values(), strict=True), key=repr)


@pytest.fixture
def store(tmp_path: Path) -> MasterStore:
    table = pa.table({"k": [1, 2, 2, 3], "v": ["one", "two", "zwei", "three"]})
    return MasterStore.build(table, tmp_path / "store", key="k")


def test_the_life_of_a_store(store: MasterStore) -> None:
    second = store.upsert(pa.table({"k": [2, 4], "v": ["deux", "quatre"]}))
    assert rows(second) == [(1, "one"), (2, "deux"), (3, "three"), (4, "quatre")]
    third = second.delete([1, 99])
    assert rows(third) == [(2, "deux"), (3, "three"), (4, "quatre")]
    fourth = third.upsert(pa.table({"v": ["a", "b"], "k": [1, 1]}))
    assert rows(fourth) == [(1, "a"), (1, "b"), (2, "deux"), (3, "three"), (4, "quatre")]
    fifth = fourth.compact()
    assert rows(fifth) == rows(fourth)
    assert [(one["version"], one["change"], one["rows"]) for one in fifth.versions()] == [
        (1, "build", 4),
        (2, "upsert", 4),
        (3, "delete", 3),
        (4, "upsert", 5),
        (5, "compact", 5),
    ]
    assert all(one["bytes"] > 0 and abs(one["created"] - time.time()) < 600 for one in fifth.versions())
    assert len(fifth.manifest.segments) == 1
    assert [MasterStore.open(store.path, number).rows for number in (1, 2, 3, 4, 5)] == [4, 4, 3, 5, 5]
    assert rows(MasterStore.open(store.path, 1)) == [(1, "one"), (2, "two"), (2, "zwei"), (3, "three")]
    assert fifth.compact() is fifth
    for one in (store, second, third, fourth, fifth):
        assert one.verify() == one.pages
        assert one.rows == len(rows(one))


def test_everything_deleted_and_filled_again(store: MasterStore) -> None:
    empty = store.delete([1, 2, 3])
    assert (empty.rows, rows(empty), rows(empty.compact())) == (0, [], [])
    again = empty.latest().upsert(pa.table({"k": [7], "v": ["seven"]}))
    assert rows(again) == rows(again.compact()) == [(7, "seven")]


def test_nothing_to_change_makes_no_version(store: MasterStore) -> None:
    nothing = pa.table({"k": pa.array([], pa.int64()), "v": pa.array([], pa.string())})
    assert store.delete([]).version == 1
    assert store.upsert(nothing).version == 1


def test_vacuum_removes_what_dead_writers_left(store: MasterStore) -> None:
    old, young = store.path / "segment-0123456789abcdef.pages", store.path / "segment-fedcba9876543210.pages"
    for path in (old, young):
        path.write_bytes(b"half a segment")
    os.utime(old, (0, 0))
    assert store.vacuum() == [old.name]
    assert young.exists()
    store.verify()


def test_vacuum_keeps_the_newest(store: MasterStore) -> None:
    for number in range(4):
        store = store.upsert(pa.table({"k": [number], "v": [f"version {number}"]}))
    store = store.compact()
    old = MasterStore.open(store.path, 3)
    before = rows(old)
    removed = store.vacuum(keep=2)
    assert [one["version"] for one in store.versions()] == [5, 6]
    assert sorted(name for name in removed if name.startswith("version")) == [
        f"version-00000{n}.json" for n in (1, 2, 3, 4)
    ]
    assert rows(MasterStore.open(store.path, 5)) == rows(store)
    assert rows(old) == before
    removed = store.vacuum(keep=1)
    assert len([name for name in removed if name.startswith("segment")]) == 5
    left = {store.manifest.segments[0].file, "version-000006.json", "floor-000005", "floor-000006"}
    assert set(os.listdir(store.path)) == left
    with pytest.raises(StoreNotFoundError, match="has no version 5; it has versions 6"):
        MasterStore.open(store.path, 5)
    with pytest.raises(ArgumentError, match="keep=0"):
        store.vacuum(keep=0)


def test_a_stale_writer_is_refused(store: MasterStore) -> None:
    store.upsert(pa.table({"k": [9], "v": ["nine"]}))
    with pytest.raises(StoreError, match=r"version 1 of .*version 2 is there; use store\.latest\(\)"):
        store.delete(1)
    with pytest.raises(StoreError, match=r"version 1 of .*version 2 is there; use store\.latest\(\)"):
        store.upsert(pa.table({"k": [1], "v": [""]}))
    assert rows(store.latest().delete(1)) == [(2, "two"), (2, "zwei"), (3, "three"), (9, "nine")]


def test_a_stale_compaction_does_not_undo_a_newer_version(store: MasterStore) -> None:
    second = store.upsert(pa.table({"k": [9], "v": ["nine"]}))
    second.upsert(pa.table({"k": [10], "v": ["ten"]}))
    with pytest.raises(StoreError):
        second.compact()
    assert store.latest().get(10).num_rows == 1
    stray = [name for name in os.listdir(store.path) if name.startswith("segment")]
    assert len(stray) == 3


def test_the_same_version_is_published_once(store: MasterStore) -> None:
    following = store.manifest.next("upsert")
    publish(following, store.path)
    with pytest.raises(ConcurrentWriteError, match=r"version-000002.json exists"):
        publish(store.manifest.next("delete"), store.path)
    assert Manifest.load(store.path).change == "upsert"


def race(start: MasterStore, writers: int) -> tuple[list[int], list[BaseException]]:
    """Several threads change the same version at the same moment: who won, and what the others were told."""
    gate = threading.Barrier(writers)
    won: list[int] = []
    lost: list[BaseException] = []

    def write(number: int) -> None:
        gate.wait()
        try:
            start.upsert(pa.table({"k": [50], "v": [f"writer {number}"]}))
            won.append(number)
        except BaseException as error:  # noqa: BLE001 - judged by the caller
            lost.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return won, lost


def test_of_many_writers_at_once_one_wins(store: MasterStore) -> None:
    for turn in range(5):
        won, lost = race(store.latest(), 4)
        assert [error for error in lost if not isinstance(error, StoreError)] == []
        assert len(won) == 1
        assert store.latest().version == 2 + turn
        assert store.latest().get(50)["v"].to_pylist() == [f"writer {won[0]}"]


def test_readers_of_an_old_version_are_undisturbed(store: MasterStore) -> None:
    before = rows(store)
    reading = store.scan()
    newer = store.upsert(pa.table({"k": [1, 2], "v": ["x", "y"]})).delete(3).compact()
    newer.vacuum(keep=1)
    assert sum(batch.num_rows for batch in reading) == 4
    assert rows(store) == before
    assert store.get(2).num_rows == 2
    assert store.latest().version == 4


def test_no_torn_reads(tmp_path: Path) -> None:
    """A writer keeps a + b = 1000 over two rows, version after version; no reader ever sees another sum."""
    filler = list(range(10, 2_000))
    table = pa.table({"k": [1, 5_000, *filler], "v": [400, 600, *filler]})
    first = MasterStore.build(table, tmp_path / "store", key="k")
    done = threading.Event()
    failed: list[BaseException] = []

    def write() -> None:
        try:
            store = first
            for number in range(40):
                store = store.upsert(pa.table({"k": [1, 5_000], "v": [number, 1_000 - number]}))
                if number % 15 == 14:
                    store = store.compact()
        except BaseException as error:  # noqa: BLE001 - shown below
            failed.append(error)
        finally:
            done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    lookups = 0
    while not done.is_set() or lookups < 50:
        store = MasterStore.open(tmp_path / "store")
        assert sum(store.get([1, 5_000])["v"].to_pylist()) == 1_000
        seen.add(store.version)
        lookups += 1
    writer.join()
    assert failed == []
    assert first.latest().version == 43
    assert len(seen) > 1


def test_changed_since(store: MasterStore) -> None:
    def codes(*keys: int) -> list[int]:
        return sorted(store.codec.encode([pa.array(keys, pa.int64())])[0].tolist())

    def changed(one: MasterStore, version: int) -> list[int] | None:
        found = one.changed_since(version)
        return None if found is None else found.tolist()

    second = store.upsert(pa.table({"k": [2, 7], "v": ["", ""]}))
    third = second.delete([3, 7, 1_000])
    fourth = third.compact()
    assert changed(store, 1) == []
    assert changed(second, 1) == codes(2, 7)
    assert changed(third, 2) == codes(3, 7, 1_000)
    assert changed(third, 1) == codes(2, 3, 7, 1_000)
    assert changed(fourth, 3) == []
    assert changed(fourth, 1) == codes(2, 3, 7, 1_000)
    assert changed(store, 2) is None
    fifth = MasterStore.build(pa.table({"k": [1], "v": [""]}), store.path, key="k", replace=True)
    assert changed(fifth, 4) is None
    fifth.vacuum(keep=1)
    assert changed(fifth, 1) is None


# -- keys --------------------------------------------------------------------------------------------------------------


def test_nan_and_zero_in_composite_keys(tmp_path: Path) -> None:
    table = pa.table({"a": ["x", "x", "y"], "b": [NAN, 0.0, NAN], "v": [1, 2, 3]})
    store = MasterStore.build(table, tmp_path / "store", key=["a", "b"])
    assert store.get([("x", NAN)])["v"].to_pylist() == [1]
    assert store.get(pa.table({"a": ["x", "x"], "b": [NAN, -0.0]}))["v"].to_pylist() in ([1, 2], [2, 1])
    changed = store.upsert(pa.table({"a": ["x", "x"], "b": [NAN, -0.0], "v": [10, 20]}))
    assert changed.rows == 3
    assert sorted(table_of(changed.scan(), changed.schema)["v"].to_pylist()) == [3, 10, 20]
    gone = changed.delete([("x", NAN), ("y", NAN)])
    assert table_of(gone.scan(), gone.schema)["v"].to_pylist() == [20]


@pytest.mark.parametrize(
    "kept, given",
    [
        (pa.array([1.0, 2.0]), pa.array([2, 3])),
        (pa.array(["1", "2"]), pa.array([2, 3])),
        (pa.array([1, 2], pa.timestamp("us")), pa.array([2_000, 3_000], pa.timestamp("ns"))),
        (pa.array([86_400_000_000, 2 * 86_400_000_000], pa.timestamp("us")), pa.array([2, 3], pa.date32())),
        (pa.array([1, 2], pa.int64()), pa.array([2, 3], pa.int32())),
        (pa.array(["1", "2"]), pa.array(["2", "3"], pa.large_string())),
        (pa.array([1, 2], pa.decimal128(30, 3)), pa.array([2, 3], pa.decimal128(20, 1))),
        (pa.array([1, 2], pa.decimal128(10, 2)), pa.array([2, 3], pa.decimal128(12, 3))),
    ],
    ids=lambda array: str(array.type),
)
def test_upsert_with_a_key_of_another_type_is_refused_or_right(tmp_path: Path, kept: pa.Array, given: pa.Array) -> None:
    """Key 2 is replaced and key 3 added, or the types are named; never a row that cannot be found."""
    store = MasterStore.build(pa.table({"k": kept, "v": [1, 2]}), tmp_path / "store", key="k")
    try:
        changed = store.upsert(pa.table({"k": given, "v": [20, 30]}))
    except SchemaError as error:
        assert str(kept.type) in str(error)  # noqa: PT017
        assert str(given.type) in str(error)  # noqa: PT017
        assert store.latest().version == 1
        return
    expected = [1, 20, 30]
    assert sorted(table_of(changed.scan(), changed.schema)["v"].to_pylist()) == expected
    assert sorted(changed.get(pa.concat_arrays([kept, given.cast(kept.type)]))["v"].to_pylist()) == expected


def test_colliding_keys_are_told_apart(tmp_path: Path) -> None:
    keys = [f"key {n}" for n in range(60)]
    table = pa.table({"k": keys, "v": range(60)})
    store = MasterStore.build(table, tmp_path / "store", key="k", hash_bits=2)
    for key in keys[::7]:
        assert store.get(key).num_rows == 1
    store = store.delete(keys[:20]).upsert(pa.table({"k": keys[30:40], "v": range(130, 140)}))
    expected = pa.table({"k": keys[20:], "v": [*range(20, 30), *range(130, 140), *range(40, 60)]})
    assert_same_rows(table_of(store.scan(), store.schema), expected)
    assert_same_rows(store.get(keys), expected)
    store = store.compact()
    assert_same_rows(table_of(store.scan(), store.schema), expected)


@pytest.mark.parametrize(
    "keys, expected",
    [
        (2, [2, 2]),
        ([3, 1, 3], [1, 3]),
        ((1, 3), [1, 3]),
        ([], []),
        ([None, 1], [1]),
        (None, []),
        (pa.array([1, 2]), [1, 2, 2]),
        (pa.chunked_array([[1], [3]]), [1, 3]),
        (pa.table({"x": ["a"], "k": [3]}), [3]),
        (pa.record_batch({"k": [99]}), []),
        (range(1, 3), [1, 2, 2]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_forms_of_keys(store: MasterStore, keys: object, expected: list[int]) -> None:
    assert store.get(keys)["k"].to_pylist() == expected
    assert sorted(set(store.delete(keys).get([1, 2, 3])["k"].to_pylist()) ^ {1, 2, 3}) == sorted(set(expected))


def test_forms_of_composite_keys(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 1, 2], "b": ["x", "y", "x"]})
    store = MasterStore.build(table, tmp_path / "store", key=["a", "b"])
    assert store.get((1, "y")).to_pylist() == [{"a": 1, "b": "y"}]
    assert store.get([(1, "y"), (2, "x"), (2, "y")]).num_rows == 2
    assert store.get([]).num_rows == 0
    assert store.get(table.slice(1)).num_rows == 2
    for wrong in (5, "xy", [(1, "x"), (2,)], [(1, "x", 3)], [1, 2], pa.array([1])):
        with pytest.raises(ArgumentError, match="key"):
            store.get(wrong)


@pytest.mark.parametrize("wrong", ["text", 1.5, [1, "x"], 2**70, b"1"], ids=repr)
def test_keys_that_do_not_fit(store: MasterStore, wrong: object) -> None:
    for use in (store.get, store.delete):
        with pytest.raises(ArgumentError, match=r"k int64"):
            use(wrong)
    assert store.latest().version == 1


def test_arrow_keys_of_another_type_are_named(store: MasterStore) -> None:
    with pytest.raises(SchemaError, match="'k' is int64, these keys are int32"):
        store.get(pa.array([1], pa.int32()))
    with pytest.raises(ArgumentError, match="no column 'k'"):
        store.delete(pa.table({"other": [1]}))
    with pytest.raises(ArgumentError, match=r"no column 'nope'.*'k', 'v'"):
        store.get(1, columns=["nope"])
    with pytest.raises(ArgumentError, match="no column 'nope'"):
        list(store.scan(["nope"]))


@pytest.mark.parametrize(
    "table, words",
    [
        (pa.table({"k": [1]}), r"missing: \['v'\]"),
        (pa.table({"k": [1], "v": [""], "w": [1]}), r"unknown: \['w'\]"),
        (pa.table({"k": [1, None], "v": ["", ""]}), "'k' holds 1 NULLs"),
        (pa.table({"k": [1], "v": [[1]]}), "'v' is list"),
    ],
    ids=["missing", "unknown", "null", "type"],
)
def test_upserts_that_do_not_fit(store: MasterStore, table: pa.Table, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        store.upsert(table)
    assert (store.latest().version, len(os.listdir(store.path))) == (1, 2)


def test_a_store_that_is_gone(store: MasterStore) -> None:
    shutil.rmtree(store.path)
    for use in (store.latest, lambda: store.delete(1), lambda: MasterStore.open(store.path)):
        with pytest.raises(StoreNotFoundError, match="no semistream store at"):
            use()
    with pytest.raises(StoreNotFoundError, match="no semistream store at"):
        store.upsert(pa.table({"k": [1], "v": [""]}))


def test_what_a_store_says_of_itself(store: MasterStore) -> None:
    assert "version=1, rows=4, key=['k']" in repr(store)
    assert (store.key, store.schema.names, store.unique) == (("k",), ["k", "v"], False)
    assert store.bytes == sum((store.path / entry.file).stat().st_size for entry in store.manifest.segments)
    assert store.facts.index_bytes > 0
    assert np.isfinite(store.facts.row_bytes)


# -- several changes at once, and what is kept with them ---------------------------------------------------------------


def test_upserts_deletions_and_properties_are_one_version(store: MasterStore) -> None:
    new = store.apply(pa.table({"k": [1, 9], "v": ["eins", "neun"]}), [2, 77], properties={"batch": "1"})
    assert rows(new) == [(1, "eins"), (3, "three"), (9, "neun")]
    assert (new.version, new.manifest.change, new.properties) == (2, "apply", {"batch": "1"})
    assert new.changed_since(1).tolist() == store.codec.encode([pa.array([1, 2, 9, 77])])[0].tolist()  # type: ignore[union-attr]
    only = new.apply(properties={"other": "x"})
    assert (only.version, only.manifest.change, only.rows) == (3, "properties", 3)
    assert only.properties == {"batch": "1", "other": "x"}
    assert only.changed_since(2).tolist() == []  # type: ignore[union-attr]
    assert only.apply(properties={"other": "x"}) is only
    assert only.apply() is only
    for later in (only.upsert(pa.table({"k": [5], "v": ["five"]})), only.latest().delete(5), only.latest().compact()):
        assert later.properties == only.properties
    rebuilt = MasterStore.build(pa.table({"k": [1], "v": [""]}), store.path, key="k", replace=True)
    assert rebuilt.properties == only.properties


def test_what_apply_refuses(store: MasterStore) -> None:
    both = pa.table({"k": [1, 9], "v": ["", ""]})
    with pytest.raises(ArgumentError, match=r"1 keys are both upserted and deleted, the first is \{'k': 9\}"):
        store.apply(both, [9, 3])
    with pytest.raises(ArgumentError, match=r"properties: 'batch': 1 is not usable"):
        store.apply(both, properties={"batch": 1})  # type: ignore[dict-item]
    store.apply(both)
    with pytest.raises(ConcurrentWriteError, match=r"use store\.latest\(\)\.apply"):
        store.apply(properties={"late": ""})
    assert store.latest().version == 2


def test_manifests_without_properties_still_open(store: MasterStore) -> None:
    path = store.path / "version-000001.json"
    document = json.loads(path.read_text())
    del document["manifest"]["properties"]
    document["crc32"] = zlib.crc32(json.dumps(document["manifest"], sort_keys=True).encode())
    path.write_text(json.dumps(document))
    assert MasterStore.open(store.path).properties == {}
    assert store.latest().apply(properties={"a": "b"}).properties == {"a": "b"}


def test_merged_updates(store: MasterStore) -> None:
    for number in range(40):
        store = store.upsert(pa.table({"k": [number % 7, 100 + number], "v": [f"v{number}", ""]}))
        before = rows(store)
        store = store.merge_deltas(at_most=4)
        assert len(store.delta_levels()) <= 4
        assert rows(store) == before
    assert store.get(4)["v"].to_pylist() == ["v39"]
    assert store.rows == len(rows(store)) == store.compact().rows
    merges = [one["version"] for one in store.versions() if one["change"] == "merge"]
    rewritten = [Manifest.load(store.path, version).segments[-1].rows for version in merges]
    assert 8 < len(merges) < 40
    assert sum(rewritten) < 400, "a row is not rewritten with every merge"
    assert MasterStore.open(store.path, merges[0]).changed_since(merges[0] - 1).tolist() == []  # type: ignore[union-attr]
    with pytest.raises(ArgumentError, match="at_most=0"):
        store.merge_deltas(0)
    for change in (store.merge_deltas, store.compact):  # with nothing to do they check what they are asked, too
        with pytest.raises(ArgumentError, match="memory='much' is not a size"):
            change(memory="much")


def test_a_stale_merge_is_refused(store: MasterStore) -> None:
    second = store.upsert(pa.table({"k": [9], "v": ["nine"]})).delete(1)
    second.upsert(pa.table({"k": [10], "v": ["ten"]}))
    with pytest.raises(ConcurrentWriteError):
        second.merge_deltas(1)
