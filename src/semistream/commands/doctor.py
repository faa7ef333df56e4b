"""`semistream doctor`: what semistream needs, and what this machine has."""

import mmap
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from typer import Exit, Option

from semistream import kernels
from semistream.budget import format_bytes
from semistream.commands.command_line import Commands, show_table
from semistream.errors import counted
from semistream.planner.machine import cpu_model, memory_bytes, mounted, read

app = Commands()

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, not written to
_LITTLE = 64 << 20
_PACKAGES = (
    ("pyarrow", "", ""),
    ("numpy", "", ""),
    ("numba", "", ""),
    ("pyspark", "spark", "for enrich and pipelines"),
    ("pandas", "spark", "for enrich and pipelines"),
    ("deltalake", "delta", "for Delta tables"),
)
_SPARK_SECONDS = 180
_SESSION = """
from semistream.spark.session import local_session
spark = local_session("doctor", "local[1]")
assert spark.range(10).mapInArrow(lambda batches: batches, "id long").count() == 10
print(spark.version)
spark.stop()
"""


class Check(NamedTuple):
    """One line: good, a note that may matter, or bad."""

    state: Literal["good", "note", "bad"]
    name: str
    said: str


def package_versions(names: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def java_version(home: Path) -> str:
    found = re.search(r'^JAVA_VERSION="(.+)"', read(home / "release"), re.MULTILINE)
    return found[1] if found else "unknown"


def _machine() -> Iterator[Check]:
    yield Check("good", "Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    cores, memory = counted(len(os.sched_getaffinity(0)), "core"), format_bytes(memory_bytes())
    yield Check("good", "machine", f"{cores}, {memory} of memory, {cpu_model()}")
    found = package_versions(name for name, _, _ in _PACKAGES)
    for name, role, what in _PACKAGES:
        if name in found:
            yield Check("good", name, found[name])
        elif role:
            yield Check("note", name, f"not installed; {what}: pip install 'semistream[{role}]'")
        else:
            yield Check("bad", name, "not installed; run: pip install semistream")


def _kernels() -> Check:
    try:
        place = kernels.hashing.checksum.stats.cache_path
    except Exception as error:  # noqa: BLE001 - whatever is wrong, it is to be shown, not raised
        return Check("bad", "kernels", f"cannot be compiled: {error}")
    lasting = "set NUMBA_CACHE_DIR to a directory that can be written and lasts"
    if place is None or not os.access(place, os.W_OK):
        return Check("note", "kernels", f"no place to keep compiled ones: each process compiles anew; {lasting}")
    kept = f"compiled ones are kept in {place}"
    if kernels.jit.temporary_place is not None:
        return Check("note", "kernels", f"neither the package nor the home can be written: {kept} for now; {lasting}")
    return Check("good", "kernels", kept)


def _java() -> Check:
    from semistream.spark.session import find_java

    home = find_java()
    if home is None:
        return Check("note", "Java", "none of 17 or 21 found, Spark needs one: pip install 'semistream[java]'")
    return Check("good", "Java", f"{java_version(home)} in {home}")


def _places(directory: Path) -> Iterator[Check]:
    places = {"stores": directory, "temporary files": Path(tempfile.gettempdir()), "shared memory": _SHARED_MEMORY}
    for name, place in places.items():
        if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
            yield Check("note" if place == _SHARED_MEMORY else "bad", name, f"{place} cannot be written")
            continue
        free = shutil.disk_usage(place).free
        said = f"{place.resolve()}: {format_bytes(free)} free on {mounted(place)[1]}"
        yield Check("note", name, f"{said}: little") if free < _LITTLE else Check("good", name, said)


def _direct(directory: Path) -> Check:
    try:
        with tempfile.NamedTemporaryFile(dir=directory) as file, mmap.mmap(-1, 4096) as buffer:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
            with open(file.name, "rb", 0, opener=lambda path, flags: os.open(path, flags | os.O_DIRECT)) as direct:
                direct.readinto(buffer)
    except OSError as error:
        said = f"not in {directory.resolve()} ({error.strerror}); stores there open with direct=False only"
        return Check("note", "O_DIRECT", said)
    return Check("good", "O_DIRECT", f"works in {directory.resolve()}")


def _session() -> Check:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _SESSION],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=_SPARK_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Check("bad", "Spark session", f"did not start within {_SPARK_SECONDS} seconds")
    if done.returncode != 0:
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:] or ["nothing said"]
        return Check("bad", "Spark session", last[0])
    return Check("good", "Spark session", f"Spark {done.stdout.split()[-1]} starts, and its Python workers answer")


@app.command(rich_help_panel="This machine")
def doctor(
    spark: Annotated[bool, Option("--spark", help="Start a Spark session too.")] = False,
    directory: Annotated[Path, Option(help="Where stores will be.")] = Path(),
) -> None:
    """Check what semistream needs here; exit code 1 when something is wrong."""
    from rich.text import Text

    marks = {"good": Text("✓", "green"), "note": Text("–", "yellow"), "bad": Text("✗", "red")}
    checks = [*_machine(), _kernels(), _java(), *_places(directory), _direct(directory)]
    checks += [_session()] if spark else []
    show_table("", [], [[marks[check.state], check.name, check.said] for check in checks])
    if any(check.state == "bad" for check in checks):
        raise Exit(1)
