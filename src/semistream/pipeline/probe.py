"""Do the driver and the tasks see the same files? Asked before the first batch of a run on several hosts.

The driver leaves a file with a random text in every directory that both use; tasks on the executors read it and leave
one beside it. Stores are compared by their identity, since an older copy of one has the same path.
"""

import socket
import uuid
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from semistream.durable import private
from semistream.errors import SemistreamError, StateError
from semistream.stores.paged.manifest import Manifest, StoreVersion

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASKS_PER_CORE = 4  # so that every executor gets some, in whatever order they start
_SHOWN = 5


def is_local(spark: "SparkSession") -> bool:
    """Whether driver and tasks are one process tree on one host."""
    return str(spark.sparkContext.master).startswith("local")


def probe(spark: "SparkSession", directories: Iterable[Path], stores: Iterable[Path]) -> None:
    """Refuse to run when a task sees other files than the driver; one small job, on as many executors as there are."""
    token = f".probe-{uuid.uuid4().hex}"  # a hidden file: no reader takes it for a part of a table
    places = sorted(set(directories))
    wanted = {path: Manifest.load(path).identity for path in stores}
    context = spark.sparkContext
    tasks = max(1, int(context.defaultParallelism)) * _TASKS_PER_CORE
    try:
        for place in places:
            _leave(place / token, token)
        look = partial(_look, places, wanted, token)
        said = context.parallelize(range(tasks), tasks).mapPartitionsWithIndex(look).collect()
        for place in places:  # what tasks wrote and the driver does not see
            seen = sum((place / f"{token}-{number}").exists() for number in range(tasks))
            if seen < tasks:
                said.append(f"{place}: of {tasks} files that tasks wrote there, the driver sees {seen}")
    finally:
        for place in places:
            for path in place.glob(f"{token}*"):
                path.unlink(missing_ok=True)
    if found := list(dict.fromkeys(said)):
        more = f" (and {len(found) - _SHOWN} more)" if len(found) > _SHOWN else ""
        raise StateError(
            f"driver and tasks do not see the same files: {'; '.join(found[:_SHOWN])}{more}. Put state, warehouse and "
            "stores on a disk that all hosts share, at the same path; nothing was read or written"
        )


def _look(
    places: list[Path], wanted: dict[Path, StoreVersion], token: str, number: int, _: Iterable[int]
) -> Iterator[str]:
    """What a task finds wrong."""
    host = socket.gethostname()
    for place in places:
        try:
            if (place / token).read_text(encoding="utf-8") != token:
                yield f"{place} has other files on {host}"
            _leave(place / f"{token}-{number}", token)
        except OSError as error:
            yield f"{place} on {host}: {error.strerror} ({Path(error.filename or place).name})"
    for path, version in wanted.items():
        try:
            version.check(Manifest.load(path, version.number), path)
        except SemistreamError as error:
            yield f"on {host} {error}"


def _leave(path: Path, token: str) -> None:
    with open(path, "w", encoding="utf-8", opener=private) as file:
        file.write(token)
