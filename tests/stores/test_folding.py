"""However many updates a store saw, a version has few segments, and a row is seldom written again."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import log2
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream.errors import StoreIOError
from semistream.stores import MasterStore
from semistream.stores.paged.manifest import Manifest
from semistream.stores.paged.updating import MOST_DELTAS, fold_from

LEAST = 8_192  # bytes of a delta with one row


def one(key: int, value: str = "") -> pa.Table:
    return pa.table({"k": [key], "v": [value]})


@pytest.fixture
def store(tmp_path: Path) -> MasterStore:
    return MasterStore.build(pa.table({"k": range(1_000), "v": ["built"] * 1_000}), tmp_path / "store", key="k")


@contextmanager
def files_left(count: int) -> Iterator[None]:
    """Only so many more files can be opened."""
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + count + 2, usual[1]))
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(count):
            os.close(taken.pop())
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)


def most(bytes_of_deltas: int) -> float:
    return max(MOST_DELTAS, log2(max(1, bytes_of_deltas / LEAST)) + 2)


@pytest.mark.parametrize("seed", range(20))
def test_the_rule(seed: int) -> None:
    """Whatever the sizes, few deltas stay and each byte is written again a logarithmic number of times."""
    chooser = np.random.default_rng(seed)
    kinds = [
        np.ones(3_000, int),
        np.arange(3_000, 0, -1),
        np.arange(1, 3_001),
        chooser.zipf(1.5, 3_000).clip(max=10**6),
        2 ** chooser.integers(0, 16, 3_000),
    ]
    for sizes in kinds:
        kept: list[int] = []
        written = 0
        for size in sizes.tolist():
            first = fold_from(kept, size) if len(kept) >= MOST_DELTAS else len(kept)
            kept[first:] = [sum(kept[first:]) + size]
            written += kept[-1]
            assert len(kept) <= max(MOST_DELTAS, log2(sum(kept)) + 2)
        assert sum(kept) == sizes.sum()
        assert written <= sizes.sum() * (log2(len(sizes)) + 2)


def test_many_updates(store: MasterStore) -> None:
    """One row at a time: the content is right, the segments are few, and what changed is known exactly."""
    expected = dict.fromkeys(range(1_000), "built")
    written = 0
    touched = []
    with files_left(50):
        for number in range(200):
            key = number * 37 % 1_100
            if number % 5 == 4:
                store = store.delete(key)
                expected.pop(key, None)
            else:
                store = store.upsert(one(key, f"v{number}"))
                expected[key] = f"v{number}"
            touched.append(key)
            deltas = [entry for entry in store.manifest.segments if entry.role == "delta"]
            assert len(deltas) <= most(sum(entry.bytes for entry in deltas))
            written += deltas[-1].bytes
            reopened = MasterStore.open(store.path)
            assert reopened.manifest.identity == store.manifest.identity
    assert written <= 200 * LEAST * 1.2 * (log2(200) + 2)
    assert dict(zip(*(store.get(range(1_100))[name].to_pylist() for name in ("k", "v")), strict=True)) == expected
    assert store.rows == len(expected)
    assert store.verify() == store.pages
    for back in (0, 1, 2, 9, 50):
        codes, _ = store.codec.encode([pa.array(touched[len(touched) - back :], pa.int64())])
        changed = store.changed_since(store.version - back)
        assert changed is not None
        assert changed.tolist() == sorted(set(codes.tolist()))
    assert store.compact().rows == len(expected)


def test_a_version_before_it_was_folded_stays_what_it_was(store: MasterStore) -> None:
    for number in range(30):
        store = store.upsert(one(5, f"v{number}"))
    assert [MasterStore.open(store.path, 2 + n).get(5)["v"].to_pylist() for n in range(30)] == [
        [f"v{n}"] for n in range(30)
    ]


@pytest.mark.parametrize("left", range(8))
@pytest.mark.parametrize("change", ["upsert", "compact", "build"])
def test_too_few_descriptors_publish_all_or_nothing(store: MasterStore, change: str, left: int) -> None:
    """An error means that nothing was published, and nothing is left behind."""
    store = store.upsert(one(1, "first"))
    before = sorted(os.listdir(store.path))
    try:
        with files_left(left):
            if change == "upsert":
                store.upsert(one(2, "second"))
            elif change == "compact":
                store.compact()
            else:
                MasterStore.build(one(2, "second"), store.path, key="k", replace=True)
    except StoreIOError as error:
        assert "Too many open files" in str(error)  # noqa: PT017
        assert "ulimit -n" in str(error)  # noqa: PT017
        assert sorted(os.listdir(store.path)) == before
        assert Manifest.versions(store.path) == [1, 2]
    else:
        assert left >= 2
        assert Manifest.versions(store.path) == [1, 2, 3]


def test_an_update_does_not_open_the_base_again(store: MasterStore) -> None:
    assert store.upsert(one(1)).segments[0] is store.segments[0]


def many_updates_with_a_reader(store: MasterStore, count: int) -> None:
    """One row at a time, while a thread opens the newest version again and again."""
    done = threading.Event()
    seen: list[int] = []
    failed: list[BaseException] = []

    def read() -> None:
        try:
            while not done.is_set():
                opened = MasterStore.open(store.path)
                assert opened.get(5)["v"].to_pylist() == ["built" if opened.version == 1 else f"v{opened.version}"]
                seen.append(len(opened.segments))
        except BaseException as error:  # noqa: BLE001 - shown below
            failed.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(2, count + 2):
            store = store.upsert(pa.table({"k": [5, 1_000 + number], "v": [f"v{number}", ""]}))
    finally:
        done.set()
        reader.join()
    assert failed == []
    assert max(seen) <= 1 + most(store.bytes)
    assert (store.version, store.latest().version) == (count + 1, count + 1)
    assert store.verify() == store.pages


def test_updates_with_a_reader(store: MasterStore) -> None:
    many_updates_with_a_reader(store, 60)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_ten_thousand_updates_with_a_reader(store: MasterStore) -> None:
    many_updates_with_a_reader(store, 10_000)
