"""Joins in several threads: the same rows and counts as in one, within the same budget, and nothing runs on after."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semistream import MasterStore, join, make_join
from semistream.budget import Budget
from semistream.errors import CorruptStoreError, FanOutError
from semistream.joins import JOINS, threads, window
from semistream.joins.contract import Join
from semistream.joins.sweep import split
from semistream.joins.sweep.join import SweepJoin, SweepSettings
from semistream.joins.sweep.split import Division
from semistream.joins.threads import Ahead, piece_rows, side_by_side
from semistream.lookup.bind import bind
from semistream.lookup.spec import HOWS, MULTIPLE, How, JoinSpec, LookupSpec
from semistream.stores.paged.segment import DATA_AT
from tests.joins.conformance import (
    HISTORIES,
    MASTERS,
    STREAMS,
    Question,
    build,
    conform,
    history_question,
    history_table,
    question,
)
from tests.joins.test_properties import cases, question_of
from tests.pairwise import all_pairs
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
THREADED = ("sweep", "whole")


@pytest.fixture(autouse=True, scope="module")
def tiny() -> Iterator[None]:
    """Threads also for a few rows, and in the smallest budgets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "LEAST_ROWS", 3)
        patch.setattr(window, "LEAST_ROWS", 3)
        patch.setattr(split, "_LANE_ROWS", 1)
        yield


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> list[Future[Any]]:
    """All work that was given to threads."""
    given: list[Future[Any]] = []
    pool = threads._pool()

    class Watched:
        def submit(self, *arguments: Any) -> Future[Any]:
            given.append(pool.submit(*arguments))
            return given[-1]

    monkeypatch.setattr(threads, "_pool", Watched)
    return given


def made_for(asked: Question, name: str = "sweep", extra: int = 1 << 20) -> Join:
    plan = asked.plan
    return JOINS[name](asked.store, plan, Budget(JOINS[name].least_bytes(asked.store.facts, plan) + extra))


