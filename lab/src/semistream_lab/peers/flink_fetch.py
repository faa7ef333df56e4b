"""Fetches Flink and its JDBC connector, for the peer `flink`: `python -m semistream_lab.peers.flink_fetch`.

Flink comes from the package index that pip is set up for (`apache-flink-libraries`: the jars, without PyFlink and what
that needs), connector and driver by Maven. All of it goes to the user's cache, and nothing else is changed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from semistream_lab.data import default_directory
from semistream_lab.errors import BenchmarkError

VERSION = "2.0.0"
ARTIFACTS = (
    f"org.apache.flink:flink-sql-gateway:{VERSION}",
    f"org.apache.flink:flink-sql-gateway-api:{VERSION}",
    "org.apache.flink:flink-connector-jdbc-core:4.0.0-2.0",
    "org.apache.flink:flink-connector-jdbc-postgres:4.0.0-2.0",
    "org.postgresql:postgresql:42.7.4",
)
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
_FROM_FLINK = ("deps/lib/", "deps/opt/flink-sql-client", "deps/opt/flink-python")


def jars() -> Path:
    """Where they lie, or will lie."""
    return default_directory() / f"flink-{VERSION}"


def fetch() -> Path:
    """Fetch what is not there."""
    if jars().exists():
        return jars()
    if shutil.which("mvn") is None:
        raise BenchmarkError("Flink's JDBC connector is fetched by Maven, and there is no mvn on the PATH; install it")
    jars().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jars().parent, prefix=".draft-flink-") as place:
        draft = Path(place) / "jars"
        draft.mkdir()
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        _do([*pip, "--no-binary", ":all:", "--dest", place, f"apache-flink-libraries=={VERSION}"])
        (archive,) = Path(place).glob("apache*flink*libraries*.tar.gz")
        with tarfile.open(archive) as packed:
            for member in packed:
                inside = member.name.partition("/")[2]
                if inside.endswith(".jar") and inside.startswith(_FROM_FLINK):
                    member.name = Path(inside).name
                    packed.extract(member, draft, filter="data")
        for artifact in ARTIFACTS:
            _do(["mvn", "-q", "-B", _COPY, f"-Dartifact={artifact}", f"-DoutputDirectory={draft}"])
        draft.rename(jars())
    return jars()


def _do(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"{' '.join(command)} failed: {(done.stderr or done.stdout).strip()[-600:]}")


if __name__ == "__main__":
    print(fetch())
