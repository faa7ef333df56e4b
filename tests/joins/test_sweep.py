"""What only the sweep promises: deadlines, a bounded window, bounded output, a cache as good as it can be, and safe."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semistream.budget import Budget
from semistream.errors import ArgumentError, MemoryBudgetError
from semistream.joins import JOINS
from semistream.joins.costs import Popularity
from semistream.joins.sweep.join import SweepJoin, SweepSettings
from semistream.lookup.bind import LookupPlan, bind
from semistream.lookup.spec import How, JoinSpec, LookupSpec
from semistream.stores import MasterStore
from semistream_lab.workloads.zipf import ZipfWorkload
from tests.advice import advised_bytes
from tests.devices import steady
from tests.joins.conformance import MOST_ROWS
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def zipf(tmp_path_factory: pytest.TempPathFactory) -> tuple[ZipfWorkload, MasterStore]:
    load = ZipfWorkload(rows=20_000)
    return load, steady(MasterStore.build(load.master(), tmp_path_factory.mktemp("zipf") / "store", key="key"))


def plan_of(
    store: MasterStore, stream: pa.Schema, on: str = "key", how: How = "left", columns: Any = None
) -> LookupPlan:
    return bind(LookupSpec(on=on, how=how, columns=columns), stream, store)


# -- waiting -----------------------------------------------------------------------------------------------------------


def test_rows_wait_until_the_deadline_and_no_longer(zipf: tuple[ZipfWorkload, MasterStore]) -> None:
    _, store = zipf
    now = [0.0]
    batches = [pa.record_batch({"key": [number]}) for number in (1, 2, 3, 4)]
    join = SweepJoin(
        store, plan_of(store, batches[0].schema), Budget(1 << 24), SweepSettings(wait_seconds=5), clock=lambda: now[0]
    )
    fed = [0]

    def stream() -> Iterator[pa.RecordBatch]:
        for batch, at in zip(batches, (0.0, 4.9, 5.1, 6.0), strict=True):
            now[0] = at
            fed[0] += 1
            yield batch

    came = [(fed[0], made.column("key").to_pylist()) for made in join.join(stream())]
    assert [at for at, _ in came] == [3, 4]
    assert sorted(came[0][1]) == [1, 2, 3]
    assert came[1][1] == [4]


def test_the_default_clock_runs(zipf: tuple[ZipfWorkload, MasterStore]) -> None:
    load, store = zipf
    batch = load.stream(0, 100)
    join = SweepJoin(store, plan_of(store, batch.schema), Budget(1 << 24), SweepSettings(wait_seconds=1e-9))
    fed = [0]

    def stream() -> Iterator[pa.RecordBatch]:
        for _ in range(3):
            fed[0] += 1
            yield batch

    assert next(fed[0] for _ in join.join(stream())) == 1


@pytest.mark.parametrize(
    "memory, share, adapt",
    [
        (30_000, 0.0, False),
        (30_000, 0.5, True),
        (30_000, 0.9, True),
        (200_000, 0.0, False),
        (200_000, 0.02, True),
        (200_000, 0.9, False),
        (200_000, 0.9, True),
        (2_000_000, 0.02, True),
        (2_000_000, 0.9, True),
    ],
)
def test_the_window_stays_within_its_limit(
    zipf: tuple[ZipfWorkload, MasterStore], memory: int, share: float, adapt: bool
) -> None:
    """Bursts after trickles, wide rows after narrow ones: whatever comes, the budget is kept."""
    load, store = zipf
    chooser = np.random.default_rng(1)
    schema = pa.schema([("key", pa.int64()), ("text", pa.string())])
    settings = SweepSettings(wait_seconds=1e9, cache_share=share, adapt=adapt)
    sizes = [(3, 2), (1_000, 2), (1, 0), (200, 60), (400, 5), (1, 100), (2_000, 3), (50, 120), (300, 1)]
    join = SweepJoin(store, plan_of(store, schema, columns=["price", "vendor"]), Budget(memory), settings)

    def stream() -> Iterator[pa.RecordBatch]:
        for size, width in sizes:
            widths = chooser.integers(0, width + 1, size)
            widths[size - size // 8 :] *= 5  # the average says little about the end of a batch
            keys = chooser.integers(0, load.rows, size)
            yield pa.record_batch({"key": keys, "text": ["x" * int(w) for w in widths]}, schema=schema)
            assert join.window.bytes <= join.window_limit
            assert join.stats.peak_bytes <= memory

    total = sum(made.num_rows for made in join.join(stream()))
    assert total == join.stats.rows_in == sum(size for size, _ in sizes)
    join.check()


def test_wide_rows_at_the_end_of_a_narrow_batch(zipf: tuple[ZipfWorkload, MasterStore]) -> None:
    """The average row of the batch fits the window twenty times, its last rows hardly once."""
    _, store = zipf
    texts = [""] * 900 + ["x" * 3_000] * 20
    batch = pa.record_batch({"key": range(920), "text": texts})
    settings = SweepSettings(cache_share=0.0)
    join = SweepJoin(store, plan_of(store, batch.schema, columns=["price"]), Budget(40_000), settings)
    assert sum(made.num_rows for made in join.join([batch])) == 920
    join.check()


@pytest.mark.parametrize("threads", [1, 3])
def test_the_cache_gives_way_to_a_row_wider_than_the_window(
    zipf: tuple[ZipfWorkload, MasterStore], threads: int
) -> None:
    """And takes the bytes back later; nothing passes the budget meanwhile."""
    load, store = zipf
    schema, memory = pa.schema([("key", pa.int64()), ("text", pa.string())]), store.bytes // 2
    seconds = itertools.count(0.0, 10.0)  # every batch finds the deadline passed, so the cache gets the window's room
    plan = bind(JoinSpec(on="key", columns=["price"], threads=threads), schema, store)
    join = SweepJoin(store, plan, Budget(memory), clock=lambda: next(seconds))
    limits: list[int] = []

    def stream() -> Iterator[pa.RecordBatch]:
        for turn in range(400):
            keys = load.stream(500 * turn, 500).column("key").to_numpy()
            texts = [""] * 500 + ["x" * (memory // 4 if turn == 300 else 0)]
            yield pa.record_batch({"key": np.append(keys, load.rows + turn), "text": texts}, schema=schema)
            limits.append(join.balance.limit)

    assert sum(made.num_rows for made in join.join(stream())) == 400 * 501
    assert limits[300] < 0.8 * limits[299]
    assert limits[-1] > 1.1 * limits[300]
    assert join.stats.peak_bytes <= memory
    join.check()


@pytest.mark.parametrize("memory, adapt", [(30_000, True), (30_000, False), (2_000_000, True), (2_000_000, False)])
def test_a_row_wider_than_the_window(zipf: tuple[ZipfWorkload, MasterStore], memory: int, adapt: bool) -> None:
    """It is refused with the memory that has room for it, also when the cache has grown."""
    load, store = zipf
    batch = pa.record_batch({"key": [1, 2, 3], "text": ["", "x" * 1_000_000, ""]})
    plan, settings = plan_of(store, batch.schema, columns=["price"]), SweepSettings(adapt=adapt)
    with pytest.raises(MemoryBudgetError, match=f"memory={memory:,} bytes") as refused:
        list(SweepJoin(store, plan, Budget(memory), settings).join([batch]))
    join = SweepJoin(store, plan, Budget(advised_bytes(refused.value)), settings)
    keys = [np.random.default_rng(turn).integers(0, load.rows, 20_000) for turn in range(20)]
    narrow = (pa.record_batch({"key": some, "text": [""] * len(some)}) for some in keys)
    assert sum(made.num_rows for made in join.join([*narrow, batch])) == 400_003
    join.check()


# -- bounded output ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", JOINS)
def test_a_hot_key_comes_out_in_bounded_batches(tmp_path: Path, name: str) -> None:
    """300 × 20,000 rows on one key, and one stream row with 70,000 matches."""
    keys = np.concatenate([np.full(20_000, 7), np.full(70_000, 8), np.arange(100, 200)])
    master = pa.table({"k": keys, "v": np.arange(len(keys)).astype(np.int32)})
    store = MasterStore.build(master, tmp_path / "store", key="k")
    batch = pa.record_batch({"k": pa.array([7] * 300 + [8, 5, 150]), "row": pa.array(range(303))})
    join = JOINS[name](store, plan_of(store, batch.schema, "k"), Budget(1 << 23))
    start = pa.total_allocated_bytes()
    per_row = np.zeros(303, np.int64)
    value_sum = 0
    largest = held = 0
    for made in join.join([batch]):
        largest = max(largest, made.num_rows)
        held = max(held, pa.total_allocated_bytes() - start)
        per_row += np.bincount(made.column("row").to_numpy(), minlength=303)
        value_sum += int(made.column("v").fill_null(0).to_numpy().sum())
    assert (per_row[:300] == 20_000).all()
    assert per_row[300:].tolist() == [70_000, 1, 1]
    assert value_sum == 300 * sum(range(20_000)) + sum(range(20_000, 90_000)) + 90_050
    assert largest <= MOST_ROWS
    assert held < 1 << 25
    join.check()


def test_hits_on_a_large_group_come_out_piece_by_piece(tmp_path: Path) -> None:
    """A cached group of many rows met by a batch full of its key: the output must not be held all at once."""
    keys = np.concatenate([np.full(60, 7), np.arange(100, 3_000)])
    store = MasterStore.build(pa.table({"k": keys, "v": np.arange(len(keys))}), tmp_path / "store", key="k")
    batch = pa.record_batch({"k": pa.array(np.full(40_000, 7)), "row": pa.array(np.arange(40_000))})
    memory = 1 << 22
    join = SweepJoin(store, plan_of(store, batch.schema, "k"), Budget(memory))
    for _ in range(2):
        list(join.join([batch.slice(0, 20)]))
    start = pa.total_allocated_bytes()
    rows = held = 0
    for made in join.join([batch]):
        rows += made.num_rows
        held = max(held, pa.total_allocated_bytes() - start)
    assert join.stats.hits > 40_000
    assert rows == 60 * 40_000
    assert held < 2 * memory


# -- reads and hits ----------------------------------------------------------------------------------------------------


def test_hit_ratio_is_near_that_of_perfect_frequencies(zipf: tuple[ZipfWorkload, MasterStore]) -> None:
    load, store = zipf
    plan = plan_of(store, load.stream(0, 1).schema, columns=["price", "vendor"])
    join = SweepJoin(store, plan, Budget(200_000), SweepSettings(wait_seconds=1e9))
    for start in range(0, 200_000, 20_000):
        if start == 140_000:
            before = join.stats.copy()
        for _ in join.join([load.stream(start, 20_000)]):
            pass
    measured = join.stats.since(before)
    bound = Popularity(load.rows, 1.0).head(measured.cached_rows)
    assert 300 < measured.cached_rows < load.rows / 2
    assert bound - 0.10 < measured.hit_ratio <= bound + 0.02
    join.check()


def test_a_sweep_reads_fewer_pages_than_lookups(zipf: tuple[ZipfWorkload, MasterStore]) -> None:
    load, store = zipf
    batches = [load.stream(start, 2_000) for start in range(0, 6_000, 2_000)]
    pages = {}
    for name in ("inl", "sweep"):
        more: Any = (SweepSettings(wait_seconds=1e9),) if name == "sweep" else ()
        join = JOINS[name](store, plan_of(store, batches[0].schema, columns=["price"]), Budget(300_000), *more)
        rows = sum(made.num_rows for made in join.join(batches))
        assert rows == join.stats.rows_in == 6_000
        assert join.stats.pages_read > 0
        assert join.stats.bytes_read >= join.stats.pages_read * store.page_bytes or name == "sweep"
        pages[name] = join.stats.pages_read / rows
    assert pages["inl"] >= 1
    assert pages["sweep"] < pages["inl"] / 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"wait_seconds": 0},
        {"wait_seconds": -1.0},
        {"cache_share": -0.1},
        {"cache_share": 1.0},
        {"cache_share": float("nan")},
        {"reads_in_flight": 0},
        {"reads_in_flight": 17},
    ],
    ids=str,
)
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=f"{next(iter(wrong))}={next(iter(wrong.values()))}"):
        SweepSettings(**wrong)


def test_an_abandoned_stream_leaves_nothing_behind(zipf: tuple[ZipfWorkload, MasterStore]) -> None:
    """A caller stops in the middle; the same join then answers the next stream as if nothing had happened."""
    load, store = zipf
    for direct in (False, True):
        opened = MasterStore.open(store.path, direct=direct)
        join = SweepJoin(opened, plan_of(opened, load.stream(0, 1).schema, columns=["surrogate"]), Budget(400_000))
        for turn in range(5):
            begun: Any = join.join([load.stream(50_000 * turn, 20_000)])
            next(begun)
            begun.close()
            batch = load.stream(7_000 * turn, 3_000)
            made = pa.Table.from_batches(join.join([batch]))
            assert sorted(made["at"].to_pylist()) == batch.column("at").to_pylist()
            assert (made["surrogate"].to_numpy() == made["key"].to_numpy() + 10**9).all()


def test_rows_that_wait_in_an_abandoned_stream_do_not_turn_up_in_the_next(
    zipf: tuple[ZipfWorkload, MasterStore],
) -> None:
    """A task that is cancelled must not leave its rows to the next task that uses the same join."""
    _, store = zipf
    schema = pa.schema([("key", pa.int64()), ("row", pa.int64())])
    join = SweepJoin(store, plan_of(store, schema, columns=["price"]), Budget(400_000), SweepSettings(wait_seconds=1e9))
    hot = pa.record_batch({"key": [1] * 20, "row": range(20)}, schema=schema)
    for _ in range(3):
        list(join.join([hot]))
    cold = pa.record_batch({"key": range(100, 150), "row": range(100, 150)}, schema=schema)
    begun: Any = join.join([cold, hot, hot])
    assert set(next(begun).column("key").to_pylist()) == {1}
    begun.close()
    made = pa.Table.from_batches(join.join([hot]))
    assert made["row"].to_pylist() == list(range(20))


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", ["fixed", *(pytest.param(shape, marks=pytest.mark.long) for shape in ("text", "hashed"))]
)
@pytest.mark.parametrize("part", ["tables", pytest.param("header", marks=pytest.mark.long)])
def test_damaged_cache_memory_never_gives_wrong_rows(shape: str, part: str) -> None:
    """In a process of its own, since a fault here may end it; see tests/joins/damaged_cache.py."""
    said = subprocess.run(
        [sys.executable, "-m", "tests.joins.damaged_cache", shape, part, "70"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert said.returncode == 0, f"exit code {said.returncode}\n{said.stdout[-2000:]}\n{said.stderr[-2000:]}"
    assert said.stdout.endswith("70 rounds\n")
