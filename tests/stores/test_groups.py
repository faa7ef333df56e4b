"""Column groups: the same rows as the store's, read from narrower files, through every change."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from semistream import MasterStore, join, make_join
from semistream.errors import ArgumentError, CorruptStoreError, StoreError, StoreNotFoundError
from semistream.stores.paged import updating
from tests.tables import assert_same_rows, model_join

GROUPS = {"numbers": ["n"], "texts": ["t", "n"], "keys": []}


def master(rows: int = 5000) -> pa.Table:
    return pa.table(
        {
            "wide": pa.array(["w" * 90] * rows),
            "id": pa.array(range(rows), pa.int64()),
            "n": pa.array([None if i % 11 == 0 else i * 2 for i in range(rows)], pa.int32()),
            "t": pa.array([None if i % 7 == 0 else f"text {i}" for i in range(rows)]),
        }
    )


def asked(*keys: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(keys, pa.int64()), "at": pa.array(range(len(keys)), pa.int64())})


@pytest.fixture
def store(tmp_path: Path) -> MasterStore:
    return MasterStore.build(master(), tmp_path / "store", key="id", groups=GROUPS)


@pytest.mark.parametrize(
    "columns, group", [(["n"], "numbers"), (["t"], "texts"), (["n", "t"], "texts"), ([], "keys"), (["id"], "keys")]
)
def test_the_narrowest_that_covers_is_read(store: MasterStore, columns: list[str], group: str) -> None:
    narrow = store.covering(columns)
    assert narrow.group == group
    assert narrow.facts.bytes < store.facts.bytes / 2
    assert narrow.facts.index_bytes < store.facts.index_bytes
    assert narrow.rows == store.rows
    assert narrow.manifest.identity == store.manifest.identity
    assert store.covering([*columns, "wide"]) is store
    assert narrow.covering(columns) is narrow
    assert pickle.loads(pickle.dumps(narrow)).schema == narrow.schema


@pytest.mark.parametrize("columns", [["n"], ["t"], ["t", "n", "id"], ["wide", "n"], None])
@pytest.mark.parametrize("how", ["left", "inner", "semi", "anti"])
@pytest.mark.parametrize("algorithm", ["sweep", "whole", "mesh", "sscj"])
def test_joins_give_the_same_rows(store: MasterStore, columns: list[str] | None, how: Any, algorithm: str) -> None:
    keys = asked(*np.random.default_rng(7).integers(-500, 6000, 3000).tolist())
    made = join([keys], store, on="id", columns=columns, how=how, suffix="_master", memory="2MB", algorithm=algorithm)
    expected = model_join(pa.Table.from_batches([keys]), master(), "id", how, columns, suffix="_master")
    assert_same_rows(pa.Table.from_batches(made, expected.schema), expected)


def test_a_lookup_reads_less(store: MasterStore) -> None:
    keys = asked(*range(0, 5000, 3))
    read = {}
    for columns in (["n"], ["n", "wide"]):
        made = make_join(keys.schema, store, on="id", columns=columns, memory="300kB", algorithm="sweep")
        assert sum(batch.num_rows for batch in made.join([keys])) == keys.num_rows
        read[len(columns)] = made.stats.bytes_read
    assert 0 < read[1] <= read[2] / 4  # as their pages are: either store is read once


def test_groups_of_an_existing_store(tmp_path: Path) -> None:
    plain = MasterStore.build(master(), tmp_path / "store", key="id")
    changed = plain.upsert(master(10).set_column(2, "n", pa.array([-1] * 10, pa.int32()))).delete([4999])
    grouped = changed.project("numbers", ["n"])
    assert (grouped.version, grouped.rows, grouped.manifest.change) == (4, 4999, "project")
    assert grouped.get([1, 4998, 4999], columns=["id", "n"]).sort_by("id").to_pydict() == {
        "id": [1, 4998],
        "n": [-1, 9996],
    }
    changed_codes = grouped.changed_since(3)
    assert changed_codes is not None
    assert len(changed_codes) == 0
    assert MasterStore.open(grouped.path).covering(["n"]).group == "numbers"
    dropped = grouped.drop_group("numbers")
    assert dropped.covering(["n"]) is dropped
    assert MasterStore.open(grouped.path, 4).covering(["n"]).get(1).to_pydict() == {"id": [1], "n": [-1]}
    files = set(MasterStore.open(grouped.path, 4).manifest.files) - set(dropped.manifest.files)
    assert len(files) == 3  # the twins of a base and two updates
    assert files <= set(dropped.vacuum(1))
    assert dropped.verify() == dropped.pages


def test_a_build_keeps_the_groups_unless_it_is_told_otherwise(store: MasterStore) -> None:
    again = MasterStore.build(master(50), store.path, key="id", replace=True)
    assert list(again.manifest.groups) == list(GROUPS)
    assert again.covering(["n"]).rows == 50
    remedy = r"; version 2 has it, and .*: give groups=\{\} for none, groups=\{...\} for others .*--drop"
    with pytest.raises(ArgumentError, match=f"group 'texts': there is no column 't'.*{remedy}"):
        MasterStore.build(master(50).drop_columns(["t"]), store.path, key="id", replace=True)
    with pytest.raises(ArgumentError, match=f"group 'texts' has every column.*{remedy}"):
        MasterStore.build(master(50).drop_columns(["wide"]), store.path, key="id", replace=True)
    with pytest.raises(ArgumentError, match=r"group 'mine': there is no column 'x'.*'t'\]$"):
        MasterStore.build(master(50), store.path, key="id", replace=True, groups={"mine": ["x"]})
    assert store.latest().version == 2
    none = MasterStore.build(master(50), store.path, key="id", replace=True, groups={})
    assert none.covering(["n"]) is none


def test_what_cannot_be(store: MasterStore, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="group 'more': there is no column 'm'"):
        store.project("more", ["m"])
    with pytest.raises(ArgumentError, match="has a group 'numbers' already, of \\['n'\\]"):
        store.project("numbers", ["t"])
    with pytest.raises(ArgumentError, match="has every column, as the store itself"):
        store.project("all", ["n", "t", "wide"])
    with pytest.raises(ArgumentError, match="must be a list of names"):
        store.project("texts2", "t")
    with pytest.raises(ArgumentError, match="has no group 'other'; it has"):
        store.drop_group("other")
    with pytest.raises(ArgumentError, match="must be names with their columns"):
        MasterStore.build(master(5), tmp_path / "other", key="id", groups=["n"])  # type: ignore[arg-type]
    assert not (tmp_path / "other" / "version-000001.json").exists()
    narrow = store.covering(["n"])
    with pytest.raises(StoreError, match=r"upsert on the column group 'numbers' of .*change the store itself"):
        narrow.upsert(pa.table({"id": pa.array([1], pa.int64()), "n": pa.array([1], pa.int32())}))
    assert store.latest() is store


def test_a_damaged_twin_is_found(store: MasterStore) -> None:
    (twin,) = store.manifest.groups["numbers"].twins.values()
    path = store.path / twin.file
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptStoreError, match=twin.file):
        MasterStore.open(store.path).verify()
    with pytest.raises(CorruptStoreError, match=twin.file):
        list(join([asked(1, 2)], store.path, on="id", columns=["n"], memory="1MB", algorithm="sweep"))
    kept = list(join([asked(1)], store.path, on="id", columns=["wide"], memory="1MB", algorithm="sweep"))
    assert sum(batch.num_rows for batch in kept) == 1


def test_an_open_store_keeps_the_rows_of_groups_that_a_vacuum_removed(store: MasterStore) -> None:
    used, unused = MasterStore.open(store.path), MasterStore.open(store.path)
    assert used.covering(["n"]).group == "numbers"
    store.upsert(master(10)).compact().vacuum(1)
    assert used.covering(["n"]).group == "numbers"  # it is open
    assert unused.covering(["n"]) is unused
    for reader in (used, unused):
        assert reader.get([1, 2], columns=["n"]).to_pydict() == {"n": [2, 4]}
        assert reader.get([3], columns=["t"]).to_pydict() == {"t": ["text 3"]}
        for how in ("inner", "semi"):
            made = make_join(asked().schema, reader, on="id", columns=["n"], how=how, memory="4MB")
            assert sum(batch.num_rows for batch in made.join([asked(1, 2, 9000)])) == 2
        assert reader.verify() >= reader.pages


def test_another_group_is_read_where_a_vacuum_left_it(tmp_path: Path) -> None:
    one = MasterStore.build(master(50), tmp_path / "store", key="id", groups={"numbers": ["n"], "texts": ["t", "n"]})
    reader = MasterStore.open(one.path)
    one.drop_group("numbers").vacuum(1)
    assert reader.covering(["n"]).group == "texts"
    shutil.rmtree(one.path)
    gone = MasterStore.build(master(5), one.path, key="id")  # another store, at the same path and version
    assert gone.version == reader.version
    reader.covering(["n"]).verify()
    assert reader.covering([]).get([49], columns=["id"]).num_rows == 1


def test_a_group_that_is_missing_from_a_version_is_damage(store: MasterStore) -> None:
    (twin,) = store.manifest.groups["numbers"].twins.values()
    (store.path / twin.file).unlink()
    for read in (lambda one: one.get([1], columns=["n"]), lambda one: one.covering(["n"]), MasterStore.verify):
        with pytest.raises(StoreNotFoundError, match=rf"{twin.file} is missing; the store is incomplete"):
            read(MasterStore.open(store.path))
    assert MasterStore.open(store.path).get([1], columns=["wide", "n"]).num_rows == 1


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_many_groups_are_not_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semistream.stores.paged.store._GROUP_FILES", 17)  # eight groups of two files each
    names = [f"c{number}" for number in range(30)]
    rows = pa.table({"id": [1, 2], **{name: [1, 2] for name in names}})
    MasterStore.build(rows, tmp_path / "store", key="id", groups={name: [name] for name in names}).upsert(rows.slice(1))
    before = open_files()
    store = MasterStore.open(tmp_path / "store")
    each = open_files() - before
    most: list[int] = []
    assert store.verify(lambda *_: most.append(open_files() - before)) == 31 * store.pages
    assert max(most) <= 3 * each
    first = store.covering(["c0"]).reader()
    for name in [*names, *names[:3]]:
        assert store.get([2], columns=[name]).num_rows == 1
        assert open_files() - before <= 10 * each
    assert store.covering(["c1"]) is store.covering(["c1"])
    assert sum(len(found) for found, _ in first.match(store.codec.encode([pa.array([1, 2])])[0])) == 2  # it is kept
    del first, store
    assert open_files() == before


Content = dict[str, list[tuple[int | None, str | None]]]
LETTERS = st.sampled_from("abcdefgh")
ROWS = st.lists(
    st.tuples(st.none() | st.integers(-9, 9), st.none() | st.text("xyz", max_size=9)), min_size=1, max_size=3
)
CHANGES = st.dictionaries(LETTERS, ROWS, max_size=4)


class History(RuleBasedStateMachine):
    """Random changes of a store with groups that come and go; every group holds what the store holds."""

    hash_bits: ClassVar[int] = 3  # keys share codes

    def __init__(self) -> None:
        super().__init__()
        self.usual, updating.MOST_DELTAS = updating.MOST_DELTAS, 2
        self.folder = tempfile.mkdtemp()
        self.groups: dict[str, list[str]] = {}

    def table(self, rows: Content) -> pa.Table:
        each = [(key, *row) for key, group in rows.items() for row in group]
        return pa.table(
            {
                "n": pa.array([n for _, n, _ in each], pa.int64()),
                "k": pa.array([key for key, _, _ in each], pa.string()),
                "wide": pa.array(["w" * 700 for _ in each], pa.string()),
                "t": pa.array([t for _, _, t in each], pa.string()),
            }
        )

    @initialize(rows=CHANGES, grouped=st.booleans())
    def build(self, rows: Content, grouped: bool) -> None:
        self.groups = {"first": ["n"]} if grouped else {}
        place = Path(self.folder) / "store"
        self.store = MasterStore.build(
            self.table(rows), place, key="k", hash_bits=self.hash_bits, groups=self.groups or None
        )
        self.content = dict(rows)

    @rule(rows=CHANGES, gone=st.sets(LETTERS, max_size=3))
    def apply(self, rows: Content, gone: set[str]) -> None:
        gone -= set(rows)
        self.store = self.store.apply(self.table(rows) if rows else None, sorted(gone) or None)
        self.content = {key: value for key, value in {**self.content, **rows}.items() if key not in gone}

    @rule(name=st.sampled_from(["a", "b"]), columns=st.sampled_from([["n"], ["t"], ["t", "n"], []]))
    def project(self, name: str, columns: list[str]) -> None:
        if name in self.groups:
            self.store = self.store.drop_group(name)
            del self.groups[name]
        else:
            self.store = self.store.project(name, columns)
            self.groups[name] = columns

    @rule()
    def merge(self) -> None:
        self.store = self.store.merge_deltas(1)

    @rule()
    def compact(self) -> None:
        self.store = self.store.compact()

    @rule()
    def vacuum(self) -> None:
        self.store.vacuum(1)

    @rule()
    def reopen(self) -> None:
        self.store = MasterStore.open(self.store.path)

    @invariant()
    def every_group_holds_what_the_store_holds(self) -> None:
        if not hasattr(self, "store"):
            return
        assert set(self.store.manifest.groups) == set(self.groups)
        whole = self.table(self.content)
        for columns in (["k", "n"], ["t", "k"], ["n", "t", "k"], ["k"]):
            found = pa.Table.from_batches(self.store.scan(columns), whole.select(columns).schema)
            assert_same_rows(found, whole.select(columns))
        some = ["a", "c", "h", "no"]
        expected = [(key, *row) for key in some for row in self.content.get(key, [])]
        found = self.store.get(some, columns=["k", "n"])
        assert_same_rows(
            found,
            self.table({}).select(["k", "n"])
            if not expected
            else pa.table(
                {"k": [key for key, _, _ in expected], "n": pa.array([n for _, n, _ in expected], pa.int64())}
            ),
        )
        self.store.verify()

    def teardown(self) -> None:
        updating.MOST_DELTAS = self.usual
        shutil.rmtree(self.folder)


class ExactHistory(History):
    hash_bits: ClassVar[int] = 64


@pytest.fixture(scope="module", autouse=True)
def usual_folding() -> Iterator[None]:
    usual = updating.MOST_DELTAS
    yield
    updating.MOST_DELTAS = usual


TestHistory = History.TestCase
TestHistory.settings = settings(max_examples=25, stateful_step_count=12, deadline=None)
TestExactHistory = ExactHistory.TestCase
TestExactHistory.settings = settings(max_examples=15, stateful_step_count=12, deadline=None)
