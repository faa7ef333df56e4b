"""What all Python workers of a host share: one cache, tables that are loaded once, and places for tasks.

Spark moves partitions between workers, so a cache per worker would hold every hot key several times. Here it is a file
in shared memory: many probe it under a shared lock, one admits rows under an exclusive lock. A writer that dies leaves
the ``dirty`` mark behind, and the next one starts afresh. Content is known by `StoreVersion`, not by path and number.

Places bound how many tasks of a host hold a window and buffers at once. An application has one row of them, numbered
from 0; a task of an enrichment for N tasks needs one below N. It has that place for all enrichments that run in it:
they hand rows to each other, so a task that waited for a second one could wait for itself. Waits are never circular: a
task waits without a place, or for one below all that it has, so the one with the lowest waits for none of the others.
"""

import fcntl
import hashlib
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

import numpy as np
import pyarrow as pa

from semistream import kernels
from semistream.errors import SemistreamError, SharedMemoryError, StoreError
from semistream.joins.sweep.cache import MAGIC, TupleCache
from semistream.rows import RowLayout
from semistream.spark.area import Area
from semistream.stores import MasterStore
from semistream.stores.paged.manifest import Manifest, StoreVersion

PLACES = "places"  # the file that is locked to take one
_PATIENCE_SECONDS = 600
_INTERVAL_SECONDS = 0.01
_SAMPLE = struct.Struct("=qq")


def judge_together(area: Area, name: str, rows: int, matched: int, enough: int, wanted: float) -> tuple[int, int]:
    """Add a small task to the sample of small tasks; returns the sample once it is large enough, else (0, 0)."""
    with area.locked(name) as fd:
        before = os.pread(fd, _SAMPLE.size, 0)
        all_rows, all_matched = _SAMPLE.unpack(before) if len(before) == _SAMPLE.size else (0, 0)
        all_rows, all_matched = all_rows + rows, all_matched + matched
        if all_rows < enough:
            os.pwrite(fd, _SAMPLE.pack(all_rows, all_matched), 0)
            return 0, 0
        if all_matched / all_rows >= wanted:  # else the task's retry must find it again
            os.ftruncate(fd, 0)
        return all_rows, all_matched


def shared_table(area: Area, prefix: str, content: StoreVersion, load: Callable[[], pa.Table]) -> pa.Table:
    """A table that all workers map; the first one loads it, and those of other versions go."""
    name = f"{prefix}-table-{_mark(content) & (2**64 - 1):016x}"
    with area.locked(f"{prefix}-table"):
        if area.stat(name) is None:
            table, draft = load(), f"{prefix}-draft"
            with _room_for(area, draft, table.nbytes), os.fdopen(area.open(draft), "wb") as file:
                file.truncate()
                with pa.ipc.new_file(file, table.schema) as writer:
                    writer.write_table(table)
            del table
            for other in area.names(f"{prefix}-table-"):  # tasks that still map one are not disturbed
                area.unlink(other)
            area.rename(draft, name)
        with os.fdopen(area.open(name), "rb") as file:
            memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    return pa.ipc.open_file(pa.py_buffer(memory)).read_all()


@contextmanager
def _room_for(area: Area, name: str, size: int) -> Iterator[None]:
    """While a file gets its room; where there is none, the file goes and an error says what helps."""
    try:
        yield
    except OSError as error:
        area.unlink(name)
        raise SharedMemoryError(
            f"no {size:,} bytes for what the tasks of this host share in {area.path}: {error.strerror or error}; make "
            "that file system larger (a container's /dev/shm: --shm-size), or give the join less memory (memory=)"
        ) from error


