"""The cache that workers share, without Spark: writers that die, damaged files, places for tasks, private files."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from semistream import MasterStore
from semistream.errors import SemistreamError
from semistream.spark import shared
from semistream.spark.operator import Operator, running
from semistream.spark.prepare import Stream, prepare
from semistream.spark.shared import place, remove_files
from tests.spark.streams import build, keys, master_table
from tests.spark.streams import shared_files as files
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
        prepared = prepare(Stream.of(df), store, on="id", transport="rows", **given).operator
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


def cache_file(application: str) -> Path:
    [found] = [path for path in files(application) if path.name.endswith("-cache")]
    return found


def content(store: MasterStore) -> pa.Table:
    return pa.Table.from_batches(store.scan(), store.schema)


def joined(op: Operator, left: pa.Table, *, damaged: bool = False) -> tuple[pa.Table, Any]:
    with running(op, left.schema) as task:
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
        with running(op, left.schema) as task:
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
    with running(op, left.schema) as task:
        assert task.cache is not None
        task.cache.header[task.cache._kernels.DIRTY] = 1
        result = table_of(task.join.join(left.to_batches()), task.join.plan.output)
        stats = task.finish()
    assert_same_rows(result, model_join(left, content(store), "id"))
    assert stats.hits == 0
    assert joined(op, left)[1].hits == ROWS


def test_an_exception_while_writing(operator: Make, store: MasterStore, application: str) -> None:
    op, left = operator(store, application), keys(*range(ROWS))
    with running(op, left.schema) as task:
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


@pytest.mark.parametrize("tasks", [1, 2])
def test_places_bound_the_tasks_at_once(tmp_path: Path, tasks: int) -> None:
    inside, most = [0], [0]
    lock = threading.Lock()
    together = threading.Barrier(tasks)  # as many as there are places meet inside

    def work() -> None:
        with place(tmp_path, "p", tasks):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            together.wait(PATIENCE)
            time.sleep(0.02)  # for one more, who must not come
            with lock:
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] == tasks


def test_no_place_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "_PATIENCE_SECONDS", 0.1)
    with place(tmp_path, "p", 1), pytest.raises(SemistreamError, match="tasks_per_host=N"), place(tmp_path, "p", 1):
        pass


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


@pytest.mark.parametrize("algorithm", ["sweep", "reference", "inl"])
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
    with running(old, left.schema) as task:
        pieces = task.join.join(left.to_batches(max_chunksize=50))
        first = next(pieces)
        assert_same_rows(joined(new, left)[0], model_join(left, content(newer), "id"))
        result = table_of([first, *pieces], task.join.plan.output)
    assert_same_rows(result, model_join(left, content(store), "id"))
    assert_same_rows(joined(old, left)[0], model_join(left, content(store), "id"))
    assert_same_rows(joined(new, left)[0], model_join(left, content(newer), "id"))


def test_what_a_killed_driver_leaves_goes_with_the_next(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shared, "_SHARED_MEMORY", tmp_path)
    script = (
        "import sys\nfrom pathlib import Path\nfrom semistream.spark import shared\n"
        "shared._SHARED_MEMORY = Path(sys.argv[1])\nshared.mark_driver('app-1')\n"
        "(Path(sys.argv[1]) / f\"{shared.file_prefix('app-1')}-abc-cache\").write_bytes(b'rows')\n"
        "print('ready', flush=True)\nsys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    driver = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"
        other = tmp_path / f"{shared.file_prefix('app-2')}-abc-cache"  # of an application whose driver is elsewhere
        other.touch()
        shared.remove_stale()
        assert len(list(tmp_path.iterdir())) == 3  # it lives
    finally:
        driver.kill()
        driver.communicate()
    shared.remove_stale()
    assert list(tmp_path.iterdir()) == [other]
