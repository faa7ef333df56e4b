"""Random histories of a store against a dictionary of lists."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from semistream.stores import MasterStore
from semistream.stores.paged import updating

Content = dict[Any, list[str]]
LETTERS = st.sampled_from("abcdefghij")
VALUES = st.lists(st.text("xyz", max_size=30), min_size=1, max_size=3)


class History(RuleBasedStateMachine):
    """Upserts, deletions, both at once, merges, compactions, vacuums; every version that is kept stays what it was."""

    kind: ClassVar[pa.DataType] = pa.string()
    hash_bits: ClassVar[int] = 3

    def __init__(self) -> None:
        super().__init__()
        self.usual, updating.MOST_DELTAS = updating.MOST_DELTAS, 2  # a history is short
        self.folder = tempfile.mkdtemp()
        self.content: dict[int, Content] = {}
        self.touched: dict[int, set[Any]] = {}
        self.properties: dict[str, str] = {}

    def key(self, letter: str) -> Any:
        return letter * 3 if self.kind == pa.string() else (ord(letter) - 101) * 10**17

    def table(self, rows: Content) -> pa.Table:
        pairs = [(key, value) for key, values in rows.items() for value in values]
        return pa.table(
            {
                "v": pa.array([value for _, value in pairs], pa.string()),
                "k": pa.array([key for key, _ in pairs], self.kind),
            }
        )

    @initialize(rows=st.dictionaries(LETTERS, VALUES))
    def build(self, rows: dict[str, list[str]]) -> None:
        start = {self.key(letter): values for letter, values in rows.items()}
        self.store = MasterStore.build(
            self.table(start), Path(self.folder) / "store", key="k", hash_bits=self.hash_bits
        )
        self.content[1] = start

    @rule(rows=st.dictionaries(LETTERS, VALUES, min_size=1, max_size=4))
    def upsert(self, rows: dict[str, list[str]]) -> None:
        new = {self.key(letter): values for letter, values in rows.items()}
        after = self.content[self.store.version] | new
        self.store = self.store.upsert(self.table(new))
        self.published(after, set(new))

    @rule(letters=st.lists(LETTERS, min_size=1, max_size=4))
    def delete(self, letters: list[str]) -> None:
        gone = [self.key(letter) for letter in letters]
        after = {key: values for key, values in self.content[self.store.version].items() if key not in gone}
        self.store = self.store.delete(gone)
        self.published(after, set(gone))

    @rule(
        rows=st.dictionaries(LETTERS, VALUES, max_size=4),
        letters=st.sets(LETTERS, max_size=4),
        properties=st.dictionaries(st.sampled_from(["a", "b"]), st.text("01", max_size=3)),
    )
    def apply(self, rows: dict[str, list[str]], letters: set[str], properties: dict[str, str]) -> None:
        new = {self.key(letter): values for letter, values in rows.items()}
        gone = [self.key(letter) for letter in sorted(letters) if letter not in rows]
        now = self.content[self.store.version]
        after = {key: values for key, values in now.items() if key not in gone} | new
        before = self.store.version
        self.properties = {**self.properties, **properties}
        idle = not new and not gone and self.store.properties == self.properties
        self.store = self.store.apply(self.table(new), gone, properties=properties)
        assert self.store.version == before + (not idle)
        if not idle:
            self.published(after, {*new, *gone})

    @rule(at_most=st.integers(1, 4))
    def merge(self, at_most: int) -> None:
        now, before = self.content[self.store.version], self.store.version
        self.store = self.store.merge_deltas(at_most)
        assert len(self.store.delta_levels()) <= at_most
        if self.store.version > before:
            self.published(now, set())

    @rule()
    def compact(self) -> None:
        now, before = self.content[self.store.version], self.store.version
        self.store = self.store.compact()
        if self.store.version > before:
            self.published(now, set())

    def published(self, after: Content, touched: set[Any]) -> None:
        self.content[self.store.version] = after
        self.touched[self.store.version] = touched

    @rule()
    def reopen(self) -> None:
        self.store = MasterStore.open(self.store.path)

    @rule(keep=st.integers(1, 4))
    def vacuum(self, keep: int) -> None:
        self.store.vacuum(keep)
        self.content = {one["version"]: self.content[one["version"]] for one in self.store.versions()}

    @rule(letters=st.lists(LETTERS, max_size=5))
    def get(self, letters: list[str]) -> None:
        keys = [self.key(letter) for letter in letters]
        found = self.store.get(keys)
        now = self.content[self.store.version]
        assert sorted(found["v"].to_pylist()) == sorted(v for key in set(keys) for v in now.get(key, []))

    @rule(data=st.data())
    def look_back(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(self.content)))
        self.same(MasterStore.open(self.store.path, version), self.content[version])

    @invariant()
    def newest(self) -> None:
        if self.content:
            self.same(self.store, self.content[self.store.version])
            assert self.store.version == max(self.content)
            assert self.store.properties == self.properties

    @invariant()
    def changed(self) -> None:
        """Exactly the codes of the keys that were touched since, whatever was merged or compacted in between."""
        for version in self.content:
            keys = sorted(set().union(*(keys for number, keys in self.touched.items() if number > version)))
            codes, _ = self.store.codec.encode([pa.array(keys, self.kind)])
            found = self.store.changed_since(version)
            assert found is not None
            assert found.tolist() == sorted(set(codes.tolist()))

    def same(self, store: MasterStore, content: Content) -> None:
        have: Content = {}
        for batch in store.scan():
            for row in batch.to_pylist():
                have.setdefault(row["k"], []).append(row["v"])
        assert {k: sorted(v) for k, v in have.items()} == {k: sorted(v) for k, v in content.items()}
        assert store.rows == sum(map(len, content.values()))

    def teardown(self) -> None:
        updating.MOST_DELTAS = self.usual
        shutil.rmtree(self.folder)


class NumberHistory(History):
    kind = pa.int64()
    hash_bits = 64


TestTexts = History.TestCase
TestTexts.settings = settings(max_examples=12, stateful_step_count=15, deadline=None)
TestNumbers = NumberHistory.TestCase
TestNumbers.settings = settings(max_examples=8, stateful_step_count=15, deadline=None)