@contextmanager
def place(area: Area, count: int, attempt: str) -> Iterator[int]:
    """Hold a place below ``count`` while the body runs, or wait for one; an ``attempt`` that has one gets it again."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (found := _take(area, count, attempt)) is None:
        if time.monotonic() > deadline:
            raise SemistreamError(
                f"no place for this task within {_PATIENCE_SECONDS} s: {count} tasks share the memory of this join; "
                "give enrich(..., tasks_per_host=N) the number of tasks that really run at once on a host"
            )
        time.sleep(_INTERVAL_SECONDS)
    number, fd = found
    try:
        yield number
    finally:
        os.close(fd)  # also releases the lock


def _take(area: Area, count: int, attempt: str) -> tuple[int, int] | None:
    """A place and the descriptor that holds it. Taken one task at a time, so that what is read of a place is true."""
    with area.locked(PLACES):
        found = None
        for number in range(count):
            fd, own = area.open(f"place{number}"), False
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                own = bool(attempt) and os.pread(fd, 64, 0).decode(errors="replace") == attempt
                if not own:
                    os.close(fd)
                    continue
            if found is not None:
                os.close(found[1])
            found = number, fd  # the highest free one: the lower ones also serve enrichments for fewer tasks
            if own:
                break
        if found is not None:
            _, fd = found
            os.ftruncate(fd, 0)
            os.pwrite(fd, attempt.encode(), 0)
            fcntl.flock(fd, fcntl.LOCK_SH)  # all who have it hold it like this
        return found


def _mark(*what: object) -> int:
    """A number for some content, which other content does not have."""
    return int.from_bytes(hashlib.sha256(repr(what).encode()).digest()[:8], "little", signed=True)


class SharedCache(TupleCache):
    """A tuple cache in a file that several processes map, at one version of the master. A file never changes its size:
    one of another size takes the name, and those who still map the former one go without.
    """

    @classmethod
    def opened(
        cls, area: Area, name: str, layout: RowLayout, shape: dict[str, int], content: StoreVersion
    ) -> Self | None:
        """The cache of that name for a task's version; None while a newer version has one of another size."""
        k, size = kernels.cache, shape["size"]
        with area.locked(f"{name}-lock"):
            with area.locked(name) as fd:  # nobody reads or writes now, and afterwards they see that it has no name
                before = os.fstat(fd).st_size
                if before not in (0, size):
                    h = np.frombuffer(os.pread(fd, 8 * k.HEADER_FIELDS, 0).ljust(8 * k.HEADER_FIELDS, b"\0"), np.int64)
                    sound = h[k.MAGIC] == MAGIC and not h[k.DIRTY] and h[k.STORE] == _mark(content.store_id)
                    if sound and h[k.VERSION] > content.number:
                        return None
                    area.unlink(name)
                    # Its header stays: that is looked at without the lock. Not every file system can free the rest.
                    with suppress(OSError, ValueError), mmap.mmap(fd, before) as memory:
                        memory.madvise(mmap.MADV_REMOVE, mmap.PAGESIZE, before - mmap.PAGESIZE)
            with area.locked(name) as fd:
                if os.fstat(fd).st_size == 0:  # nobody maps it yet
                    with _room_for(area, name, size):
                        # Reserved now: a write to shared memory that is full later would kill the process.
                        os.posix_fallocate(fd, 0, size)
                return cls(name, os.dup(fd), layout, shape)

    def __init__(self, name: str, fd: int, layout: RowLayout, shape: dict[str, int]) -> None:
        self._name, self._fd = name, fd
        self._marks = 0, 0, 0  # of the running task's store and its content, and the version's number
        with self._locked(fcntl.LOCK_EX):
            super().__init__(mmap.mmap(fd, shape["size"]), layout, shape)
            if not self.sound:
                self.reset()

    @contextmanager
    def _locked(self, how: int) -> Iterator[bool]:
        """Is it still the file of its name? Another one is not used: its memory has been given back."""
        fcntl.flock(self._fd, how)
        try:
            yield os.fstat(self._fd).st_nlink > 0
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def serves(self, area: Area, shape: dict[str, int]) -> bool:
        """Is this still the file of its name, and of this shape?"""
        there = area.stat(self._name)
        same = there is not None and os.path.samestat(there, os.fstat(self._fd)) and there.st_size == shape["size"]
        return same and self.shape == shape

    def advance(self, store: MasterStore) -> None:
        """Bring the cache to a task's version: drop the changed keys, or all. An older one goes without."""
        content = store.manifest.identity
        self._marks = _mark(content.store_id), _mark(content), content.number
        k, h = self._kernels, self.header
        with self._locked(fcntl.LOCK_EX) as current:
            if not current:
                return
            if h[k.DIRTY] or not self.sound or h[k.STORE] != self._marks[0]:
                self.reset()
            elif h[k.CONTENT] == self._marks[1] or h[k.VERSION] > content.number:
                return
            else:
                before, known = int(h[k.VERSION]), False
                with suppress(StoreError):  # that version may be gone
                    known = _mark(Manifest.load(store.path, before).identity) == h[k.CONTENT]
                changed = store.changed_since(before) if known else None
                h[k.DIRTY] = 1
                if changed is None:
                    self.reset()
                else:
                    self.discard(changed)
            self._holds_content()

    def _holds_content(self) -> None:
        k, h = self._kernels, self.header
        h[k.STORE], h[k.CONTENT], h[k.VERSION], h[k.DIRTY] = *self._marks, 0

    @property
    def _usable(self) -> bool:
        k, h = self._kernels, self.header
        return bool(h[k.CONTENT] == self._marks[1] and not h[k.DIRTY]) and self.sound

    @contextmanager
    def reading(self) -> Iterator[bool]:
        """See `TupleCache.reading`: False while the cache is at another version, or damaged."""
        with self._locked(fcntl.LOCK_SH) as current:
            yield current and self._usable

    @contextmanager
    def writing(self) -> Iterator[bool]:
        """See `TupleCache.writing`; the dirty mark stays when the process dies in here."""
        with self._locked(fcntl.LOCK_EX) as current:
            k, h = self._kernels, self.header
            if current and (not self.sound or (h[k.DIRTY] and h[k.CONTENT] == self._marks[1])):
                self.reset()
                self._holds_content()
            if not current or not self._usable:
                yield False
                return
            h[k.DIRTY] = 1
            yield True
            h[k.DIRTY] = 0

    def close(self) -> None:
        """Give the descriptor back; the mapping goes with the object."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
