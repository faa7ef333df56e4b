"""A small process that removes an application's shared files once the application is gone from this host.

After `kill -9` the processes that use the files do nothing any more. The keeper, in no process group of theirs, waits
for the end of an executor's Python daemon (`semistream.spark.area`); the last keeper of a directory can lock its file
``alive`` alone, and removes it. Two processes watch: one may be killed too. They get only this source, and stay small.
"""

import fcntl
import os
import shutil
import time
from pathlib import Path

_INTERVAL_SECONDS = 1.0


def started(pid: int) -> str | None:
    """When a process started, in the kernel's ticks: with it a number means one process for ever. None: it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def keep(directory: str, alive: int, pid: int, start: str) -> None:
    """Wait for the end of a process, then remove the directory unless others hold ``alive``, as we do."""
    os.fork()
    while started(pid) == start and os.fstat(alive).st_nlink:
        time.sleep(_INTERVAL_SECONDS)
    remove_unused(directory, alive)


def remove_unused(directory: str, alive: int) -> bool:
    """Remove a directory if nobody else holds its file ``alive``, which is open; give our own hold up."""
    try:
        fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    if os.fstat(alive).st_nlink:  # else the directory of this name is a later one
        shutil.rmtree(directory, ignore_errors=True)
    return True
