"""Built stores: order, groups, spills, types, pages, NULL keys, and who may read the files."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import mmap
import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semistream.errors import ArgumentError, SchemaError, StoreError
from semistream.kernels import reading
from semistream.stores import MasterStore, device
from tests.tables import assert_same_rows, table_of
from tests.waiting import PATIENCE

UTC = dt.UTC
DAY = dt.date(2024, 2, 29)
TIME = dt.datetime(1969, 12, 31, 23, 59, 59, 123456)
VALUES: dict[pa.DataType, list[Any]] = {
    pa.int8(): [-128, 127, 0],
    pa.int16(): [-32768, 1, 2],
    pa.int32(): [-(2**31), 1, 2],
    pa.int64(): [-(2**63), 2**63 - 1, 0],
    pa.uint8(): [255, 0, 1],
    pa.uint16(): [65535, 0, 1],
    pa.uint32(): [2**32 - 1, 0, 1],
    pa.uint64(): [2**64 - 1, 0, 1],
    pa.float16(): [np.float16(1.5), np.float16(-2), np.float16(0)],
    pa.float32(): [1.5, float("nan"), float("-inf")],
    pa.float64(): [1e308, float("nan"), -0.5],
    pa.bool_(): [True, False],
    pa.date32(): [DAY, dt.date(1, 1, 1)],
    pa.date64(): [DAY, dt.date(1969, 1, 1)],
    pa.time32("s"): [dt.time(1, 2, 3), dt.time(0)],
    pa.time32("ms"): [dt.time(23, 59, 59, 999000), dt.time(0)],
    pa.time64("us"): [dt.time(23, 59, 59, 999999), dt.time(0)],
    pa.time64("ns"): [dt.time(1), dt.time(2)],
    pa.timestamp("s"): [TIME.replace(microsecond=0), dt.datetime(9999, 1, 1)],
    pa.timestamp("ms"): [TIME.replace(microsecond=5000), dt.datetime(1, 1, 1)],
    pa.timestamp("us"): [TIME, dt.datetime(2024, 1, 1)],
    pa.timestamp("us", "Europe/Berlin"): [TIME.replace(tzinfo=UTC), dt.datetime(2024, 7, 1, tzinfo=UTC)],
    pa.timestamp("ns"): [TIME, dt.datetime(2024, 1, 1)],
    pa.duration("us"): [dt.timedelta(days=-3, microseconds=1), dt.timedelta(0)],
    pa.decimal32(7, 2): [decimal.Decimal("-99999.99"), decimal.Decimal("0.01")],
    pa.decimal64(15, 4): [decimal.Decimal("-12345678901.2345"), decimal.Decimal(0)],
    pa.decimal128(18, 3): [decimal.Decimal("-123456789012345.678"), decimal.Decimal(7)],
    pa.decimal128(38, 10): [decimal.Decimal("9" * 28 + ".0123456789"), decimal.Decimal(-1)],
    pa.decimal256(70, 5): [decimal.Decimal("9" * 65 + ".12345"), decimal.Decimal(-1)],
    pa.string(): ["", "süß \0 text", "a" * 5_000],
    pa.large_string(): ["", "x", "\U0001f600"],
    pa.binary(): [b"", b"\0\xff", b"x" * 300],
    pa.large_binary(): [b"", b"\xfe"],
    pa.binary(4): [b"\0\1\2\3", b"abcd"],
    pa.string_view(): ["", "a view of more than twelve bytes"],
    pa.binary_view(): [b"", b"a view of more than twelve bytes"],
    pa.dictionary(pa.int8(), pa.string()): ["red", "green", "red"],
    pa.dictionary(pa.int32(), pa.int64()): [5, -5],
}
NO_KEYS = {pa.month_day_nano_interval(): [(1, 2, 3), (-1, 0, 5)]}


def all_rows(store: MasterStore) -> pa.Table:
    return table_of(store.scan(), store.schema)


def _stored(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return kind.value_type
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind, kind)


@pytest.mark.parametrize("kind", [*VALUES, *NO_KEYS], ids=str)
def test_every_type_comes_back_with_its_nulls(tmp_path: Path, kind: pa.DataType) -> None:
    values = (VALUES | NO_KEYS)[kind]
    column = pa.array([None, *values, None, values[0]], kind)
    numbers = list(range(len(column)))
    store = MasterStore.build(pa.table({"k": numbers, "c": column, "after": numbers}), tmp_path / "store", key="k")
    expected = pa.table({"k": numbers, "c": column.cast(_stored(kind)), "after": numbers})
    assert_same_rows(all_rows(store), expected)
    assert_same_rows(store.get(numbers), expected)
    assert_same_rows(table_of(store.scan(["c"]), pa.schema([("c", _stored(kind))])), expected.select(["c"]))


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_every_type_as_a_key(tmp_path: Path, kind: pa.DataType) -> None:
    values = list(dict.fromkeys(VALUES[kind]))
    column = pa.array([*values, None, values[0]], kind)
    table = pa.table({"k": column, "v": range(len(column))})
    store = MasterStore.build(table, tmp_path / "store", key="k")
    assert store.manifest.null_keys == 1
    assert store.rows == len(values) + 1
    plain = pa.table({"k": column.cast(_stored(kind)), "v": range(len(column))}).filter(pa.compute.is_valid(table["k"]))
    assert_same_rows(all_rows(store), plain)
    assert sorted(store.get(column.slice(0, 1))["v"].to_pylist()) == [0, len(values) + 1]
    assert store.get(pa.array(values, kind)).num_rows == len(values) + 1


def test_a_key_of_intervals_is_refused_or_works(tmp_path: Path) -> None:
    table = pa.table({"k": pa.array([(1, 2, 3)], pa.month_day_nano_interval()), "v": [1]})
    try:
        store = MasterStore.build(table, tmp_path / "store", key="k")
    except SchemaError as error:
        assert "'k'" in str(error)  # noqa: PT017
        return
    assert_same_rows(all_rows(store), table)


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int64()),
        pa.large_list(pa.string()),
        pa.list_(pa.int32(), 3),
        pa.struct([("a", pa.int64())]),
        pa.map_(pa.string(), pa.int64()),
        pa.null(),
        pa.dictionary(pa.int8(), pa.list_(pa.int64())),
    ],
    ids=str,
)
def test_nested_types_are_refused_by_name(tmp_path: Path, kind: pa.DataType) -> None:
    schema = pa.schema([("k", pa.int64()), ("tangled", kind)])
    source = pa.RecordBatchReader.from_batches(schema, [])
    with pytest.raises(SchemaError, match=r"'tangled' has type .*columns=\["):
        MasterStore.build(source, tmp_path / "store", key="k")
    source = pa.RecordBatchReader.from_batches(schema, [])
    assert MasterStore.build(source, tmp_path / "store", key="k", columns=["k"]).rows == 0


@pytest.mark.parametrize("page_bytes", [4096, 16384, 1 << 18])
@pytest.mark.parametrize("memory", ["1MB", "64MB"])
def test_spilled_or_not_the_rows_are_in_key_order_and_groups_together(
    tmp_path: Path, page_bytes: int, memory: str
) -> None:
    """About 5 MB unsorted, one key with more rows than a page, spread over all runs."""
    chooser = np.random.default_rng(1)
    count = 50_000
    keys = np.where(chooser.random(count) < 0.1, 4_321, chooser.integers(-20_000, 20_000, count))
    numbers = np.arange(count)
    table = pa.table({"k": keys, "n": numbers, "text": [f"{n}-" * (n % 20) for n in numbers.tolist()]})
    store = MasterStore.build(
        table.to_batches(max_chunksize=4_000), tmp_path / "store", key="k", memory=memory, page_bytes=page_bytes
    )
    scanned = all_rows(store)
    assert (np.diff(scanned["k"].to_numpy()) >= 0).all()
    order = scanned["n"].to_numpy()
    assert (np.sort(order) == numbers).all()
    assert scanned["k"].equals(table["k"].take(pa.array(order)))
    assert scanned["text"].equals(table["text"].take(pa.array(order)))
    hot = store.get(4_321)
    assert sorted(hot["n"].to_pylist()) == numbers[keys == 4_321].tolist()
    assert store.verify() == store.pages
    assert {name.split("-")[0] for name in os.listdir(store.path)} == {"segment", "version"}


@pytest.mark.parametrize("page_bytes", [1 << 19, 1 << 20])
def test_the_largest_pages_too(tmp_path: Path, page_bytes: int) -> None:
    """In a process of its own: reads past a buffer would end it."""
    code = f"""if True:
        import pyarrow as pa
        from semistream import MasterStore
        table = pa.table({{"k": range(60_000), "text": ["x" * 100] * 60_000}})
        store = MasterStore.build(table, {str(tmp_path / "store")!r}, key="k", page_bytes={page_bytes})
        assert sum(batch.num_rows for batch in store.scan()) == 60_000
        assert store.get([7, 59_999]).num_rows == 2
        print(store.verify() == store.pages)"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (said.returncode, said.stdout) == (0, "True\n"), said.stderr[-2000:]


