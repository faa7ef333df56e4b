"""A private PostgreSQL server for tests: its own cluster in a temporary directory, reached by a socket.

`make postgres` sees to it that the programs are there. PostgreSQL refuses to run as root; then it runs as nobody.
"""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.waiting import wait_until

PASSWORD = "canary-Päss word'%7"  # must never be seen; odd on purpose
USER = "semistream"


def programs() -> Path:
    """The directory with initdb and postgres: Debian's, or what the set-up unpacked, or that of the PATH."""
    places = glob.glob("/usr/lib/postgresql/*/bin")
    places += glob.glob(f"{Path(__file__).parents[2]}/.venv/postgres/usr/lib/postgresql/*/bin")
    places += [str(Path(found).resolve().parent)] if (found := shutil.which("initdb")) else []
    fit = [Path(place) for place in places if (Path(place) / "initdb").exists() and (Path(place) / "postgres").exists()]
    if not fit:
        raise RuntimeError(
            "there is no PostgreSQL server for the tests: run `make postgres`, which fetches Debian's, or install "
            "PostgreSQL 15 or newer so that initdb and postgres are on the PATH"
        )
    return max(fit, key=lambda place: int(place.parent.name) if place.parent.name.isdecimal() else 0)


class Server:
    """A server that can be stopped and started again, where it is."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.address = _address(place)
        self._programs, self._who, self._environment = _reachable(programs(), place)
        self._running: subprocess.Popen[bytes] | None = None

    def make(self) -> None:
        """A new cluster of databases."""
        (self.place / "password").write_text(PASSWORD + "\n", encoding="utf-8")
        if self._who:
            shutil.chown(self.place, user=self._who["user"], group=self._who["group"])
        made = subprocess.run(
            [
                *(self._programs / "initdb", "-D", self.place / "data", "-U", USER, "-A", "scram-sha-256"),
                *("-E", "UTF8", "--no-locale", "-N", "--pwfile", self.place / "password"),
            ],
            cwd=self.place,
            env=self._environment,
            capture_output=True,
            check=False,
            **self._who,
        )
        assert made.returncode == 0, made.stderr.decode()

    def start(self) -> None:
        """Returns when it answers."""
        log = self.place / "log"
        with log.open("ab") as file:
            self._running = subprocess.Popen(
                [self._programs / "postgres", "-D", self.place / "data", "-F", "-k", self.place, "-h", ""],
                cwd=self.place,
                env=self._environment,
                stdout=file,
                stderr=file,
                **self._who,
            )
        _wait(self.address, self._running, log)

    def stop(self) -> None:
        """At once, as in a crash: what is under way is rolled back at the next start."""
        if self._running is None:
            return
        self._running.send_signal(signal.SIGQUIT)
        try:
            self._running.wait(10)
        except subprocess.TimeoutExpired:
            self._running.kill()
            self._running.wait()
        self._running = None


@contextmanager
def serving() -> Iterator[Server]:
    """A server of our own, running."""
    place = Path(tempfile.mkdtemp(prefix="semistream-pg-", dir="/tmp"))  # short: a socket's path has 107 bytes at most
    server: Server | None = None
    try:
        server = Server(place)
        server.make()
        server.start()
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def running() -> Iterator[str]:
    """A server; gives its address with the password."""
    with serving() as server:
        yield server.address


def _reachable(found: Path, place: Path) -> tuple[Path, dict[str, Any], dict[str, str]]:
    """The programs where the server's user can run them, that user, and its environment."""
    unpacked = found.parents[4] if not found.is_relative_to("/usr") and found.parts[-5] == "usr" else None
    who: dict[str, Any] = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        who = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        if unpacked is not None:  # perhaps under a home that only root may enter
            found = place / "programs" / found.relative_to(unpacked)
            shutil.copytree(unpacked, place / "programs", symlinks=True)
            unpacked = place / "programs"
    environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}
    if unpacked is not None:
        libraries = {str(path.parent) for top in ("lib", "usr/lib") for path in (unpacked / top).rglob("lib*.so*")}
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(sorted(libraries))
    return found, who, environment


def _address(place: Path) -> str:
    from psycopg.conninfo import make_conninfo

    return make_conninfo(host=str(place), user=USER, password=PASSWORD, dbname="postgres")


def _wait(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    import psycopg

    def answers() -> bool:
        assert server.poll() is None, log.read_text(errors="replace")
        try:
            psycopg.connect(address).close()
        except psycopg.OperationalError:
            return False
        return True

    wait_until(answers)
