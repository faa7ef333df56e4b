"""The sampler sees what a process takes beyond its baseline, and finds Spark's Python workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from semistream_lab import memory
from semistream_lab.memory import MemorySampler, Usage, python_workers

MB = 1 << 20


def test_growth_of_a_process() -> None:
    # A small one of our own: what others map or unmap moves the share of this one.
    code = f"held = b'x' * (32 * {MB}); print(); input(); more = b'x' * (64 * {MB}); print(); input()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdout.readline()
        with MemorySampler(process.pid) as sampler:
            sampler.mark_idle()
            process.stdin.write(b"\n")
            process.stdin.flush()
            process.stdout.readline()
            sampler.look()
    finally:
        process.kill()
        process.communicate()
    usage = sampler.usage
    assert usage.processes == 1
    assert usage.samples >= 2
    assert 60 * MB < usage.growth < 90 * MB
    assert usage.growth_at_once == usage.growth
    assert usage.idle > 32 * MB


def test_nothing_to_watch() -> None:
    # A process of our own: other tests leave Spark's workers below this one.
    alone = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with MemorySampler(alone.pid, workers=True) as sampler:
            sampler.mark_idle()
    finally:
        alone.kill()
        alone.wait()
    assert (sampler.usage.processes, sampler.usage.growth) == (0, 0)


def test_workers_of_a_daemon(tmp_path: Path) -> None:
    # What Spark starts: a daemon that is named so, and workers that it forks.
    code = (
        "import os, sys, time; pid = os.fork(); print(os.getpid(), pid, flush=True) if pid else None; time.sleep(600)"
    )
    daemon = subprocess.Popen([sys.executable, "-c", code, "pyspark.daemon"], stdout=subprocess.PIPE, text=True)
    assert daemon.stdout is not None
    _, worker = map(int, daemon.stdout.readline().split())
    try:
        assert python_workers(daemon.pid) == [worker]
        with MemorySampler(daemon.pid, workers=True) as sampler:
            sampler.mark_idle()
            sampler.look()
        assert sampler.usage.processes == 1
        assert sampler.usage.idle > 0
    finally:
        os.kill(worker, 9)
        daemon.kill()
        daemon.wait()
    daemon.stdout.close()


class SlowLooks:
    """A process at which a look takes so long, on a clock of its own, for a hundred seconds."""

    def __init__(self, seconds: float) -> None:
        self.now, self.samples, self.seconds = 0.0, 0, seconds

    def sample(self, now: float) -> None:
        assert now == self.now
        self.now += self.seconds
        self.samples += 1

    def wait(self, seconds: float) -> str | None:
        self.now += seconds
        return None if self.now < 100 else ""

    def usage(self) -> Usage:
        return Usage(samples=self.samples)


@pytest.mark.parametrize("seconds, looks", [(0.0001, 2000), (0.039, 50), (0.5, 4)])
def test_looking_takes_little_of_the_time(seconds: float, looks: int) -> None:
    slow = SlowLooks(seconds)
    usage = memory.watch(slow, slow.wait, lambda: slow.now)  # type: ignore[arg-type]
    assert usage.samples * seconds <= 0.02 * 100 + seconds
    assert usage.samples == pytest.approx(looks, rel=0.05)