@pytest.mark.parametrize("page_bytes", [4096, 1 << 20])
def test_measuring_the_disk_reads_into_its_own_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page_bytes: int
) -> None:
    reach: list[int] = []
    sizes: list[int] = []

    def read_ranges(fd: int, addresses: Any, lengths: Any, offsets: Any, first: int, last: int) -> int:
        reach.append(int((addresses[first:last] + lengths[first:last]).max() - addresses.min()))
        return -1

    def memory(fd: int, size: int) -> mmap.mmap:
        sizes.append(size)
        return mmap.mmap(fd, size)

    monkeypatch.setattr(reading, "read_ranges", read_ranges)
    monkeypatch.setattr(device, "mmap", SimpleNamespace(mmap=memory))
    (tmp_path / "file").write_bytes(bytes(24 << 20))
    device.measure(tmp_path / "file", page_bytes, direct=True)
    assert max(reach) <= sizes[0]


def test_reads_from_the_page_cache_cost_the_same_on_a_busy_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others do meanwhile shows on the clock, and not in the processor's time."""
    (tmp_path / "file").write_bytes(bytes(24 << 20))
    monkeypatch.setattr("semistream.stores.device.time.perf_counter", itertools.count(0, 1000).__next__)
    found = device.measure(tmp_path / "file", 4096, direct=False)
    assert found.request_seconds < 1