# -- the same rows -----------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases(), count=st.integers(1, 4), extra=st.integers(0, 400_000))
def test_any_history_equals_the_model_twice(case: dict[str, Any], count: int, extra: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asked = replace(question_of(case, folder), threads=count)
        for name in THREADED:
            made = made_for(asked, name, extra)
            conform(made, asked)
            conform(made, asked)


CASES = all_pairs(
    {
        "name": THREADED,
        "key": ("int64", "string", "text and NaN"),
        "master": MASTERS,
        "stream": STREAMS,
        "how": HOWS,
        "output": ("all columns", "key too", "no columns", "defaults"),
        "count": ("2", "3", "4"),
        "extra": ("0", "30000", "1000000"),
    }
)


@pytest.mark.parametrize("name, key, master, stream, how, output, count, extra", CASES)
def test_same_rows_as_the_model(
    tmp_path: Path, name: str, key: str, master: str, stream: str, how: How, output: str, count: str, extra: str
) -> None:
    store, table = build(tmp_path / "store", key, master)
    asked = replace(question(store, table, key, stream, how, output), threads=int(count))
    made = made_for(asked, name, int(extra))
    conform(made, asked)
    conform(made, asked)


VERSIONS = all_pairs(
    {
        "name": THREADED,
        "history": HISTORIES,
        "how": HOWS,
        "multiple": MULTIPLE,
        "text": ("", "text"),
        "rest": ("", "status", "defaults"),
        "count": ("2", "4"),
    }
)


@pytest.mark.parametrize("name, history, how, multiple, text, rest, count", VERSIONS)
def test_versions_of_a_moment(
    tmp_path: Path, name: str, history: str, how: How, multiple: Any, text: str, rest: str, count: str
) -> None:
    master = history_table("int64", "timestamp", history, text=bool(text))
    store = MasterStore.build(master, tmp_path / "store", key="k0")
    more: dict[str, Any] = {"multiple": multiple, "threads": int(count)}
    if how == "left" and rest:
        more |= {"status": "found"} if rest == "status" else {"defaults": {"w": -1.5}}
    asked = history_question(store, master, "int64", "timestamp", how, **more)
    made = made_for(asked, name)
    if multiple == "error" and history == "overlaps":
        with pytest.raises(FanOutError):
            conform(made, asked)
        return
    conform(made, asked)
    conform(made, asked)


# -- larger streams: evictions, filters, many sweeps -------------------------------------------------------------------

KEPT = 6_000
SCHEMA = pa.schema([("k", pa.int64()), ("row", pa.int64())])


@pytest.fixture(scope="module", params=["fixed width", "text", "duplicates"])
def tripled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MasterStore:
    """Even keys from 0 on; v is three times the key."""
    keys = np.arange(0, 2 * KEPT, 2)
    if request.param == "duplicates":
        keys = np.repeat(keys, 1 + keys // 2 % 3)
    columns: dict[str, Any] = {"k": keys, "v": 3 * keys}
    if request.param == "text":
        columns["note"] = [str(key) * (key % 5) for key in keys.tolist()]
    return MasterStore.build(pa.table(columns), tmp_path_factory.mktemp("tripled") / "store", key="k")


def sweep_in(store: MasterStore, memory: int, count: int, how: How = "left") -> SweepJoin:
    plan = bind(JoinSpec(on="k", how=how, threads=count), SCHEMA, store)
    return SweepJoin(store, plan, Budget(memory), SweepSettings(wait_seconds=1e9))


def stream_of(keys: Any, rows: int = 2_500) -> list[pa.RecordBatch]:
    whole = pa.record_batch({"k": keys, "row": np.arange(len(keys))}, schema=SCHEMA)
    return [whole.slice(start, rows) for start in range(0, len(keys), rows)]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("memory", [60_000, 150_000, 1_000_000])
def test_evictions_and_counts(tripled: MasterStore, memory: int, count: int) -> None:
    """Skewed and absent keys; every row comes out as often as it should, and all counts agree with one thread's."""
    chooser = np.random.default_rng(3)
    keys = np.concatenate(
        [2 * (KEPT * chooser.random(6_000) ** 3).astype(np.int64), chooser.integers(0, 4 * KEPT, 6_000)]
    )
    made = sweep_in(tripled, memory, count)
    assert made.parts.lanes == count or memory < 150_000
    copies = np.zeros(len(keys), np.int64)
    for _ in range(2):
        for batch in made.join(stream_of(keys)):
            rows, values = batch.column("row").to_numpy(), batch.column("v")
            copies += np.bincount(rows, minlength=len(keys))
            there = values.is_valid().to_numpy(zero_copy_only=False)
            assert (there == ((keys[rows] % 2 == 0) & (keys[rows] < 2 * KEPT))).all()
            assert (values.drop_null().to_numpy() == 3 * keys[rows[there]]).all()
    grouped = not tripled.facts.unique
    matches = (keys % 2 == 0) & (keys < 2 * KEPT)
    expected = np.where(matches & grouped, 1 + keys // 2 % 3, 1)
    assert (copies == 2 * expected).all()
    stats = made.stats
    assert stats.hits + stats.misses <= stats.rows_in == 2 * len(keys)  # a filter answers the others
    assert (stats.matched, stats.unmatched) == (2 * matches.sum(), 2 * (~matches).sum())
    assert stats.rows_out == copies.sum()
    assert stats.hits > 0
    assert stats.pages_read == sum(lane.reader.counters.pages for lane in made.lanes) > 0
    assert stats.peak_bytes <= memory
    made.check()


@pytest.mark.parametrize("how", HOWS)
def test_results_do_not_depend_on_the_threads(tripled: MasterStore, how: How) -> None:
    keys = np.random.default_rng(5).integers(0, 3 * KEPT, 9_000)
    known = None
    for count in (1, 2, 4):
        made = sweep_in(tripled, 300_000, count, how)
        rows = pa.Table.from_batches(made.join(stream_of(keys)), made.plan.output)
        rows = rows.sort_by([(name, "ascending") for name in rows.column_names])
        assert known is None or rows.equals(known)
        known = rows


def test_pieces_are_spread_evenly() -> None:
    for rows, most, count in itertools.product((1, 50, 1_000, 4_097), (10, 64, 5_000), (1, 2, 3, 4)):
        size = piece_rows(rows, most, count)
        assert 0 < size <= most
        if count > 1 and rows >= 3 * count:
            rounds = -(-rows // (most * count))
            assert rows <= size * count * rounds < rows + count * rounds


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 5, 64])
def test_the_smallest_budget_is_that_of_one_thread(tripled: MasterStore, count: int) -> None:
    plan = bind(JoinSpec(on="k", threads=count), SCHEMA, tripled)
    least = SweepJoin.least_bytes(tripled.facts, plan)
    assert least == SweepJoin.least_bytes(tripled.facts, bind(LookupSpec(on="k"), SCHEMA, tripled))
    for memory in (least, least + 1_000, 3 * least, 40 * least):
        made = SweepJoin(tripled, plan, Budget(memory))
        assert 1 <= made.parts.lanes <= count
        assert sum(batch.num_rows for batch in made.join(stream_of(np.arange(1, 99, 2), 20))) == 49
        assert made.stats.peak_bytes <= memory
        made.check()


def test_small_pieces_make_fewer_lanes(tripled: MasterStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "_LANE_ROWS", 1024)
    plan = bind(JoinSpec(on="k", threads=4), SCHEMA, tripled)
    lanes = [Division.of(tripled.facts, plan, memory, 0.9).lanes for memory in (10**5, 10**6, 10**7, 10**8)]
    assert lanes == sorted(lanes)
    assert lanes[0] == 1
    assert lanes[-1] == 4


def test_parts_add_up_to_the_budget(tripled: MasterStore) -> None:
    for count, memory in itertools.product((1, 2, 7), (10**5, 10**6, 10**8)):
        plan = bind(JoinSpec(on="k", threads=count), SCHEMA, tripled)
        parts = Division.of(tripled.facts, plan, memory, 0.9)
        buffers = parts.lanes * (parts.buffer + parts.plan) + parts.pieces * parts.output
        assert 0 <= memory - (parts.index + buffers + parts.cache + parts.window) <= 1
        assert parts.window > 0


def test_output_that_nobody_takes_does_not_pile_up(tmp_path: Path) -> None:
    """A reader that is slow holds all lanes up: each has made one batch at most."""
    keys = np.concatenate([np.full(60, 7), np.full(60, 9), np.arange(100, 3_000)])
    store = MasterStore.build(pa.table({"k": keys, "v": np.arange(len(keys))}), tmp_path / "store", key="k")
    memory = 1 << 22
    made = sweep_in(store, memory, 4)
    batches = stream_of(np.tile([7, 9], 20_000), 40_000)
    start, held, rows = pa.total_allocated_bytes(), 0, 0
    for number, batch in enumerate(made.join(batches)):
        if number % 20 == 0:
            time.sleep(0.01)
        rows += batch.num_rows
        held = max(held, pa.total_allocated_bytes() - start)
    assert rows == 60 * 40_000
    assert held < 2 * memory


# -- leaving early, and errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", THREADED)
@pytest.mark.parametrize("count", [2, 4])
def test_a_reader_that_leaves(tripled: MasterStore, works: list[Future[Any]], name: str, count: int) -> None:
    """At any batch; nothing runs on, and the same join then answers the next stream in full."""
    plan = bind(JoinSpec(on="k", threads=count), SCHEMA, tripled)
    made = JOINS[name](tripled, plan, Budget(1 << 21))
    chooser = np.random.default_rng(8)
    keys = 2 * chooser.integers(0, KEPT, 12_000)
    expected = sum(batch.num_rows for batch in made.join(stream_of(keys[:5_000])))
    for taken in (0, 1, 2, 3, 5, 9, 17):
        begun: Any = made.join(stream_of(np.roll(keys, 977 * taken), 4_000))
        for _ in itertools.islice(begun, taken):
            pass
        begun.close()
        assert all(work.done() for work in works)
        assert made.budget.parts.get("window", 0) == 0
        assert sum(batch.num_rows for batch in made.join(stream_of(keys[:5_000]))) == expected
        made.check()
    assert works


def test_a_stream_that_is_forgotten(tripled: MasterStore, works: list[Future[Any]]) -> None:
    made = sweep_in(tripled, 1 << 20, 3)
    begun = made.join(stream_of(2 * np.arange(6_000), 6_000))
    next(begun)
    del begun
    assert works
    assert all(work.done() for work in works)


def test_a_source_that_fails(tripled: MasterStore, works: list[Future[Any]]) -> None:
    made = sweep_in(tripled, 1 << 20, 3)
    keys = np.arange(0, 8_000)

    def failing() -> Iterator[pa.RecordBatch]:
        yield from stream_of(keys)[:2]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(made.join(failing()))
    assert works
    assert all(work.done() for work in works)
    assert {row for batch in made.join(stream_of(keys)) for row in batch.column("row").to_pylist()} == set(range(8_000))
    made.check()


@pytest.mark.parametrize("count", [2, 4])
def test_a_damaged_page(tmp_path: Path, works: list[Future[Any]], count: int) -> None:
    keys = np.arange(20_000)
    store = MasterStore.build(pa.table({"k": keys, "v": 3 * keys}), tmp_path / "store", key="k")
    with store.segments[0].path.open("r+b") as file:
        file.seek(DATA_AT + store.pages // 2 * store.page_bytes + 40)
        file.write(b"damaged")
    made = sweep_in(MasterStore.open(store.path), 1 << 20, count)
    with pytest.raises(CorruptStoreError, match="is damaged"):
        list(made.join(stream_of(np.random.default_rng(2).permutation(keys))))
    assert works
    assert all(work.done() for work in works)
    rows = sum(batch.num_rows for batch in made.join(stream_of(keys[:4_000])))  # pages that are sound
    assert rows == 4_000
    made.check()


def test_several_matches_are_an_error_in_a_thread(tripled: MasterStore, works: list[Future[Any]]) -> None:
    if tripled.facts.unique:
        return
    plan = bind(JoinSpec(on="k", threads=3, multiple="error"), SCHEMA, tripled)
    made = SweepJoin(tripled, plan, Budget(1 << 20))
    with pytest.raises(FanOutError, match="more than one match"):
        list(made.join(stream_of(np.arange(6_000))))
    assert works
    assert all(work.done() for work in works)


# -- the threads themselves --------------------------------------------------------------------------------------------


def test_work_ahead_comes_in_order() -> None:
    ahead: Ahead[int] = Ahead()
    gate = threading.Event()

    def first() -> int:
        gate.wait(PATIENCE)
        return 1

    ahead.start(first)
    ahead.start(lambda: 2)
    gate.set()
    assert ahead.seen() == [1, 2]
    assert (ahead.next(), len(ahead), ahead.next(), len(ahead)) == (1, 1, 2, 0)
    ahead.start(lambda: 1 // 0)
    ahead.start(lambda: 3)
    with pytest.raises(ZeroDivisionError):
        ahead.next()
    ahead.stop()
    assert len(ahead) == 0


def test_side_by_side_gives_everything_and_runs_at_once() -> None:
    meeting = threading.Barrier(3, timeout=PATIENCE)

    def part(number: int) -> Iterator[int]:
        meeting.wait()  # nobody goes on alone
        yield from range(number, 30, 3)

    assert sorted(side_by_side([part(number) for number in range(3)])) == list(range(30))


def test_side_by_side_closes_what_it_was_given() -> None:
    closed = []

    def part(number: int, *, fails: bool = False) -> Iterator[int]:
        try:
            yield number
            if fails:
                raise ZeroDivisionError
            yield from range(1_000)
        finally:
            closed.append(number)

    begun = side_by_side([part(1), part(2)])
    next(begun)
    begun.close()
    assert sorted(closed) == [1, 2]
    with pytest.raises(ZeroDivisionError):
        list(side_by_side([part(3), part(4, fails=True)]))
    assert sorted(closed) == [1, 2, 3, 4]


FORKED = """
import os, sys, numpy as np, pyarrow as pa
from semistream import MasterStore, make_join
keys = np.arange(200_000)
store = MasterStore.build(pa.table({"k": keys, "v": 3 * keys}), sys.argv[1], key="k")
batch = pa.record_batch({"k": np.random.default_rng(1).permutation(keys)})
made = make_join(batch.schema, store, on="k", memory="20MB", algorithm="sweep", threads=3)
assert made.parts.lanes > 1
def joined():
    return sum(one.num_rows for one in made.join([batch]))
if sys.argv[2] == "warm":
    assert joined() == 200_000
child = os.fork()
assert joined() == 200_000
made.check()
if child == 0:
    print("child")
    sys.stdout.flush()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print("parent")
"""


@pytest.mark.parametrize("when", ["cold", "warm"])
def test_processes_that_fork(tmp_path: Path, when: str) -> None:
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED, str(tmp_path / "store"), when],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert said.stdout == "child\nparent\n", said.stderr[-2000:]


# -- what is asked -----------------------------------------------------------------------------------------------------


def test_the_default_is_all_cores(tripled: MasterStore) -> None:
    assert make_join(SCHEMA, tripled, on="k").plan.threads == len(os.sched_getaffinity(0))
    assert make_join(SCHEMA, tripled, on="k", threads=3).plan.threads == 3
    assert bind(LookupSpec(on="k"), SCHEMA, tripled).threads == 1  # as a task of Spark asks


@pytest.mark.parametrize("name", JOINS)
def test_every_join_may_be_asked_for_threads(tripled: MasterStore, name: str) -> None:
    batches = stream_of(np.arange(0, 400), 100)
    asked = join(batches, tripled, on="k", memory="2MB", algorithm=name, threads=3)
    rows = {row for batch in asked for row in batch.column("row").to_pylist()}
    assert rows == set(range(400))


def test_one_thread_needs_no_pool(tripled: MasterStore, works: list[Future[Any]]) -> None:
    assert isinstance(threads._pools.get(os.getpid()), ThreadPoolExecutor)
    for name in THREADED:
        list(join(stream_of(np.arange(4_000)), tripled, on="k", memory="2MB", algorithm=name, threads=1))
    assert not works
