"""A small standalone cluster for tests: a master and two workers of one core each, two hosts as far as files go.

The second worker runs in a mount namespace of its own, where another directory lies over ``shared``.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.spark.streams import wait_until

ROOT = Path(__file__).parents[2]
_BIND = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
_PRELUDE = """
import os, signal, sys, time
from pathlib import Path
from pyspark.sql import SparkSession
from semistream import MasterStore
from semistream.spark import enrich
from semistream.spark.prepare import FrameFacts
from tests.spark.streams import *
spark = SparkSession.builder.master(sys.argv[1]).appName("cluster")
for setting in (
    "spark.ui.enabled=false", "spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1",
    "spark.executor.memory=512m", "spark.executor.cores=1", "spark.cores.max=2", "spark.sql.shuffle.partitions=2",
    "spark.scheduler.minRegisteredResourcesRatio=1.0", "spark.scheduler.maxRegisteredResourcesWaitingTime=120s",
    *sys.argv[3:],
):
    spark = spark.config(*setting.split("=", 1))
spark = spark.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
place = Path(sys.argv[2])
shared = place / "shared"
"""


@dataclass
class Run:
    """A driver and what it says."""

    process: subprocess.Popen[bytes]
    log: Path

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def line(self, start: str) -> str:
        """The rest of the first line that begins so, once it is there."""

        def found() -> str | None:
            lines = [line for line in self.said().splitlines() if line.startswith(start)]
            if not lines and self.process.poll() is not None:
                raise AssertionError(self.said()[-3000:])
            return lines[0].removeprefix(start).strip() + " " if lines else None

        return str(wait_until(found)).strip()


class Cluster:
    """Started with the context, ended with it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.shared, self.other = place / "shared", place / "other"
        for path in (self.shared, self.other, place / "work"):
            path.mkdir()
        self.url = ""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack as ended_on_failure:
            self._begin()
            self._stack = ended_on_failure.pop_all()
        return self

    def _begin(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"spark://127.0.0.1:{port}"
        where = ["--host", "127.0.0.1", "--webui-port", "0"]
        self._start("master", [], "master.Master", *where, "--port", str(port))
        wait_until(lambda: "New state: ALIVE" in self._said("master"))
        alone = ["unshare", *([] if os.geteuid() == 0 else ["-r"]), "-m", "sh", "-c", _BIND, "sh"]
        alone += [str(self.other), str(self.shared)]
        for name, prefix in (("worker-a", []), ("worker-b", alone)):
            size = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.place / "work")]
            self._start(name, prefix, "worker.Worker", *where, *size, self.url)
        wait_until(lambda: all("Successfully registered" in self._said(f"worker-{name}") for name in "ab"))

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def driver(self, script: str, *settings: str) -> Run:
        """Run a script with a session of this cluster; it ends with the cluster at the latest."""
        log = self.place / f"driver-{len(list(self.place.glob('driver-*')))}"
        command = [sys.executable, "-c", _PRELUDE + textwrap.dedent(script), self.url, str(self.place), *settings]
        return Run(self._run(command, log), log)

    def ended(self, script: str, *settings: str) -> str:
        """What a script says that runs to its end."""
        run = self.driver(script, *settings)
        run.process.wait(600)
        return run.said()

    def _said(self, name: str) -> str:
        return (self.place / name).read_text(errors="replace")

    def _start(self, name: str, prefix: list[str], kind: str, *arguments: str) -> None:
        import pyspark

        launcher = Path(pyspark.__file__).parent / "bin" / "spark-class"
        self._run([*prefix, str(launcher), f"org.apache.spark.deploy.{kind}", *arguments], self.place / name)

    def _run(self, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        more = {"PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        more |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false"}
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT, env={**os.environ, **more})
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process
