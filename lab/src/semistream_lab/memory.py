"""Memory as the kernel counts it: the proportional set size (PSS), sampled by a process of its own.

PSS divides a page among those who map it, so a cache shared by several workers counts once. The kernel walks all pages
of a process for it, and keeps the process from mapping others meanwhile: tens of milliseconds for a gigabyte. So a look
is followed by a pause of fifty times its length, and at least 50 ms: what is measured is slowed by at most 2 %. Who
knows when much is held asks for a `look`. Each process has an idle baseline (code loaded, no data); its growth is its
peak above that, and the growths are added up.

>>> with MemorySampler(os.getpid()) as sampler:
...     sampler.mark_idle()
>>> sampler.usage.processes
1
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

INTERVAL_SECONDS = 0.05
_BUSY = 0.02  # the share of time that may be spent on looking
_TREE_SECONDS = 0.3  # how often new workers are looked for
_PATIENCE_SECONDS = 600.0  # for the sampler's last words: the machine may be busy
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - looked at, not written to


@dataclass(frozen=True)
class Usage:
    """What the sampler saw, in bytes."""

    processes: int = 0
    samples: int = 0
    idle: int = 0
    peak: int = 0
    growth: int = 0
    growth_at_once: int = 0
    shared_memory_growth: int = 0


def pss_bytes(pid: int) -> int | None:
    """The proportional set size of a process, None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")), None)


def reset_peak_rss() -> int | None:
    """Let the kernel forget this process's peak; its resident size now. None where that cannot be done."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return None
    return _status("VmRSS")


def peak_rss() -> int | None:
    """The largest resident size of this process since `reset_peak_rss`, as the kernel saw it: none is missed."""
    return _status("VmHWM")


def available_bytes() -> int | None:
    """What new work could use without swapping, as the kernel guesses; None where it does not say."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("MemAvailable:")), None)


def _status(name: str) -> int | None:
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(f"{name}:")), None)


def python_workers(root: int) -> list[int]:
    """Spark's Python workers below a process: those that a pyspark daemon forked."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(text.rpartition(")")[2].split()[1])
    below = {root}
    size = 0
    while size != len(below):
        size = len(below)
        below |= {pid for pid, parent in parents.items() if parent in below}
    daemons = {pid for pid in below if _is_daemon(pid)}
    return sorted(pid for pid in daemons if parents.get(pid) in daemons)


def _is_daemon(pid: int) -> bool:
    try:
        return b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def give_back_memory() -> None:
    """Return what was freed to the system, so that the baseline holds nothing that could be used again unseen."""
    import pyarrow as pa

    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)


@dataclass
class _Watch:
    """The sampler's own state, in its process."""

    root: int
    workers: bool
    idle: dict[int, int] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)
    peak: dict[int, int] = field(default_factory=dict)
    growth_at_once: int = 0
    samples: int = 0
    shared_idle: int = 0
    shared_peak: int = 0
    _pids: list[int] = field(default_factory=list)
    _looked: float = 0.0

    def sample(self, now: float) -> dict[int, int]:
        """One look at every process."""
        if not self.workers:
            self._pids = [self.root]
        elif now - self._looked >= _TREE_SECONDS:
            self._pids, self._looked = python_workers(self.root), now
        seen = {pid: size for pid in self._pids if (size := pss_bytes(pid)) is not None}
        for pid, size in seen.items():
            self.first.setdefault(pid, size)
            self.peak[pid] = max(self.peak.get(pid, 0), size)
        self.growth_at_once = max(self.growth_at_once, sum(size - self._idle_of(pid) for pid, size in seen.items()))
        self.shared_peak = max(self.shared_peak, _shared_bytes())
        self.samples += 1
        return seen

    def mark_idle(self) -> None:
        """What is there now is the baseline."""
        self._looked = 0.0
        self.idle = self.sample(time.monotonic())
        self.peak, self.growth_at_once = dict(self.idle), 0
        self.shared_idle = self.shared_peak = _shared_bytes()

    def _idle_of(self, pid: int) -> int:
        if pid in self.idle or not self.idle:
            return self.idle.get(pid, self.first[pid])
        # A worker that started later did so to load the same code as its siblings.
        return sorted(self.idle.values())[len(self.idle) // 2]

    def usage(self) -> Usage:
        """The figures at the end."""
        return Usage(
            processes=len(self.peak),
            samples=self.samples,
            idle=sum(self._idle_of(pid) for pid in self.peak),
            peak=sum(self.peak.values()),
            growth=sum(max(0, size - self._idle_of(pid)) for pid, size in self.peak.items()),
            growth_at_once=self.growth_at_once,
            shared_memory_growth=self.shared_peak - self.shared_idle,
        )


def _shared_bytes() -> int:
    try:
        status = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return 0
    return (status.f_blocks - status.f_bfree) * status.f_frsize


class MemorySampler:
    """Watches a process, or the Python workers below it, until the `with` block ends; then `usage` is there."""

    def __init__(self, pid: int, *, workers: bool = False) -> None:
        self.usage = Usage()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "semistream_lab.memory", str(pid), str(int(workers))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._ask("")

    def __enter__(self) -> Self:
        return self

    def mark_idle(self) -> None:
        """What is in memory now is the baseline."""
        self._ask("idle\n")

    def look(self) -> None:
        """Look now, where much is held: the next look by itself may come too late."""
        self._ask("look\n")

    def _ask(self, line: str) -> None:
        """Say something and wait for the answer."""
        given, said = self._process.stdin, self._process.stdout
        assert given is not None
        assert said is not None
        given.write(line)
        given.flush()
        said.readline()

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        said, _ = self._process.communicate(timeout=_PATIENCE_SECONDS)
        if said:
            self.usage = Usage(**json.loads(said))


@dataclass
class MemoryCurve:
    """The memory of this process and of Spark's Python workers below it over time, until the `with` block ends.

    Sampled by a thread, and not often: a look at all workers takes up to a quarter of a second, and stops their page
    faults meanwhile. Once a second it made batches a fifth slower.
    """

    every_seconds: float = 10.0
    times: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(self.every_seconds):
            self.sizes.append(sum(pss_bytes(pid) or 0 for pid in (os.getpid(), *python_workers(os.getpid()))))
            self.times.append(time.time())


def watch(state: _Watch, wait: Callable[[float], str | None], clock: Callable[[], float] = time.monotonic) -> Usage:
    """Sample until the one who asks is gone; ``wait`` returns a line, "" at the end, None when the time is over."""
    due = clock()
    while (line := wait(max(0.0, due - clock()))) != "":
        began = clock()
        if line == "idle\n":
            state.mark_idle()
        else:
            state.sample(began)
        if line is not None:
            print("done", flush=True)
        ended = clock()
        due = max(began + INTERVAL_SECONDS, ended + (ended - began) / _BUSY)
    return state.usage()


def _line_within(seconds: float) -> str | None:
    readable, _, _ = select.select([sys.stdin], [], [], seconds)
    return sys.stdin.readline() if readable else None


if __name__ == "__main__":
    print("ready", flush=True)
    print(json.dumps(asdict(watch(_Watch(int(sys.argv[1]), sys.argv[2] == "1"), _line_within))))
