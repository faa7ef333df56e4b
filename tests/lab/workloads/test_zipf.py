"""The Zipf workload: exact, the same in batches of every size, as skewed as asked for on both sides."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.errors import ArgumentError
from semistream_lab.workloads.zipf import ZipfWorkload
from tests.lab.workloads.digests import digest
from tests.lab.workloads.statistics import assert_drawn_from, merged, power_sum

EXPONENTS = [0.0, 0.5, 0.999_999, 1.0, 1.5, 2.5]


@pytest.mark.parametrize(
    "skew, shuffled, known",
    [
        (0.0, True, "dba03cf4d59d2b86"),
        (0.0, False, "c89b09c65169fff0"),
        (0.5, True, "4b447568b188ccb7"),
        (0.75, False, "99187b21f7fced8d"),
        (1.0, True, "8cb88ebee646ab9e"),
        (1.0, False, "4062ee8705944206"),
        (1.5, True, "c58d003bf6677d0f"),
        (2.5, False, "4ed2cb8e92d8b6e2"),
    ],
)
def test_streams_stay_what_they_are(skew: float, shuffled: bool, known: str) -> None:
    """Measurements that were stored were made with these rows."""
    load = ZipfWorkload(100_003, skew=skew, seed=5, shuffled=shuffled)
    assert digest(load.stream(1000, 5000)) == known


def test_wide_streams_and_masters_stay_what_they_are() -> None:
    assert digest(ZipfWorkload(10_000_000).stream(123_456, 5000, wide=True)) == "b19473ef59495eab"
    assert digest(next(ZipfWorkload(10_007, seed=3).master(4096))) == "9aac580e819a2f0e"


@pytest.mark.parametrize("skew", EXPONENTS)
@pytest.mark.parametrize("keys", [2, 1000])
def test_every_rank_is_drawn_as_often_as_zipf_says(skew: float, keys: int) -> None:
    drawn = ZipfWorkload(keys, skew=skew, shuffled=False, seed=11).keys(0, 400_000)
    counts = np.bincount(drawn, minlength=keys)
    assert_drawn_from(*merged(counts, np.arange(1, keys + 1) ** -skew))


@pytest.mark.parametrize("wrong", [0.98, 1.02])
def test_the_test_tells_a_wrong_exponent(wrong: float) -> None:
    counts = np.bincount(ZipfWorkload(1000, skew=wrong, shuffled=False).keys(0, 400_000), minlength=1000)
    with pytest.raises(AssertionError):
        assert_drawn_from(*merged(counts, np.arange(1, 1001) ** -1.0))


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0, 1.5, 2.5])
def test_a_hundred_million_keys_in_little_memory(skew: float) -> None:
    load = ZipfWorkload(10**8, skew=skew, shuffled=False, seed=3)
    load.keys(0, 1)  # kernels are loaded
    tracemalloc.start()
    ranks = load.keys(0, 400_000) + 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 25_000_000
    edges = [1, 2, 3, 4, 6, 10, 30, 100, 1000, 10**4, 10**5, 10**6, 10**7, 3 * 10**7, 6 * 10**7, 10**8 + 1]
    shares = [power_sum(low, high - 1, skew) for low, high in itertools.pairwise(edges)]
    assert_drawn_from(*merged(np.histogram(ranks, edges)[0], shares))


def test_shuffled_keys_are_the_same_popularities() -> None:
    plain = ZipfWorkload(5000, shuffled=False).keys(0, 50_000)
    mixed = ZipfWorkload(5000).keys(0, 50_000)
    assert np.sort(np.bincount(plain)).tolist()[-2000:] == np.sort(np.bincount(mixed)).tolist()[-2000:]
    assert abs(np.corrcoef(plain, mixed)[0, 1]) < 0.1


LOADS = st.builds(
    ZipfWorkload,
    rows=st.integers(1, 3000),
    skew=st.sampled_from([0.0, 0.7, 1.0, 2.0]),
    seed=st.integers(0, 1000),
    shuffled=st.booleans(),
    absent=st.sampled_from([0.0, 0.3, 1.0]),
    distinct=st.sampled_from([0, 1, 7, 64, 65, 500]),
    shift_every=st.sampled_from([0, 1, 10, 997]),
    row_bytes=st.sampled_from([38, 120, 500]),
    stream_bytes=st.sampled_from([20, 21, 100]),
)


@settings(deadline=None, max_examples=60)
@given(load=LOADS, start=st.integers(0, 2000), cuts=st.lists(st.integers(0, 300), max_size=6))
def test_the_batch_size_changes_nothing(load: ZipfWorkload, start: int, cuts: list[int]) -> None:
    edges = sorted({0, 300, *cuts})
    pieces = [load.stream(start + low, high - low) for low, high in itertools.pairwise(edges)]
    assert pa.Table.from_batches(pieces).combine_chunks().equals(pa.Table.from_batches([load.stream(start, 300)]))
    whole = pa.Table.from_batches(load.master()).combine_chunks()
    assert pa.Table.from_batches(load.master(137)).combine_chunks().equals(whole)
    assert whole.num_rows == load.rows
    assert whole.schema.equals(load.master_schema)
    assert load.stream_schema.equals(pieces[0].schema)


@pytest.mark.parametrize("master_skew", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("rows, distinct", [(10_000, 1), (10_000, 300), (5_000, 5_000), (1_000, 4_000)])
def test_rows_a_key_are_shared_out_by_zipf(rows: int, distinct: int, master_skew: float) -> None:
    load = ZipfWorkload(rows, distinct=distinct, master_skew=master_skew, shuffled=False)
    counts = load.rows_a_key()
    shares = np.arange(1, distinct + 1) ** -master_skew
    assert counts.sum() == rows
    assert np.abs(counts - rows * shares / shares.sum()).max() <= 1.000001
    keys = pa.Table.from_batches(load.master(999)).column("key").to_numpy()
    assert np.bincount(keys, minlength=distinct).tolist() == counts.tolist()
    shuffled = ZipfWorkload(rows, distinct=distinct, master_skew=master_skew).rows_a_key()
    assert np.sort(shuffled).tolist() == np.sort(counts).tolist()


def test_rows_of_one_key_differ() -> None:
    master = pa.Table.from_batches(ZipfWorkload(1000, distinct=3).master())
    assert len(set(master.column("surrogate").to_pylist())) == 1000


def test_skews_of_both_sides_are_independent() -> None:
    """Shuffled, the keys with most rows are not those that are asked for most."""
    load = ZipfWorkload(100_000, skew=1.0, distinct=2000, master_skew=1.0)
    asked = np.bincount(load.keys(0, 100_000), minlength=2000)
    assert abs(np.corrcoef(asked, load.rows_a_key())[0, 1]) < 0.1
    same = ZipfWorkload(100_000, skew=1.0, distinct=2000, master_skew=1.0, shuffled=False)
    assert np.corrcoef(np.bincount(same.keys(0, 100_000), minlength=2000), same.rows_a_key())[0, 1] > 0.9


def test_popular_keys_change() -> None:
    load = ZipfWorkload(10_000, shift_every=20_000, seed=5)
    tops = []
    for start in range(0, 100_000, 20_000):
        counts = np.bincount(load.keys(start, 20_000), minlength=10_000)
        tops.append(set(np.argsort(counts)[-5:].tolist()))
        assert counts.max() == pytest.approx(20_000 / power_sum(1, 10_000, 1.0), rel=0.1)
    assert len(set.union(*tops)) == 25
    first = ZipfWorkload(10_000, seed=5).keys(0, 20_000)
    assert load.keys(0, 20_000).tolist() == first.tolist()


@pytest.mark.parametrize("share", [0.0, 0.05, 1.0])
def test_the_share_without_a_match(share: float) -> None:
    keys = ZipfWorkload(1000, absent=share).keys(0, 50_000)
    assert (keys >= 1000).mean() == pytest.approx(share, abs=4 * (share * (1 - share) / 50_000) ** 0.5)
    assert keys.max() < 2000


@pytest.mark.parametrize("row_bytes, stream_bytes", [(120, 20), (38, 21), (1000, 128)])
def test_rows_have_the_sizes_asked_for(row_bytes: int, stream_bytes: int) -> None:
    load = ZipfWorkload(100, row_bytes=row_bytes, stream_bytes=stream_bytes)
    assert _bytes(load.master_slice(0, 100)) == 100 * row_bytes
    assert _bytes(load.stream(0, 100)) == 100 * stream_bytes


def _bytes(batch: pa.RecordBatch) -> int:
    found = 0
    for column in batch.columns:
        if pa.types.is_string(column.type):
            found += sum(map(len, column.to_pylist()))
        else:
            found += len(column) * max(1, column.type.bit_width // 8)
    return found


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"rows": 0}, "rows=0 must be at least 1"),
        ({"skew": -0.1}, "skew=-0.1"),
        ({"skew": float("nan")}, "skew=nan"),
        ({"seed": -1}, "seed=-1"),
        ({"absent": 1.01}, "absent=1.01"),
        ({"distinct": -1}, "distinct=-1"),
        ({"master_skew": 1.0}, "needs distinct="),
        ({"master_skew": -1.0, "distinct": 5}, "master_skew=-1.0"),
        ({"shift_every": -5}, "shift_every=-5"),
        ({"row_bytes": 37}, "row_bytes=37 must be between 38 and 4,096"),
        ({"stream_bytes": 19}, "stream_bytes=19 must be between 20"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ZipfWorkload(**arguments)


def test_rows_that_are_not_there() -> None:
    with pytest.raises(ArgumentError, match="start=-1"):
        ZipfWorkload(10).stream(-1, 5)
    with pytest.raises(ArgumentError, match="the master has 10 rows"):
        ZipfWorkload(10).master_slice(8, 3)
    with pytest.raises(ArgumentError, match="batch_rows=0"):
        next(ZipfWorkload(10).master(0))
