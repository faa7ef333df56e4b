"""The cache that workers share, without Spark: writers that die, damaged files, places for tasks, private files."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import uuid
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from semistream import MasterStore
from semistream.errors import MemoryBudgetError, SemistreamError
from semistream.joins.sweep.split import Division
from semistream.lookup.spec import How
from semistream.spark import shared
from semistream.spark.area import Area, area, directories, remove_files
from semistream.spark.operator import Operator, lend, run_task
from semistream.spark.prepare import FrameFacts, prepare
from semistream.spark.shared import place
from semistream.spark.spec import EnrichSpec
from tests.advice import advised_bytes
from tests.spark.streams import build, keys, master_table
from tests.tables import assert_same_rows, model_join, table_of
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 400


Make = Callable[..., Operator]


@pytest.fixture
def operator(spark: SparkSession) -> Make:
    """The operator as `enrich` ships it to the workers, for an application of our own; nothing of Spark runs."""
    df = spark.createDataFrame(keys(1))

    def make(store: MasterStore, application: str, **options: Any) -> Operator:
        given: dict[str, Any] = {"memory": 2_000_000, "algorithm": "sweep", "tasks_per_host": 2, **options}
        prepared = prepare(FrameFacts.of(df), store, EnrichSpec(on="id", transport="rows", **given)).operator
        return replace(prepared, application=application)

    return make


@pytest.fixture
def application() -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex[:8]}"
    yield name
    remove_files(name)
    assert not files(name)


@pytest.fixture(params=["fixed", "text"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MasterStore:
    table = master_table(ROWS)
    return build(tmp_path / "s", table if request.param == "text" else table.drop_columns(["name"]))


def files(application: str) -> list[Path]:
    return sorted(path for one in directories(application) for path in one.glob("*"))


def cache_file(application: str) -> Path:
    [found] = [path for path in files(application) if path.name.endswith("-cache")]
    return found


def content(store: MasterStore) -> pa.Table:
    return pa.Table.from_batches(store.scan(), store.schema)


def joined(op: Operator, left: pa.Table, *, damaged: bool = False) -> tuple[pa.Table, Any]:
    with run_task(op, left.schema) as task:
        result = table_of(task.join.join(left.to_batches()), task.join.plan.output)
        if not damaged:  # a damaged cache gives misses; that its structure is whole cannot be asked of it
            task.join.check()
        return result, task.finish()


def test_warm_for_the_next_task(operator: Make, store: MasterStore, application: str) -> None:
    left = keys(*range(ROWS), 999, None)
    for attempt in range(3):
        result, stats = joined(operator(store, application), left)
        assert_same_rows(result, model_join(left, content(store), "id"))
        assert stats.hits >= (ROWS if attempt else 0)
        assert (stats.matched, stats.unmatched) == (ROWS, 2)


def test_warm_for_the_next_application(operator: Make, store: MasterStore, application: str, tmp_path: Path) -> None:
    """Keys that were hot are kept in a file, for a cache that begins empty."""
    hot = tmp_path / "state" / "hot.arrow"
    left = keys(*range(ROWS), 999, None)
    joined(operator(store, application, hot_keys=hot), left)
    others = [f"{application}-next", f"{application}-without"]
    try:
        result, warm = joined(operator(store, others[0], hot_keys=hot), left)
        assert_same_rows(result, model_join(left, content(store), "id"))
        assert warm.hits >= ROWS
        assert joined(operator(store, others[1]), left)[1].hits == 0
    finally:
        for other in others:
            remove_files(other)


@pytest.mark.parametrize("how", ["semi", "anti", "inner"])
def test_a_warm_cache_for_every_how(operator: Make, store: MasterStore, application: str, how: str) -> None:
    left = keys(*range(0, 2 * ROWS, 3), None)
    op = operator(store, application, how=how)
    for _ in range(3):
        assert_same_rows(joined(op, left)[0], model_join(left, content(store), "id", how))


def test_one_private_file_within_the_budget(operator: Make, store: MasterStore, application: str) -> None:
    op = operator(store, application)
    joined(op, keys(*range(ROWS)))
    path = cache_file(application)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size <= op.memory_bytes
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files(application))
    remove_files(application)
    assert not files(application)


def test_a_writer_that_dies_inside(operator: Make, store: MasterStore, application: str) -> None:
    op, left = operator(store, application), keys(*range(ROWS))
    joined(op, left)
    child = os.fork()
    if child == 0:  # the child is killed while it holds the lock and the dirty mark
        with run_task(op, left.schema) as task:
            assert task.cache is not None
            with task.cache.writing():
                task.cache.header[task.cache._kernels.LIVE] += 7
                os.kill(os.getpid(), signal.SIGKILL)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    result, stats = joined(op, left)
    assert_same_rows(result, model_join(left, content(store), "id"))
    assert stats.hits == 0  # it starts afresh
    result, stats = joined(op, left)
    assert_same_rows(result, model_join(left, content(store), "id"))
    assert stats.hits == ROWS


def test_a_writer_that_dies_while_others_run(operator: Make, store: MasterStore, application: str) -> None:
    """The mark appears under a task that has begun: it must neither use what is there nor fail."""
    op, left = operator(store, application), keys(*range(ROWS))
    joined(op, left)
    with run_task(op, left.schema) as task:
        assert task.cache is not None
        task.cache.header[task.cache._kernels.DIRTY] = 1
        result = table_of(task.join.join(left.to_batches()), task.join.plan.output)
        stats = task.finish()
    assert_same_rows(result, model_join(left, content(store), "id"))
    assert stats.hits == 0
    assert joined(op, left)[1].hits == ROWS


def test_an_exception_while_writing(operator: Make, store: MasterStore, application: str) -> None:
    op, left = operator(store, application), keys(*range(ROWS))
    with run_task(op, left.schema) as task:
        assert task.cache is not None
        with pytest.raises(ZeroDivisionError), task.cache.writing():
            raise ZeroDivisionError
    assert_same_rows(joined(op, left)[0], model_join(left, content(store), "id"))


def test_two_hundred_mutations(operator: Make, store: MasterStore, application: str) -> None:
    """Random bytes of the cache file changed, or the file cut: the right rows, whatever it holds."""
    op, left = operator(store, application, memory=120_000), keys(*range(ROWS + 20))
    expected = model_join(left, content(store), "id")
    rng = random.Random(11)
    joined(op, left)
    joined(op, left)
    path = cache_file(application)
    for _ in range(200):
        size = path.stat().st_size
        with path.open("r+b") as file:
            if rng.random() < 0.05:
                file.truncate(rng.randrange(size))
            else:
                file.seek(rng.choice([rng.randrange(256), rng.randrange(size)]))
                file.write(rng.randbytes(rng.choice([1, 1, 8, 64])))
                file.truncate(size)
        assert_same_rows(joined(op, left, damaged=True)[0], expected)


@pytest.fixture
def private(application: str) -> Iterator[Area]:
    with area(application, 0, "test") as found:
        yield found


@pytest.mark.parametrize("tasks", [1, 2])
def test_places_bound_the_tasks_at_once(private: Area, tasks: int) -> None:
    inside, most = [0], [0]
    lock = threading.Lock()
    together = threading.Barrier(tasks)  # as many as there are places meet inside

    def work(attempt: str) -> None:
        with place(private, tasks, attempt):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            together.wait(PATIENCE)
            time.sleep(0.02)  # for one more, who must not come
            with lock:
                inside[0] -= 1

    threads = [threading.Thread(target=work, args=(attempt,)) for attempt in ("", "", "", "7", "8", "9")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] == tasks


def test_no_place_in_time(private: Area, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "_PATIENCE_SECONDS", 0.1)
    with place(private, 1, ""), pytest.raises(SemistreamError, match="tasks_per_host=N"), place(private, 1, ""):
        pass


def test_a_task_has_one_place_for_all_that_runs_in_it(private: Area, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "_PATIENCE_SECONDS", 0.1)
    first = place(private, 2, "7")
    assert first.__enter__() == 1
    with place(private, 2, "7") as again:
        assert again == 1
        first.__exit__(None, None, None)  # the others of the task still have it
        with place(private, 2, "8") as other, place(private, 4, "9") as wider:
            assert (other, wider) == (0, 3)
            with pytest.raises(SemistreamError), place(private, 2, "9"):
                pass
        with place(private, 1, "9") as lower, place(private, 4, "9") as same:
            assert (lower, same) == (0, 0)


def test_no_circular_wait(private: Area) -> None:
    """Tasks come to enrichments for one, two and three tasks in any order and keep what they have: all get through."""
    rng = random.Random(5)
    done = []

    def work(attempt: str, wanted: list[int]) -> None:
        with ExitStack() as stack:
            for count in wanted:
                stack.enter_context(place(private, count, attempt))
                time.sleep(0.001)
        done.append(attempt)

    threads = [
        threading.Thread(target=work, args=(str(number), [rng.randint(1, 3) for _ in range(5)]), daemon=True)
        for number in range(60)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(done) == len(threads)


def test_links_are_refused(operator: Make, store: MasterStore, application: str, tmp_path: Path) -> None:
    op = operator(store, application)
    joined(op, keys(1))
    path = cache_file(application)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path.unlink()
    path.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        joined(op, keys(1))
    assert victim.read_text() == "precious"


def test_the_directory_stays_the_same_when_the_cache_fills_it(
    operator: Make, store: MasterStore, application: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container has 64 MB of shared memory: the first task's cache must not drive the second to another place."""
    room = namedtuple("room", "f_bavail f_frsize")  # noqa: PYI024
    monkeypatch.setattr(os, "statvfs", lambda _: room(64 << 20, 1))
    op = operator(store, application, memory=40 << 20)
    joined(op, keys(*range(ROWS)))
    taken = cache_file(application).stat().st_size
    monkeypatch.setattr(os, "statvfs", lambda _: room((64 << 20) - taken, 1))
    assert joined(op, keys(*range(ROWS)))[1].hits == ROWS


