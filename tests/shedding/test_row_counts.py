"""How many rows of the master a key has: exact where there is room, bounded where there is not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream import MasterStore
from semistream.shedding.row_counts import RowCounts
from semistream.stores.paged.lookups import MasterReader

KEYS = 3000


def master(several: int) -> list[int]:
    """Key k has 1 + k % 5 rows if it is below ``several``, else one."""
    return [key for key in range(KEYS) for _ in range(1 + key % 5 if key < several else 1)]


def build(path: Path, keys: list[int]) -> MasterStore:
    shuffled = np.random.default_rng(1).permutation(np.array(keys))
    return MasterStore.build(pa.table({"id": shuffled, "text": [f"row {n}" for n in range(len(keys))]}), path, key="id")


def asked(store: MasterStore, counts: RowCounts, keys: list[int]) -> list[float]:
    codes, _ = store.codec.encode([pa.array(keys, pa.int64())])
    return counts.rows(codes).tolist()


def test_keys_with_one_row_cost_only_the_filter(tmp_path: Path) -> None:
    store = build(tmp_path / "s", master(0))
    counts = RowCounts(store, 1 << 20)
    assert counts.nbytes == store.facts.filter_bytes
    assert asked(store, counts, list(range(KEYS))) == [1.0] * KEYS
    absent = asked(store, counts, list(range(KEYS, 2 * KEYS)))
    assert absent.count(0.0) > 0.97 * KEYS  # the filter takes about 1 % for present
    tight = RowCounts(store, 16)  # no room for the filter: every key counts as there
    assert tight.nbytes == 0
    assert asked(store, tight, [5, KEYS + 5]) == [1.0, 1.0]


def test_several_rows_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MasterStore, "reader", lambda store: MasterReader(store, 8192, 8, double=True))
    keys = master(1000)
    store = build(tmp_path / "s", keys)
    counts = RowCounts(store, 1 << 20)
    model = Counter(keys)
    assert asked(store, counts, list(range(KEYS))) == [model[key] for key in range(KEYS)]
    assert len(counts.codes) == sum(count > 1 for count in model.values())
    assert counts.nbytes == 12 * len(counts.codes) + store.facts.filter_bytes


def test_a_key_over_many_pages(tmp_path: Path) -> None:
    keys = [1] * 50_000 + [2] + [3] * 70_000
    store = build(tmp_path / "s", keys)
    assert asked(store, RowCounts(store, 1000), [1, 2, 3]) == [50_000, 1, 70_000]


def test_after_changes(tmp_path: Path) -> None:
    keys = master(1000)
    store = build(tmp_path / "s", keys)
    fresh = [4] * 7 + [KEYS + 1] * 3 + [9]
    store = store.upsert(pa.table({"id": fresh, "text": ["new"] * len(fresh)})).delete([14])
    counts = RowCounts(store, 1 << 20)
    model = Counter(keys) | Counter(dict.fromkeys(fresh, 0))
    model.update({key: count - model[key] for key, count in Counter(fresh).items()})
    del model[14]  # a deleted key counts as one that may be there
    known = [key for key in range(KEYS + 2) if key != 14 and model[key]]
    assert asked(store, counts, known) == [model[key] for key in known]


def test_little_memory_keeps_the_largest(tmp_path: Path) -> None:
    keys = [key for key in range(KEYS) for _ in range(1 + (key % 10 == 0) * key // 10)]
    store = build(tmp_path / "s", keys)
    counts = RowCounts(store, 12 * 50)
    assert counts.nbytes <= 12 * 50
    model = Counter(keys)
    largest = [key for key, _ in model.most_common(50)]
    assert asked(store, counts, largest) == [model[key] for key in largest]
    others = KEYS - 50
    mean = (len(keys) - sum(model[key] for key in largest)) / others
    assert asked(store, counts, [1]) == [pytest.approx(mean)]


def test_text_keys(tmp_path: Path) -> None:
    keys = ["a"] * 3 + ["b"] + ["ü"] * 2
    store = MasterStore.build(pa.table({"id": keys, "n": range(6)}), tmp_path / "s", key="id")
    counts = RowCounts(store, 1 << 20)
    codes, _ = store.codec.encode([pa.array(["a", "b", "ü", "c"])])
    assert counts.rows(codes).tolist() == [3.0, 1.0, 2.0, 0.0]