def test_groups_of_hashed_keys_stay_together_past_a_page(tmp_path: Path) -> None:
    keys = [f"key {n % 7}" for n in range(3_000)]
    store = MasterStore.build(pa.table({"k": keys, "n": range(3_000)}), tmp_path / "store", key="k")
    scanned = all_rows(store)["k"].to_pylist()
    changes = sum(a != b for a, b in itertools.pairwise(scanned))
    assert changes == 6
    assert not store.unique
    for key in range(7):
        assert sorted(store.get(f"key {key}")["n"].to_pylist()) == list(range(key, 3_000, 7))


def test_rows_larger_than_pages_among_small_ones(tmp_path: Path) -> None:
    texts = ["x" * (30_000 if n % 11 == 0 else n) for n in range(200)]
    table = pa.table({"k": [n // 2 for n in range(200)], "text": texts})
    store = MasterStore.build(table, tmp_path / "store", key="k")
    assert store.facts.largest_page > 30_000
    assert_same_rows(all_rows(store), table)
    assert_same_rows(store.get(list(range(100))), table)
    assert store.verify() == store.pages


def test_null_keys_are_left_out_and_counted(tmp_path: Path) -> None:
    table = pa.table({"a": [1, None, 3, None], "b": ["x", "y", None, None], "v": range(4)})
    store = MasterStore.build(table, tmp_path / "store", key=["a", "b"])
    assert (store.rows, store.manifest.null_keys) == (1, 3)
    assert all_rows(store).to_pylist() == [{"a": 1, "b": "x", "v": 0}]
    assert store.get([(1, None), (None, "y"), (1, "x")]).num_rows == 1


def test_null_keys_can_be_refused(tmp_path: Path) -> None:
    table = pa.table({"a": [1, None, 3], "v": range(3)})
    with pytest.raises(SchemaError, match=r"1 of the first 3 rows have a NULL in their key \(a\).*null_keys='drop'"):
        MasterStore.build(table, tmp_path / "store", key="a", null_keys="refuse")
    assert os.listdir(tmp_path / "store") == []
    with pytest.raises(ArgumentError, match="null_keys='keep' is not known; choose one of 'drop', 'refuse'"):
        MasterStore.build(table, tmp_path / "store", key="a", null_keys="keep")
    assert MasterStore.build(table.slice(0, 1), tmp_path / "store", key="a", null_keys="refuse").rows == 1


def test_a_master_of_keys_alone_and_an_empty_one(tmp_path: Path) -> None:
    store = MasterStore.build(pa.table({"k": [3, 1, 3]}), tmp_path / "keys", key="k")
    assert all_rows(store)["k"].to_pylist() == [1, 3, 3]
    assert store.get(3).num_rows == 2
    empty = MasterStore.build(
        pa.table({"k": pa.array([], pa.string()), "v": pa.array([], pa.int8())}), tmp_path / "e", key="k"
    )
    assert (empty.rows, empty.get("x").num_rows, all_rows(empty).num_rows, empty.verify()) == (0, 0, 0, 0)
    assert empty.upsert(pa.table({"k": ["x"], "v": pa.array([1], pa.int8())})).get("x").num_rows == 1


def test_direct_reads_give_the_same_rows(tmp_path: Path) -> None:
    table = pa.table({"k": range(5_000), "text": [str(n) * (n % 300) for n in range(5_000)]})
    MasterStore.build(table, tmp_path / "store", key="k").upsert(table.slice(7, 3))
    store = MasterStore.open(tmp_path / "store", direct=True)
    assert_same_rows(all_rows(store), table)
    assert_same_rows(
        store.get(list(range(0, 5_000, 7))),
        table.filter(pa.compute.equal(pa.array([n % 7 == 0 for n in range(5_000)]), True)),
    )
    assert store.verify() == store.pages


def test_a_direct_scan_given_up_early_disturbs_nobody(tmp_path: Path) -> None:
    """Reads in flight must not write into memory that was given back."""
    table = pa.table({"k": range(150_000), "text": ["x" * 100] * 150_000})
    store = MasterStore.build(table, tmp_path / "store", key="k")
    store = MasterStore.open(store.path, direct=True)
    for _ in range(10):
        next(store.scan(buffer_bytes=4 << 20))
        fresh = [np.zeros(2 << 20, np.uint8) for _ in range(4)]
        assert not any(one.any() for one in fresh)


@pytest.mark.parametrize("mask", [0o022, 0o000, 0o077])
def test_only_the_owner_may_read(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        store = MasterStore.build(pa.table({"k": [1], "v": [2]}), tmp_path / "deep" / "store", key="k").delete(1)
    finally:
        os.umask(before)
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o700
    modes = {file.name: oct(stat.S_IMODE(file.stat().st_mode)) for file in store.path.iterdir()}
    assert modes == dict.fromkeys(modes, "0o600")


def test_a_store_is_not_overwritten_by_accident(tmp_path: Path) -> None:
    table = pa.table({"k": [1], "v": [2]})
    store = MasterStore.build(table, tmp_path / "store", key="k")
    with pytest.raises(StoreError, match=r"holds a store already.*replace=True"):
        MasterStore.build(table, tmp_path / "store", key="k")
    second = MasterStore.build(pa.table({"k": ["new"]}), tmp_path / "store", key="k", replace=True)
    assert (second.version, second.schema.names) == (2, ["k"])
    assert all_rows(store).to_pylist() == [{"k": 1, "v": 2}]
    assert MasterStore.open(tmp_path / "store", 1).get(1).num_rows == 1
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is a file"):
        MasterStore.build(table, tmp_path / "file", key="k")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("")
    with pytest.raises(StoreError, match="not empty"):
        MasterStore.build(table, tmp_path / "full", key="k")


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    table = pa.table({"k": range(1_000)})
    store = MasterStore.build(table, tmp_path / "store", key="k", progress=lambda *what: told.append(what))
    store.verify(progress=lambda *what: told.append(what))
    assert {what for what, _, _ in told} == {"read and sort", "write pages", "verify"}
    assert ("read and sort", 1_000, 1_000) in told


def test_a_failing_source_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Any:
        yield pa.record_batch({"k": [1]})
        raise RuntimeError("the database went away")

    with pytest.raises(RuntimeError, match="went away"):
        MasterStore.build(broken(), tmp_path / "store", key="k")
    assert os.listdir(tmp_path / "store") == []


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"key": "nope"}, r"key=\['nope'\].*no column 'nope'.*\['k', 'v'\]"),
        ({"key": []}, r"key=\[\]"),
        ({"key": ["k", "k"]}, "names a column twice"),
        ({"key": 5}, "key=5"),
        ({"key": "k", "columns": ["w"]}, "no column 'w'"),
        ({"key": "k", "page_bytes": 1000}, "page_bytes=1000.*4096"),
        ({"key": "k", "page_bytes": "4096"}, "page_bytes='4096'"),
        ({"key": "k", "memory": "lots"}, "memory='lots'.*256MB"),
        ({"key": "k", "memory": 0}, "memory=0"),
        ({"key": "k", "hash_bits": -1}, "hash_bits=-1"),
        ({"key": "k", "hash_bits": 65}, "hash_bits=65"),
    ],
    ids=str,
)
def test_wrong_arguments_are_named(tmp_path: Path, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        MasterStore.build(pa.table({"k": ["a"], "v": [1]}), tmp_path / "store", **wrong)
    assert not (tmp_path / "store").exists() or os.listdir(tmp_path / "store") == []
