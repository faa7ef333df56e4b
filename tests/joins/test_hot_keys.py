"""Hot keys kept between runs: a warm start by counts, and hints that can be wrong without harm."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream import MasterStore
from semistream.joins.contract import Join
from semistream.joins.sweep.hot import HotKeys
from semistream.lookup.run import join, make_join
from tests.tables import assert_same_rows

KEYS = 20_000
MEMORY = "600KB"
STREAM = pa.schema([("key", pa.int64()), ("n", pa.int64())])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> MasterStore:
    keys = np.arange(KEYS)
    master = pa.table({"key": keys, "price": keys * 0.5, "text": [f"row {key}" for key in keys]})
    return MasterStore.build(master, tmp_path_factory.mktemp("hot") / "store", key="key")


def batches(count: int = 10, rows: int = 5_000, seed: int = 1) -> Iterator[pa.RecordBatch]:
    """Most rows have a tenth of the keys, spread over the master."""
    random = np.random.default_rng(seed)
    for number in range(count):
        hot = random.integers(0, KEYS // 10, rows) * 10
        keys = np.where(random.random(rows) < 0.9, hot, random.integers(0, KEYS + 100, rows))
        yield pa.record_batch([pa.array(keys), pa.array(np.arange(rows) + number * rows)], schema=STREAM)


def run(store: MasterStore, hot: Path | None, threads: int = 1) -> tuple[Join, pa.Table]:
    made = make_join(STREAM, store, on="key", memory=MEMORY, algorithm="sweep", hot_keys=hot, threads=threads)
    found = pa.Table.from_batches(list(made.join(batches())), made.plan.output)
    made.check()
    return made, found


def hits_of_first_batch(store: MasterStore, hot: Path | None) -> int:
    made = make_join(STREAM, store, on="key", memory=MEMORY, algorithm="sweep", hot_keys=hot)
    list(made.join(batches(1, rows=1_000, seed=2)))
    made.check()
    return made.stats.hits


def test_the_second_run_begins_warm(store: MasterStore, tmp_path: Path) -> None:
    hot = tmp_path / "kept" / "hot.arrow"
    cold = hits_of_first_batch(store, None)
    _, first = run(store, hot)
    warm = hits_of_first_batch(store, hot)
    assert warm > 400 > 2 * cold  # of 1,000 rows, 900 of hot keys
    _, second = run(store, hot)
    assert_same_rows(first, second)


def test_a_file_and_its_directory_are_private(store: MasterStore, tmp_path: Path) -> None:
    hot = tmp_path / "kept" / "hot.arrow"
    run(store, hot)
    assert (hot.stat().st_mode & 0o777, hot.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert [path.name for path in hot.parent.iterdir()] == ["hot.arrow"]


@pytest.mark.parametrize("damage", ["empty", "cut", "noise", "a directory", "flipped"])
def test_a_damaged_file_means_a_cold_start(store: MasterStore, tmp_path: Path, damage: str) -> None:
    hot = tmp_path / "hot.arrow"
    _, expected = run(store, hot)
    whole = hot.read_bytes()
    if damage == "a directory":
        hot.unlink()
        hot.mkdir()
    elif damage == "flipped":  # other codes: hints that are wrong
        changed = np.frombuffer(whole, np.uint8).copy()
        changed[len(changed) // 3 : len(changed) // 2] ^= 0x5A
        hot.write_bytes(changed.tobytes())
    else:
        hot.write_bytes({"empty": b"", "cut": whole[: len(whole) // 2], "noise": bytes(range(256)) * 40}[damage])
    _, found = run(store, hot)
    assert_same_rows(found, expected)


@pytest.mark.parametrize("memory", ["60KB", "150KB", "600KB"])
def test_any_damage_within_any_budget(store: MasterStore, tmp_path: Path, memory: str) -> None:
    """A few bits are turned before each run: other codes, in any order, counts, lengths and types."""
    hot, random = tmp_path / "hot.arrow", np.random.default_rng(7)
    expected = run(store, None)[1]
    for _ in range(12):
        made = make_join(STREAM, store, on="key", memory=memory, algorithm="sweep", hot_keys=hot)
        found = pa.Table.from_batches(list(made.join(batches())), made.plan.output)
        made.check()
        assert made.stats.peak_bytes <= made.budget.total
        assert_same_rows(found, expected)
        if hot.exists():
            content = np.frombuffer(hot.read_bytes(), np.uint8).copy()
            places = random.integers(0, len(content), 8)
            content[places] ^= np.uint8(1) << random.integers(0, 8, 8).astype(np.uint8)
            hot.write_bytes(content.tobytes())


def test_codes_in_any_order_several_times(store: MasterStore, tmp_path: Path) -> None:
    hot = tmp_path / "hot.arrow"
    expected = run(store, hot)[1]
    with pa.ipc.open_file(pa.OSFile(str(hot))) as file:
        table = file.read_all()
    wrong = pa.concat_tables([table.slice(len(table) // 2, 300), table.slice(0, 300), table.slice(0, 300)])
    with pa.ipc.new_file(str(hot), table.schema) as writer:
        writer.write_table(wrong.combine_chunks())
    assert_same_rows(run(store, hot)[1], expected)


def test_keys_of_another_type_are_no_hints(store: MasterStore, tmp_path: Path) -> None:
    hot = tmp_path / "hot.arrow"
    run(store, hot)
    made = make_join(STREAM, store, on="key", memory=MEMORY, algorithm="sweep")
    assert list(HotKeys(hot, store.codec.fields, made.budget, lambda: 0.0).load(1 << 20))
    other = MasterStore.build(pa.table({"key": [1.5], "x": [1]}), tmp_path / "other", key="key")
    assert not list(HotKeys(hot, other.codec.fields, made.budget, lambda: 0.0).load(1 << 20))


def test_keys_that_have_gone_and_rows_that_have_changed(store: MasterStore, tmp_path: Path) -> None:
    hot = tmp_path / "hot.arrow"
    run(store, hot)
    keys = np.arange(KEYS)
    left = keys[keys % 20 != 0]
    master = pa.table({"key": left, "price": left * 2.0, "text": [f"new {key}" for key in left]})
    newer = MasterStore.build(master, tmp_path / "new", key="key")
    assert_same_rows(run(newer, hot)[1], run(newer, None)[1])


def test_several_rows_per_key_and_threads(tmp_path: Path) -> None:
    keys = np.repeat(np.arange(2_000) * 10, 3)
    several = MasterStore.build(pa.table({"key": keys, "x": np.arange(len(keys))}), tmp_path / "s", key="key")
    hot = tmp_path / "hot.arrow"
    first = run(several, hot, threads=2)[1]
    made, second = run(several, hot, threads=2)
    assert_same_rows(first, second)
    assert made.stats.peak_bytes <= made.budget.total


def test_the_file_follows_the_cache(store: MasterStore, tmp_path: Path) -> None:
    """It is written when the cache has grown by a quarter, and when it is old."""
    hot = tmp_path / "hot.arrow"
    made = run(store, hot)[0]
    before = hot.stat().st_mtime_ns
    list(made.join(batches(1)))
    assert hot.stat().st_mtime_ns == before  # nothing new to say
    old = hot.stat().st_mtime - 1000
    os.utime(hot, (old, old))
    made.hot._looked = -10  # type: ignore[attr-defined] # the second between two looks has passed
    list(made.join(batches(1)))
    assert hot.stat().st_mtime > old + 900


def test_too_little_memory_for_a_piece(store: MasterStore, tmp_path: Path) -> None:
    hot = tmp_path / "hot.arrow"
    run(store, hot)
    small = make_join(STREAM, store, on="key", memory="100KB", algorithm="sweep", hot_keys=hot)
    list(small.join(batches(2)))
    small.check()


def test_by_join_and_from_a_relative_path(store: MasterStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    list(join(list(batches()), store, on="key", memory=MEMORY, algorithm="sweep", hot_keys="hot.arrow"))
    assert (tmp_path / "hot.arrow").stat().st_size > 1_000
