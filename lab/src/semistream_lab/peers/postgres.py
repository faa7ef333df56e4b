"""A PostgreSQL server of our own for a peer that asks one: in a temporary directory, on the loopback, with a password
that nobody knows. PostgreSQL refuses to run as root; then it runs as nobody.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semistream_lab.errors import BenchmarkError

USER = "semistream"
_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Server:
    """Where it is reached, and its process."""

    port: int
    password: str
    pid: int

    @property
    def address(self) -> str:
        """For psycopg."""
        return f"host=127.0.0.1 port={self.port} user={USER} password={self.password} dbname=postgres"


def programs() -> Path | None:
    """The directory with initdb and postgres: Debian's, what `make postgres` unpacked, or that of the PATH."""
    places = [*Path("/usr/lib/postgresql").glob("*/bin")]
    places += (Path(sys.prefix) / "postgres/usr/lib/postgresql").glob("*/bin")
    places += [Path(found).resolve().parent] if (found := shutil.which("initdb")) else []
    return next((one for one in places if (one / "initdb").exists() and (one / "postgres").exists()), None)


@contextmanager
def serving() -> Iterator[Server]:
    """A new server, until the block ends."""
    found = programs()
    if found is None:
        raise BenchmarkError("there is no PostgreSQL: install version 15 or newer, or run `make postgres`")
    place = Path(tempfile.mkdtemp(prefix="semistream-pg-"))
    password, running = secrets.token_hex(16), None
    try:
        found, who, environment = _reachable(found, place)
        (place / "password").write_text(password + "\n", encoding="ascii")
        if who:
            shutil.chown(place, user=who["user"], group=who["group"])
            shutil.chown(place / "password", user=who["user"], group=who["group"])
        common: dict[str, Any] = {"cwd": place, "env": environment, **who}
        make = f"{found}/initdb -D {place}/data -U {USER} -A scram-sha-256 -E UTF8 -N --no-locale"
        made = subprocess.run(
            [*make.split(), "--pwfile", str(place / "password")], capture_output=True, text=True, check=False, **common
        )
        if made.returncode:
            raise BenchmarkError(f"initdb failed: {made.stderr.strip()[-600:]}")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        start = f"{found}/postgres -D {place}/data -F -k {place} -h 127.0.0.1 -p {port}"
        with (place / "log").open("wb") as log:
            running = subprocess.Popen(start.split(), stdout=log, stderr=log, **common)
        server = Server(port, password, running.pid)
        _wait(server, running, place / "log")
        yield server
    finally:
        if running is not None:
            running.send_signal(signal.SIGQUIT)
            running.wait(30)
        shutil.rmtree(place, ignore_errors=True)


def _reachable(found: Path, place: Path) -> tuple[Path, dict[str, Any], dict[str, str]]:
    """The programs where the server's user can run them, that user, and its environment."""
    who: dict[str, Any] = {}
    unpacked = Path(sys.prefix) / "postgres" if found.is_relative_to(Path(sys.prefix) / "postgres") else None
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        who = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        if unpacked is not None:  # perhaps under a home that only root may enter
            shutil.copytree(unpacked, place / "programs", symlinks=True)
            found, unpacked = place / "programs" / found.relative_to(unpacked), place / "programs"
    environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}
    if unpacked is not None:
        libraries = {str(path.parent) for top in ("lib", "usr/lib") for path in (unpacked / top).rglob("lib*.so*")}
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(sorted(libraries))
    return found, who, environment


def _wait(server: Server, running: subprocess.Popen[Any], log: Path) -> None:
    import psycopg

    end = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < end:
        if running.poll() is not None:
            break
        try:
            psycopg.connect(server.address).close()
        except psycopg.OperationalError:
            time.sleep(0.1)
        else:
            return
    raise BenchmarkError(f"PostgreSQL did not start: {log.read_text(errors='replace')[-600:]}")
