"""One cache for all Python workers of a host, and a fixed number of places for their tasks.

Spark moves partitions between worker processes, so a cache a worker would hold every hot key several times and be
lost with the worker. Here the cache is one file in shared memory that every worker maps: many probe it at once under
a shared lock, one at a time admits rows under an exclusive lock. It outlives any worker. A writer that dies in the
middle leaves the ``dirty`` mark behind, and the next one starts afresh.

Places (locked files) bound how many tasks hold a window and buffers at once, so the sum stays within the budget.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.errors import SemistreamError
from semistream.joins._cache import TupleCache
from semistream.rows import RowLayout

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - private files of mode 0600 inside
_STALE_SECONDS = 6 * 3600
_PATIENCE_SECONDS = 600
_SAMPLE = struct.Struct("=qq")
_DRIVER = "-driver"
_marks: list[int] = []  # open for as long as the process lives


def shared_directory(size: int, prefix: str) -> Path:
    """Shared memory when it has room for ``size`` bytes, else the temporary directory; once chosen, it stays."""
    for directory in (_SHARED_MEMORY, Path(tempfile.gettempdir())):
        if (directory / f"{prefix}-place0").exists():
            return directory
    try:
        found = os.statvfs(_SHARED_MEMORY)
        if found.f_bavail * found.f_frsize > size + (16 << 20) and os.access(_SHARED_MEMORY, os.W_OK):
            return _SHARED_MEMORY
    except OSError:
        pass
    return Path(tempfile.gettempdir())


def file_prefix(application: str) -> str:
    """How the files of one application on this host begin."""
    clean = "".join(c if c.isalnum() else "_" for c in application)
    return f"semistream-{os.getuid()}-{clean}"


def remove_files(application: str) -> None:
    """Remove the files of an application; processes that still map them are not disturbed."""
    _remove(file_prefix(application))


def _remove(prefix: str) -> None:
    for directory in {_SHARED_MEMORY, Path(tempfile.gettempdir())}:
        for path in directory.glob(f"{prefix}-*"):
            with contextlib.suppress(OSError):
                path.unlink()


def mark_driver(application: str) -> None:
    """Hold a lock for as long as this process lives: whoever finds it free knows that the application is gone."""
    with contextlib.suppress(OSError):
        fd = _open_private(shared_directory(0, "") / f"{file_prefix(application)}{_DRIVER}")
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _marks.append(fd)


def remove_stale() -> None:
    """Remove what applications that are gone left behind (a killed driver cannot clean up).

    On the driver's host its lock tells; on others only time does.
    """
    mine = f"semistream-{os.getuid()}-*"
    for directory in {_SHARED_MEMORY, Path(tempfile.gettempdir())}:
        for mark in directory.glob(f"{mine}{_DRIVER}"):
            with contextlib.suppress(OSError):
                if _is_unlocked(mark):
                    _remove(mark.name.removesuffix(_DRIVER))
    for path in _SHARED_MEMORY.glob(mine):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_SECONDS and _is_unlocked(path):
                path.unlink()


def _is_unlocked(path: Path) -> bool:
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


def _open_private(path: Path) -> int:
    """Open or create a file that only this user may touch; links and foreign files are refused."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if os.fstat(fd).st_uid != os.getuid():
        os.close(fd)
        raise SemistreamError(f"{path} belongs to another user; remove it or set another temporary directory")
    return fd


