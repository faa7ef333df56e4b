"""Places for tasks: how many tasks of a host hold a window and buffers at once, so that their sum stays in the budget.

All enrichments of an application share one row of places on a host, numbered from 0. A task that runs an enrichment
for N tasks at once needs a place below N. A task has its place for all enrichments that run in it: each one is in a
process of its own, and they hand rows to each other, so a task that held one place and waited for a second one could
wait for itself, or for a task that waits for it.

No circular wait is possible: a task waits only while it has no place, or for one below all those that it has (the
enrichment that it comes to allows fewer tasks than those before). Of the tasks that wait, the one with the lowest
place waits for none that another of them has.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from semistream.errors import SemistreamError
from semistream.spark.area import Area

PLACES = "places"  # the file that is locked to take one
_PATIENCE_SECONDS = 600
_INTERVAL_SECONDS = 0.01


def running_attempt() -> str:
    """Which attempt at which task runs here; empty outside of Spark."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return "" if context is None else str(context.taskAttemptId())


@contextmanager
def place(area: Area, count: int, attempt: str) -> Iterator[int]:
    """Hold a place below ``count`` while the body runs; waits for one if all are taken.

    The same attempt at a task gets the same place again, if it has one; with an empty ``attempt`` nobody does.
    """
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
        free = None
        for number in range(count):
            fd = area.open(f"place{number}")
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if attempt and os.pread(fd, 64, 0).decode(errors="replace") == attempt:
                    fcntl.flock(fd, fcntl.LOCK_SH)  # all who have it hold it like this
                    if free is not None:
                        os.close(free[1])
                    return number, fd
                os.close(fd)
                continue
            if free is not None:
                os.close(free[1])
            free = number, fd  # the highest one: the lower ones also serve enrichments for fewer tasks
        if free is not None:
            number, fd = free
            os.ftruncate(fd, 0)
            os.pwrite(fd, attempt.encode(), 0)
            fcntl.flock(fd, fcntl.LOCK_SH)
        return free
