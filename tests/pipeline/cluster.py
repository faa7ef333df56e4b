"""A Spark cluster of one worker, whose files may differ from the driver's: directories of it can be hidden."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyspark

from semistream.spark.session import ensure_java
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_URL = re.compile(r"spark://127\.0\.0\.1:\d+")


@contextmanager
def standalone(directory: Path, hidden: Sequence[Path] = ()) -> Iterator[str]:
    """A master and a worker that sees an empty directory in place of each of the ``hidden``; gives the address."""
    ensure_java()
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(directory / "work"),
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "PYSPARK_PYTHON": sys.executable,
    }
    directory.mkdir()
    running: list[subprocess.Popen[bytes]] = []

    def start(name: str, command: list[str]) -> Path:
        log = directory / f"{name}.log"
        with log.open("wb") as file:
            running.append(_started(command, environment, file))
        return log

    try:
        master = start("master", [str(_CLASS), "org.apache.spark.deploy.master.Master", *_PLACE])
        url = _said(master, _URL, running[-1])
        work = [str(_CLASS), "org.apache.spark.deploy.worker.Worker", *_PLACE, "--cores", "2", "--memory", "1g", url]
        mounts = "".join(f"mount -t tmpfs none '{path}' && " for path in hidden)
        spaces = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
        worker = start("worker", [*spaces, "sh", "-c", f'{mounts}exec "$@"', "sh", *work])
        _said(worker, re.compile("Successfully registered with master"), running[-1])
        yield url
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


_PLACE = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]


def _started(command: list[str], environment: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, cwd="/", env=environment, stdout=log, stderr=subprocess.STDOUT)


def _said(log: Path, wanted: re.Pattern[str], process: subprocess.Popen[bytes]) -> str:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        text = log.read_text(errors="replace")
        if found := wanted.search(text):
            return found.group()
        assert process.poll() is None, text
        time.sleep(0.1)
    raise AssertionError(log.read_text(errors="replace"))
