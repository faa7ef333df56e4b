"""The cache that workers share, at versions of a master that leave it other sizes; and shared memory that is full."""

from __future__ import annotations

import errno
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pytest

from semistream import MasterStore
from semistream.errors import SharedMemoryError
from semistream.spark.area import area, directories, remove_files
from semistream.spark.operator import Operator, Task, run_task
from semistream.spark.prepare import FrameFacts, prepare
from semistream.spark.shared import shared_table
from semistream.spark.spec import EnrichSpec

ROWS = 60_000
STREAM = pa.schema([("id", pa.int64())])


def master(ids: np.typing.NDArray[np.int64], factor: float) -> pa.Table:
    return pa.table({"id": ids, "p": ids * factor, "t": ["x" * 80] * len(ids)})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version 2 has an index in memory that is larger, and so a smaller cache."""
    path = tmp_path_factory.mktemp("sizes") / "m"
    MasterStore.build(master(np.arange(ROWS), 0.5), path, key="id").upsert(master(np.arange(0, ROWS, 2), 0.25))
    return path


@pytest.fixture
def application() -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex[:8]}"
    yield name
    remove_files(name)


def operator(store: Path, application: str, version: int) -> Operator:
    spec = EnrichSpec(
        on="id", columns=["p"], transport="rows", memory="2MB", algorithm="sweep", master_version=version,
        tasks_per_host=2,
    )  # fmt: skip
    return prepare(FrameFacts(None, STREAM, {}, True, 2, application), store, spec).operator  # type: ignore[arg-type]


def join(task: Task, rounds: int = 3) -> None:
    """Join more keys than the cache holds, and check the rows of this version."""
    newer = task.store.version == 2
    for _ in range(rounds):
        batches = (pa.record_batch([pa.array(part)], schema=STREAM) for part in np.array_split(np.arange(ROWS), 6))
        for made in task.join.join(batches):
            ids, found = made.column("id").to_numpy(), made.column("p").to_numpy()
            assert (found == np.where(newer & (ids % 2 == 0), ids * 0.25, ids * 0.5)).all()


def cache_files(application: str) -> list[Path]:
    return [path for one in directories(application) for path in one.glob("*-cache")]


class Child:
    """A task in a process of its own, which stops in the middle until it may go on; it is killed if nobody says so."""

    def __init__(self, work: Callable[[Callable[[], None]], None]) -> None:
        (self._told, told), (wait, self._go) = os.pipe(), os.pipe()
        self._status: int | None = None
        self._pid = os.fork()
        if self._pid == 0:
            status = 1

            def pause() -> None:
                os.write(told, b".")
                os.read(wait, 1)

            try:
                work(pause)
                status = 0
            finally:
                os._exit(status)
        os.close(told)
        os.close(wait)

    def __enter__(self) -> Self:
        assert os.read(self._told, 1) == b"."  # it is in the middle
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._told)
        os.close(self._go)

    def end(self) -> int:
        """How it ended: 0, its status or, below 0, the signal that killed it."""
        os.write(self._go, b".")
        self._status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return self._status


def interrupted(op: Operator) -> Callable[[Callable[[], None]], None]:
    def work(pause: Callable[[], None]) -> None:
        with run_task(op, STREAM) as task:
            assert task.cache is not None
            join(task)
            pause()
            join(task)
            task.finish()

    return work


def test_a_task_whose_cache_is_made_anew_in_another_size_goes_on(store: Path, application: str) -> None:
    old, new = operator(store, application, 1), operator(store, application, 2)
    assert old.identity == new.identity
    with Child(interrupted(old)) as child:
        [before] = cache_files(application)
        size = before.stat().st_size
        with run_task(new, STREAM) as task:
            [after] = cache_files(application)
            assert after.stat().st_size != size
            join(task)
            assert child.end() == 0
            assert task.cache is not None
            assert task.cache.rows > 0
            task.join.check()


def test_what_is_given_up_takes_no_memory(store: Path, application: str) -> None:
    with Child(interrupted(operator(store, application, 1))) as child:
        [path] = cache_files(application)
        with path.open("rb") as held:  # as a mapping does
            assert os.fstat(held.fileno()).st_blocks * 512 > 1 << 19
            with run_task(operator(store, application, 2), STREAM):
                assert os.fstat(held.fileno()).st_blocks * 512 <= 1 << 16
        assert child.end() == 0


def test_an_older_version_leaves_the_newer_one_its_cache(store: Path, application: str) -> None:
    old, new = operator(store, application, 1), operator(store, application, 2)
    with run_task(new, STREAM) as task:
        join(task)
    [path] = cache_files(application)
    before = path.stat()
    with run_task(old, STREAM) as task:
        assert task.cache is None
        join(task)
        stats = task.finish()
        assert stats.hits == 0
        assert stats.peak_bytes + before.st_size <= old.memory_bytes
    assert os.path.samestat(before, path.stat())
    with run_task(new, STREAM) as task:
        assert task.cache is not None
        assert task.cache.rows > 0
        join(task, 1)


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_shared_memory_that_is_full(store: Path, application: str, monkeypatch: pytest.MonkeyPatch) -> None:
    new = operator(store, application, 2)
    with Child(interrupted(operator(store, application, 1))) as child:
        opened = len(os.listdir("/proc/self/fd"))
        for _ in range(2):
            with monkeypatch.context() as patch:
                patch.setattr(os, "posix_fallocate", full)
                with (
                    pytest.raises(SharedMemoryError, match=r"[\d,]+ bytes .*shm.*No space left.*memory="),
                    run_task(new, STREAM),
                ):
                    pass
            assert not cache_files(application)
        assert len(os.listdir("/proc/self/fd")) <= opened + 2
        assert child.end() == 0
    with run_task(new, STREAM) as task:
        join(task)


def test_a_table_that_does_not_fit(store: Path, application: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table, content = master(np.arange(1000), 1.0), MasterStore.open(store).manifest.identity
    with area(application, 0, "test") as here:
        with monkeypatch.context() as patch:
            patch.setattr(pa.ipc, "new_file", full)
            with pytest.raises(SharedMemoryError, match=r"[\d,]+ bytes .*shm.*No space left.*memory="):
                shared_table(here, "test", content, lambda: table)
        assert here.stat("test-draft") is None
        assert shared_table(here, "test", content, lambda: table).equals(table)
