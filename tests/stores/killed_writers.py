"""Kill writers of a store at random moments and look at what they leave.

Usage: python -m tests.stores.killed_writers folder build|upsert kills

Each version n of the store holds the keys 0 to 4999, each with value n, so a mixture of two versions shows.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import pyarrow as pa

from semistream.stores import MasterStore
from tests.waiting import wait_until

ROWS = 5_000


def table(number: int) -> pa.Table:
    return pa.table({"k": range(ROWS), "v": [number] * ROWS, "text": [f"{number} " * 10] * ROWS})


def write_on(path: Path, change: str) -> None:
    """Publish version after version until killed."""
    store = MasterStore.open(path)
    while True:
        following = table(store.version + 1)
        if change == "build":
            store = MasterStore.build(following.to_batches(500), path, key="k", replace=True, memory="1MB")
        else:
            store = store.upsert(following)


def check(path: Path, oldest: int) -> int:
    """Every version there is is whole; returns the newest."""
    newest = MasterStore.open(path)
    assert newest.version >= oldest, f"version {oldest} was there, now {newest.version} is the newest"
    for version in {oldest, newest.version, max(1, newest.version - 1)}:
        store = MasterStore.open(path, version)
        values = [value for batch in store.scan(["v"]) for value in batch.column("v").to_pylist()]
        assert values == [version] * ROWS, f"version {version} holds {set(values)}, {len(values)} rows"
        store.verify()
    return newest.version


def main(folder: str, change: str, kills: int) -> None:
    path = Path(folder) / "store"
    MasterStore.build(table(1), path, key="k", groups={"values": ["v"]})  # read from the twins, hence checked
    check(path, 1)
    chooser = random.Random(5)
    newest = 1
    for number in range(kills):
        child = os.fork()
        if child == 0:
            try:
                write_on(path, change)
            finally:
                os._exit(1)
        if number % 3 == 0:  # on a slow machine, too, some get through
            wait_until(lambda: MasterStore.open(path).version > newest)  # noqa: B023 - called here and now
        time.sleep(chooser.uniform(0.005, 0.15))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "the writer ended by itself"
        newest = check(path, newest)
        if change == "upsert" and newest % 7 == 0:
            MasterStore.open(path).vacuum(keep=2)
    store = MasterStore.open(path).upsert(table(newest + 1))
    check(path, newest + 1)
    assert store.version == newest + 1
    assert newest > 1, "no writer got through"
    print(f"{kills} kills, {newest} versions")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