@pytest.mark.parametrize("algorithm", ["sweep", "whole", "inl"])
def test_peak_within_the_budget(operator: Make, store: MasterStore, application: str, algorithm: str) -> None:
    op = operator(store, application, algorithm=algorithm, memory=300_000)
    _, stats = joined(op, keys(*(list(range(ROWS)) * 20)))
    assert 0 < stats.peak_bytes <= op.memory_bytes


def test_one_cache_after_a_change_of_version(operator: Make, store: MasterStore, application: str) -> None:
    """A version whose keys are no longer unique has another kind of cache; both together stay within the budget."""
    op, left = operator(store, application), keys(*range(ROWS))
    joined(op, left)
    fresh = pa.concat_tables([content(store).slice(0, 2)] * 2)
    newer = store.upsert(fresh)
    op = operator(newer, application)
    assert_same_rows(joined(op, left)[0], model_join(left, content(newer), "id"))
    assert sum(path.stat().st_size for path in files(application)) <= op.memory_bytes


def test_only_changed_keys_leave(operator: Make, store: MasterStore, application: str) -> None:
    left = keys(*range(ROWS))
    joined(operator(store, application), left)
    newer = store.upsert(content(store).slice(0, 5))
    result, stats = joined(operator(newer, application), left)
    assert_same_rows(result, model_join(left, content(newer), "id"))
    assert stats.hits == ROWS - 5


