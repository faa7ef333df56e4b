"""Change a store while files may not grow past a limit, in a process of its own for each limit.

Usage: python -m tests.stores.full_disk folder CHANGE, one of `CHANGES`.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from semistream.errors import StoreError
from semistream.stores import MasterStore
from semistream.stores.paged.manifest import Manifest

ROWS = 3_000


def table(start: int = 0, rows: int = ROWS) -> pa.Table:
    numbers = range(start, start + rows)
    return pa.table({"k": numbers, "same": numbers, "text": [f"text {n} " * 5 for n in numbers]})


def build(path: Path) -> MasterStore:
    return MasterStore.build(table(), path, key="k")


def spill(path: Path) -> MasterStore:
    batches = table(0, 60_000).to_batches(max_chunksize=2_000)
    return MasterStore.build(batches, path, key="k", memory="1MB")


def upsert(path: Path) -> MasterStore:
    return MasterStore.open(path).upsert(table(100, 700))


def upsert_one(path: Path) -> MasterStore:
    return MasterStore.open(path).upsert(table(100, 1))


def compact(path: Path) -> MasterStore:
    return MasterStore.open(path).compact()


def apply(path: Path) -> MasterStore:
    return MasterStore.open(path).apply(table(100, 700), list(range(900, 950)), properties={"batch": "1"})


def merge(path: Path) -> MasterStore:
    return MasterStore.open(path).merge_deltas(at_most=1)


def project(path: Path) -> MasterStore:
    return MasterStore.open(path).project("same", ["same"])


CHANGES: dict[str, Callable[[Path], MasterStore]] = {
    "build": build,
    "spill": spill,
    "upsert": upsert,
    "apply": apply,
    "large manifest": upsert_one,
    "merge": merge,
    "compact": compact,
    "project": project,
    "upsert in groups": upsert,
}


def prepare(path: Path, change: str) -> None:
    if change in ("upsert", "apply", "merge", "compact", "project", "upsert in groups"):
        store = build(path)
        if change == "upsert in groups":
            store.project("same", ["same"])
        if change in ("merge", "compact"):
            store.upsert(table(0, 10)).upsert(table(500, 300)).upsert(table(0, 5))
    elif change == "large manifest":  # larger than a delta
        MasterStore.build(table(0, 10), path, key="k", properties={"large": "x" * 20_000})


def largest_new_file(folder: Path, change: str) -> int:
    path = folder / "measured"
    prepare(path, change)
    if path.exists():
        shutil.copytree(path, folder / "prepared")
    before = set(os.listdir(path)) if path.exists() else set()
    CHANGES[change](path)
    return max((path / name).stat().st_size for name in set(os.listdir(path)) - before)


def attempt(path: Path, change: str, limit: int) -> None:
    """In a child: fail under the limit, publish nothing, then succeed without it."""
    versions = Manifest.versions(path)
    before = sorted(os.listdir(path)) if path.exists() else []
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    failure: StoreError | None = None
    try:
        CHANGES[change](path)
    except StoreError as error:
        failure = error
    assert failure is not None, f"limit {limit:,}: no error"
    print(f"limit {limit:,}: {type(failure).__name__}: {failure}", flush=True)
    assert isinstance(failure.__cause__, OSError)
    assert str(path) in str(failure)
    assert "make room" in str(failure)
    assert Manifest.versions(path) == versions, f"limit {limit:,}: a version was published"
    left = sorted(os.listdir(path)) if path.exists() else []
    assert left == before, f"limit {limit:,}: left behind {sorted(set(left) - set(before))}"
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    store = CHANGES[change](path)
    assert sum(batch.num_rows for batch in store.scan()) == store.rows
    store.verify()


def main(folder: str, change: str) -> None:
    root = Path(folder)
    size = largest_new_file(root, change)
    limits = [0, 4_096, size // 2, size - 4_096, size - 600, size - 40, size - 1]
    if change == "spill":
        limits = [1 << 20, size // 2, size - 1]
    elif change == "large manifest":  # the largest file is a manifest, whose numbers differ by some digits
        limits = [4_096, size // 2, size - 600, size - 200]
    failed = 0
    for limit in dict.fromkeys(one for one in limits if one >= 0):
        path = Path(tempfile.mkdtemp(dir=root)) / "store"
        if (root / "prepared").exists():
            shutil.copytree(root / "prepared", path)
        child = os.fork()
        if child == 0:
            try:
                attempt(path, change, limit)
            except BaseException as error:  # noqa: BLE001 - told, and counted by the parent
                print(f"limit {limit:,} of {size:,}: {type(error).__name__}: {error}", flush=True)
                os._exit(1)
            os._exit(0)
        failed += os.waitpid(child, 0)[1] != 0
    print("ok" if not failed else f"{failed} limits failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