@contextmanager
def place(directory: Path, prefix: str, count: int) -> Iterator[int]:
    """Hold one of ``count`` places while the body runs; waits for one if all are taken."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        for number in range(count):
            fd = _open_private(directory / f"{prefix}-place{number}")
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                continue
            try:
                yield number
            finally:
                os.close(fd)  # also releases the lock
            return
        if time.monotonic() > deadline:
            raise SemistreamError(
                f"no place for this task within {_PATIENCE_SECONDS} s: {count} tasks share the memory of this join; "
                "give enrich(..., tasks_per_host=N) the number of tasks that really run at once on a host"
            )
        time.sleep(0.01)


def judge_together(path: Path, rows: int, matched: int, enough: int, wanted: float) -> tuple[int, int]:
    """Add a small task to the running sample of small tasks; returns the sample once it is large enough, else (0, 0).

    A sample that falls short of the ``wanted`` match rate is kept: the task's retry must find it again.
    """
    fd = _open_private(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        before = os.pread(fd, _SAMPLE.size, 0)
        all_rows, all_matched = _SAMPLE.unpack(before) if len(before) == _SAMPLE.size else (0, 0)
        all_rows, all_matched = all_rows + rows, all_matched + matched
        if all_rows < enough:
            os.pwrite(fd, _SAMPLE.pack(all_rows, all_matched), 0)
            return 0, 0
        if all_matched / all_rows >= wanted:
            os.ftruncate(fd, 0)
        return all_rows, all_matched
    finally:
        os.close(fd)


def shared_table(directory: Path, prefix: str, version: int, load: Callable[[], pa.Table]) -> pa.Table:
    """A table that all workers map; the first one loads it, and those of other versions go."""
    path = directory / f"{prefix}-table-{version:06d}"
    fd = _open_private(directory / f"{prefix}-table")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        if not path.exists():
            draft = _open_private(directory / f"{prefix}-draft")
            os.ftruncate(draft, 0)
            table = load()
            with os.fdopen(draft, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
            del table
            for other in directory.glob(f"{prefix}-table-*"):  # tasks that still map one are not disturbed
                other.unlink()
            (directory / f"{prefix}-draft").rename(path)
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    finally:
        os.close(fd)


class SharedCache(TupleCache):
    """A tuple cache in a file that several processes map, at one version of the master."""

    def __init__(self, path: Path, size: int, layout: RowLayout, cell_bytes: int, *, simple: bool) -> None:
        self.path = path
        self.version = 0
        self._fd = _open_private(path)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            fresh = os.fstat(self._fd).st_size != size
            if fresh:
                os.ftruncate(self._fd, 0)
                # Reserved now: a write to shared memory that is full later would kill the process.
                os.posix_fallocate(self._fd, 0, size)
            shape = {"size": size, "cell_bytes": cell_bytes, "simple": simple}
            super().__init__(mmap.mmap(self._fd, size), layout, shape)
            if fresh or not self.sound:
                self.reset()
            os.utime(self._fd)
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def serves(self, size: int, cell_bytes: int, *, simple: bool) -> bool:
        """Is this still the file of its name, and of this shape?"""
        try:
            there, mine = self.path.stat(), os.fstat(self._fd)
        except OSError:
            return False
        same = (there.st_ino, there.st_dev, there.st_size) == (mine.st_ino, mine.st_dev, size)
        return same and self.shape == {"size": size, "cell_bytes": cell_bytes, "simple": simple}

    def advance(self, version: int, changed_since: Any) -> None:
        """Bring the cache to a task's version: drop the keys that changed, or everything when that is not known."""
        self.version = version
        k, h = self._kernels, self.header
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            if h[k.DIRTY] or not self.sound:
                self.reset()
            if h[k.VERSION] in (0, self.version):
                h[k.VERSION] = self.version
            elif h[k.VERSION] < self.version:
                changed = changed_since(int(h[k.VERSION]))
                h[k.DIRTY] = 1
                if changed is None:
                    self.reset()
                else:
                    self.discard(changed)
                h[k.VERSION] = self.version
                h[k.DIRTY] = 0
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    @property
    def _usable(self) -> bool:
        k, h = self._kernels, self.header
        return bool(h[k.VERSION] == self.version and not h[k.DIRTY]) and self.sound

    @contextmanager
    def reading(self) -> Iterator[bool]:
        """See `TupleCache.reading`: False while the cache is at another version, or damaged."""
        fcntl.flock(self._fd, fcntl.LOCK_SH)
        try:
            yield self._usable
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    @contextmanager
    def writing(self) -> Iterator[bool]:
        """See `TupleCache.writing`; the dirty mark stays when the process dies in here."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            k, h = self._kernels, self.header
            if not self.sound or (h[k.DIRTY] and h[k.VERSION] == self.version):
                self.reset()
                h[k.VERSION] = self.version
            if not self._usable:
                yield False
                return
            h[k.DIRTY] = 1
            yield True
            h[k.DIRTY] = 0
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give the descriptor back; the mapping goes with the object."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