def test_two_versions_at_once(operator: Make, store: MasterStore, application: str) -> None:
    """Two queries of one application read different versions: each gets its own rows, none disturbs the other."""
    left = keys(*range(ROWS))
    old = operator(store, application)
    joined(old, left)
    changed = content(store).set_column(1, "price", pa.array([-1.0] * ROWS)).slice(0, 50)
    newer = store.upsert(changed)
    new = operator(newer, application)
    with run_task(old, left.schema) as task:
        pieces = task.join.join(left.to_batches(max_chunksize=50))
        first = next(pieces)
        assert_same_rows(joined(new, left)[0], model_join(left, content(newer), "id"))
        result = table_of([first, *pieces], task.join.plan.output)
    assert_same_rows(result, model_join(left, content(store), "id"))
    assert_same_rows(joined(old, left)[0], model_join(left, content(store), "id"))
    assert_same_rows(joined(new, left)[0], model_join(left, content(newer), "id"))


@pytest.mark.parametrize("window", [0, 10_000, 300_000, 50_000_000])
def test_what_is_lent_to_answers_leaves_room_for_long_rows(window: int) -> None:
    division = Division(index=0, buffer=0, plan=0, output=0, cache=0, window=window, lanes=1, pieces=1)
    left, room = lend(division)
    assert left.window + room == window
    assert left.window >= min(window, 256 << 10)


def test_the_least_memory_that_is_advised_is_enough_by_keys(
    operator: Make, store: MasterStore, application: str
) -> None:
    with pytest.raises(MemoryBudgetError, match="memory=1,000 bytes is too small: sweep needs") as refused:
        operator(store, application, memory=1000)
    op = operator(store, application, memory=advised_bytes(refused.value))
    some = keys(1, 2)
    with run_task(op, some.schema, "inner") as task:
        joined = list(task.join.join(some.to_batches()))
    assert sum(batch.num_rows for batch in joined) == 2


@pytest.mark.parametrize("how", [None, "left"])
@pytest.mark.parametrize("algorithm", ["sweep", "sscj", "mesh", "moij"])
def test_the_memory_that_is_advised_for_a_long_row_has_room_for_it(
    operator: Make, store: MasterStore, application: str, algorithm: str, how: How | None
) -> None:
    """What is advised is the `memory` of all tasks, not the part of one."""
    given, left = 1_000_000, pa.table({"id": [1, 2], "n": ["x" * 900_000, ""]})
    op = operator(store, application, memory=given, algorithm=algorithm)
    says = f"memory={given:,} bytes"
    with pytest.raises(MemoryBudgetError, match=says) as refused, run_task(op, left.schema, how) as task:
        list(task.join.join(left.to_batches()))
    op = operator(store, application, memory=advised_bytes(refused.value), algorithm=algorithm)
    with run_task(op, left.schema, how) as task:
        assert sum(batch.num_rows for batch in task.join.join(left.to_batches())) == 2


def test_a_version_that_outgrows_the_memory_says_what_to_give(operator: Make, tmp_path: Path, application: str) -> None:
    """The driver has seen another master than the tasks read."""
    small, large = build(tmp_path / "s", master_table(10)), build(tmp_path / "large", master_table(500_000))
    with pytest.raises(MemoryBudgetError, match="memory=1,000 bytes is too small: sweep needs") as refused:
        operator(small, application, memory=1000)
    op = operator(small, application, memory=advised_bytes(refused.value))
    op = replace(op, store=str(large.path), planned=large.manifest.identity)
    with (
        pytest.raises(MemoryBudgetError, match=f"memory={op.memory_bytes:,} bytes") as refused,
        run_task(op, keys(1).schema),
    ):
        pass
    op = replace(op, memory_bytes=advised_bytes(refused.value))
    with run_task(op, keys(1).schema) as task:
        assert sum(batch.num_rows for batch in task.join.join(keys(1, 2).to_batches())) == 2
