"""The sampler sees what a process takes beyond its baseline, and finds Spark's Python workers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from semistream.lab.memory import MemorySampler, python_workers

MB = 1 << 20


def test_growth_of_this_process() -> None:
    held = np.ones(32 * MB, np.uint8)
    with MemorySampler(os.getpid()) as sampler:
        sampler.mark_idle()
        more = np.ones(64 * MB, np.uint8)
        time.sleep(0.4)
        del more
    usage = sampler.usage
    assert usage.processes == 1
    assert usage.samples >= 3
    assert 60 * MB < usage.growth < 90 * MB
    assert usage.growth_at_once == usage.growth
    assert usage.idle > held.nbytes


def test_nothing_to_watch() -> None:
    # A process of our own: other tests leave Spark's workers below this one.
    alone = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        with MemorySampler(alone.pid, workers=True) as sampler:
            sampler.mark_idle()
    finally:
        alone.kill()
        alone.wait()
    assert (sampler.usage.processes, sampler.usage.growth) == (0, 0)


def test_workers_of_a_daemon(tmp_path: Path) -> None:
    # What Spark starts: a daemon that is named so, and workers that it forks.
    code = "import os, sys, time; pid = os.fork(); print(os.getpid(), pid, flush=True) if pid else None; time.sleep(60)"
    daemon = subprocess.Popen([sys.executable, "-c", code, "pyspark.daemon"], stdout=subprocess.PIPE, text=True)
    assert daemon.stdout is not None
    _, worker = map(int, daemon.stdout.readline().split())
    try:
        assert python_workers(daemon.pid) == [worker]
        with MemorySampler(daemon.pid, workers=True) as sampler:
            sampler.mark_idle()
            time.sleep(0.2)
        assert sampler.usage.processes == 1
        assert sampler.usage.idle > 0
    finally:
        os.kill(worker, 9)
        daemon.kill()
        daemon.wait()
    daemon.stdout.close()
