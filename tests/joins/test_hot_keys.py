"""Hot keys kept between runs: a warm start by counts, and hints that can be wrong without harm."""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream import MasterStore
from semistream.budget import Budget
from semistream.errors import ArgumentError
from semistream.joins.contract import Join
from semistream.joins.sweep import hot as hot_module
from semistream.joins.sweep.hot import HotKeys
from semistream.joins.sweep.join import SweepJoin
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
        hot.write_bytes({"empty": b"", "cut": whole[: len(whole) // 2], "noise": whole[:8] + bytes(range(256))}[damage])
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
            places = random.integers(8, len(content), 8)  # behind what makes it ours
            content[places] ^= np.uint8(1) << random.integers(0, 8, 8).astype(np.uint8)
            hot.write_bytes(content.tobytes())


def rewrite(hot: Path, keys: bytes, arrivals: int = 100_000) -> None:
    """A sound file with these keys in place of its own."""
    with hot.open("rb") as file:
        about = hot_module._Header.read(file)
    about = about._replace(keys=len(keys) // 9, arrivals=arrivals)
    seed = zlib.crc32(hot_module._HEADER.pack(*about._replace(checksum=0)))
    hot.write_bytes(hot_module._HEADER.pack(*about._replace(checksum=zlib.crc32(keys, seed))) + keys)


def keys_of(hot: Path) -> np.typing.NDArray[np.void]:
    return np.frombuffer(hot.read_bytes()[hot_module._HEADER.size :], hot_module._KEY)


def loaded(hot: Path, store: MasterStore) -> list[int]:
    pieces = HotKeys(hot, store.codec.fields, Budget("1MB")).load(1 << 20, 1 << 20)
    return [int(code) for codes, _, _ in pieces for code in codes]


def test_codes_in_any_order_several_times(store: MasterStore, tmp_path: Path) -> None:
    hot = tmp_path / "hot"
    expected = run(store, hot)[1]
    keys = keys_of(hot)
    rewrite(hot, np.concatenate([keys[len(keys) // 2 :][:300], keys[:300], keys[:300]]).tobytes())
    assert loaded(hot, store)
    assert_same_rows(run(store, hot)[1], expected)


def test_any_content_of_a_sound_file(store: MasterStore, tmp_path: Path) -> None:
    hot, random = tmp_path / "hot", np.random.default_rng(3)
    expected = run(store, hot)[1]
    for arrivals in (0, 1 << 63):
        rewrite(hot, random.bytes(9 * 5_000), arrivals=arrivals)
        assert len(loaded(hot, store)) == 5_000
        assert_same_rows(run(store, hot)[1], expected)


def test_every_damage_is_seen(store: MasterStore, tmp_path: Path) -> None:
    hot, random = tmp_path / "hot", np.random.default_rng(5)
    run(store, hot)
    rewrite(hot, keys_of(hot)[:40].tobytes())
    whole = hot.read_bytes()
    assert len(loaded(hot, store)) == 40
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << int(random.integers(8))
        hot.write_bytes(bytes(changed))
        with pytest.raises(ArgumentError) if place < 8 else nullcontext():  # a file of something else
            assert not loaded(hot, store)
    for length in range(len(whole)):
        hot.write_bytes(whole[:length])
        with pytest.raises(ArgumentError) if 0 < length < 8 else nullcontext():
            assert not loaded(hot, store)


def test_a_pipe_and_another_users_file_are_not_read(store: MasterStore, tmp_path: Path) -> None:
    pipe, hot = tmp_path / "pipe", tmp_path / "hot"
    os.mkfifo(pipe)
    assert not loaded(pipe, store)
    _, expected = run(store, hot)
    assert_same_rows(run(store, pipe)[1], expected)
    if os.geteuid() == 0:
        os.chown(hot, 12345, 12345)
        assert not loaded(hot, store)
        assert_same_rows(run(store, hot)[1], expected)


def test_all_keys_are_kept_however_small_the_window(store: MasterStore, tmp_path: Path) -> None:
    hot = tmp_path / "hot"
    made, _ = run(store, hot)
    assert isinstance(made, SweepJoin)
    assert made.cache is not None
    held = {int(code) for codes, _ in made.cache.hot_keys(64) for code in codes}
    assert len(held) > 5_000
    hot.unlink()
    assert made.hot is not None
    made.hot.save(made.cache, 64 * 48)
    assert set(loaded(hot, store)) == held
    counts = keys_of(hot)["count"]
    classes = np.searchsorted([4, 16, 64], counts, side="right")
    assert (np.diff(classes) <= 0).all()  # the most frequent first


def test_nothing_new_is_not_written(store: MasterStore, tmp_path: Path) -> None:
    hot = tmp_path / "hot"
    made, _ = run(store, hot)
    assert isinstance(made, SweepJoin)
    assert made.hot is not None
    assert made.cache is not None
    before = hot.stat().st_ino
    for _ in range(5):
        made.hot.save(made.cache, made.window_limit)
    assert hot.stat().st_ino == before


def test_a_nearly_empty_cache_does_not_replace_a_full_one(store: MasterStore, tmp_path: Path) -> None:
    hot = tmp_path / "hot"
    run(store, hot)
    before, old = hot.stat(), hot.stat().st_mtime - 1000
    os.utime(hot, (old, old))
    small = make_join(STREAM, store, on="key", memory="100KB", algorithm="sweep", hot_keys=hot)
    list(small.join(batches(2)))
    assert hot.stat().st_ino == before.st_ino
    os.utime(hot, (old - 4000, old - 4000))
    small = make_join(STREAM, store, on="key", memory="100KB", algorithm="sweep", hot_keys=hot)
    list(small.join(batches(2)))
    assert hot.stat().st_ino != before.st_ino


@pytest.mark.parametrize("path", ["", "a\0b", "s3://bucket/hot"])
def test_what_is_no_path_is_refused(store: MasterStore, path: str) -> None:
    with pytest.raises(ArgumentError, match="hot_keys="):
        join(list(batches(1)), store, on="key", hot_keys=path)


def test_a_join_without_a_cache_to_keep_is_refused(store: MasterStore, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"'sweep'.*algorithm='hybrid'"):
        join(list(batches(1)), store, on="key", algorithm="hybrid", hot_keys=tmp_path / "hot")


def test_keys_of_another_type_are_no_hints(store: MasterStore, tmp_path: Path) -> None:
    hot = tmp_path / "hot.arrow"
    run(store, hot)
    made = make_join(STREAM, store, on="key", memory=MEMORY, algorithm="sweep")
    assert list(HotKeys(hot, store.codec.fields, made.budget).load(1 << 20, 1 << 20))
    other = MasterStore.build(pa.table({"key": [1.5], "x": [1]}), tmp_path / "other", key="key")
    assert not list(HotKeys(hot, other.codec.fields, made.budget).load(1 << 20, 1 << 20))


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


def test_a_file_that_cannot_be_written_is_tried_seldom(store: MasterStore, tmp_path: Path) -> None:
    (tmp_path / "hot").mkdir()
    made, _ = run(store, tmp_path / "hot")
    assert isinstance(made, SweepJoin)
    assert made.hot is not None
    assert made.cache is not None
    wrote = []
    made.hot._write = lambda *_: wrote.append(1) or False  # type: ignore[method-assign, func-returns-value]
    for _ in range(5):
        made.hot.save(made.cache, made.window_limit)
    assert not wrote  # the first try was in the run


def test_two_lookups_with_one_file(store: MasterStore, tmp_path: Path) -> None:
    hot = tmp_path / "hot"
    run(store, hot)
    before = hot.stat().st_ino
    keys = [str(key) for key in range(KEYS)]
    other = MasterStore.build(pa.table({"key": keys, "x": range(KEYS)}), tmp_path / "o", key="key")
    stream = [pa.record_batch({"key": keys[: KEYS // 2]})]
    for _ in range(2):
        list(join(stream, other, on="key", memory=MEMORY, algorithm="sweep", hot_keys=hot))
        run(store, hot)
    assert hot.stat().st_ino == before


def test_a_warm_up_that_fails_is_tried_again(
    store: MasterStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hot = tmp_path / "hot"
    _, expected = run(store, hot)
    made = make_join(STREAM, store, on="key", memory=MEMORY, algorithm="sweep", hot_keys=hot, threads=1)
    assert isinstance(made, SweepJoin)
    assert made.cache is not None
    with monkeypatch.context() as patch:
        patch.setattr(made.lanes[0], "warm_up", lambda *_: (_ for _ in ()).throw(OSError("unplugged")))
        with pytest.raises(OSError, match="unplugged"):
            list(made.join(batches()))
    assert not made.cache.warm
    assert_same_rows(pa.Table.from_batches(list(made.join(batches())), made.plan.output), expected)
    assert made.cache.warm


def test_a_warm_up_whose_process_has_died_is_taken_over(store: MasterStore, tmp_path: Path) -> None:
    made, _ = run(store, tmp_path / "hot")
    assert isinstance(made, SweepJoin)
    assert made.cache is not None
    assert not made.cache.take_warming()
    made.cache.end_warming(done=False)
    assert made.cache.take_warming()
    assert not made.cache.take_warming()  # somebody is at it
    made.cache.header[made.cache._kernels.WARMED] -= 61
    assert made.cache.take_warming()


@pytest.mark.parametrize("content", ["secret\n", "a,b\n" * 1000, "semihot"])
def test_a_file_of_something_else_is_refused_and_stays(store: MasterStore, tmp_path: Path, content: str) -> None:
    hot = tmp_path / "sales.csv"
    hot.write_text(content)
    os.utime(hot, (1, 1))
    with pytest.raises(ArgumentError, match=r"hot_keys=.*sales\.csv.*another path"):
        run(store, hot)
    assert hot.read_text() == content
    hot.unlink()
    made, _ = run(store, hot)
    hot.write_text(content)  # it may also come later
    os.utime(hot, (1, 1))
    assert isinstance(made, SweepJoin)
    assert made.hot is not None
    assert made.cache is not None
    made.hot.save(made.cache, made.window_limit)
    assert hot.read_text() == content


def test_a_store_survives_hot_keys_at_its_manifest(tmp_path: Path) -> None:
    small = MasterStore.build(pa.table({"key": [1, 2]}), tmp_path / "s", key="key")
    [manifest] = (tmp_path / "s").glob("version-*.json")
    os.utime(manifest, (1, 1))
    with pytest.raises(ArgumentError, match="another path"):
        make_join(STREAM, small, on="key", algorithm="sweep", hot_keys=manifest)
    assert MasterStore.open(tmp_path / "s").version == 1


def test_a_pipe_and_another_users_file_stay(store: MasterStore, tmp_path: Path) -> None:
    pipe, hot = tmp_path / "pipe", tmp_path / "hot"
    os.mkfifo(pipe)
    run(store, pipe)
    assert pipe.is_fifo()
    if os.geteuid() == 0:
        hot.write_text("theirs")
        os.chown(hot, 12345, 12345)
        run(store, hot)
        assert hot.read_text() == "theirs"


def test_drafts_of_killed_runs_go(store: MasterStore, tmp_path: Path) -> None:
    names = [".hot.0123456789ab", ".hot.ba9876543210", ".hot.swp", ".hotter.0123456789ab"]
    for name in names:
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / names[1]).write_bytes(b"being written")
    run(store, tmp_path / "hot")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names[1:], "hot"])


def warmed(store: MasterStore, hot: Path, memory: str = "400KB", clock: Callable[[], float] = lambda: 0.0) -> SweepJoin:
    made = make_join(STREAM, store, on="key", memory=memory, algorithm="sweep", hot_keys=hot, threads=1)
    assert isinstance(made, SweepJoin)
    made._clock = clock
    made._warm_up()
    made.check()
    return made


def keep_all(store: MasterStore, hot: Path) -> None:
    """Every key of the store has been hot; those that divide by 100 were the hottest."""
    run(store, hot)
    codes, _ = store.codec.encode([pa.array(np.arange(KEYS))])
    keys = np.empty(KEYS, hot_module._KEY)
    keys["code"], keys["count"] = codes, np.where(np.arange(KEYS) % 100 == 0, 200, 1 + np.arange(KEYS) % 50)
    rewrite(hot, keys[np.argsort(-keys["count"].astype(int), kind="stable")].tobytes(), arrivals=100_000_000)


def test_a_warm_start_reads_the_store_once_at_most(store: MasterStore, tmp_path: Path) -> None:
    keep_all(store, tmp_path / "hot")
    direct = MasterStore.open(store.path, direct=True)
    for memory in ("400KB", "4MB"):
        made = warmed(direct, tmp_path / "hot", memory)
        assert made.cache is not None
        assert made.cache.warm
        assert made.cache.rows > 1_000
        assert made._counters().bytes <= 1.5 * direct.facts.bytes


def test_a_warm_start_ends_when_rows_have_waited(store: MasterStore, tmp_path: Path) -> None:
    keep_all(store, tmp_path / "hot")
    asked = itertools.count()
    made = warmed(store, tmp_path / "hot", "4MB", clock=lambda: 0.6 * next(asked))  # of one second
    assert next(asked) == 3
    assert made.cache is not None
    assert made.cache.warm
    assert 0 < made.cache.rows < KEYS


def test_the_hottest_keys_of_a_larger_cache_stay_in_a_smaller_one(store: MasterStore, tmp_path: Path) -> None:
    keep_all(store, tmp_path / "hot")
    for memory in ("200KB", "400KB", "4MB"):
        made = warmed(store, tmp_path / "hot", memory)
        assert made.cache is not None
        found: dict[int, int] = {}
        for codes, counts in made.cache.hot_keys(1 << 16):
            found.update(zip(codes.tolist(), counts.tolist(), strict=True))
        hottest, _ = store.codec.encode([pa.array(np.arange(0, KEYS, 100))])
        there = [found[int(code)] for code in hottest if int(code) in found]
        assert len(there) >= 0.95 * len(hottest)
        assert min(there) >= 100
