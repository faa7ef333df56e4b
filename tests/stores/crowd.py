"""Several processes change, vacuum and read one store at once, each with a log of what it did.

Usage: python -m tests.stores.crowd folder seed writers changes

Every change is one key of the writer's own and a counter that all writers raise, in one version. At the end the store
must hold exactly what the logs say: nothing lost, nothing twice.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import traceback
from pathlib import Path

import pyarrow as pa

from semistream import failpoints
from semistream.errors import ConcurrentWriteError, StoreNotFoundError
from semistream.stores import MasterStore

COUNTER = -1


def rows(pairs: dict[int, int]) -> pa.Table:
    return pa.table({"k": pa.array(pairs.keys(), pa.int64()), "v": pa.array(pairs.values(), pa.int64())})


def content(store: MasterStore) -> dict[int, int]:
    return {row["k"]: row["v"] for batch in store.scan() for row in batch.to_pylist()}


def write(path: Path, number: int, seed: int, changes: int) -> dict[int, int | None]:
    """Make changes until all were published; returns what this writer's keys must hold."""
    chooser = random.Random(f"{seed} {number}")

    def pause(name: str) -> None:  # so that they overtake each other
        if name.startswith(("store.", "vacuum.")) and chooser.random() < 0.25:
            time.sleep(0.05)

    failpoints.reach = pause
    mine: dict[int, int | None] = {}
    store = MasterStore.open(path)
    done = 0
    while done < changes:
        key = number * 1_000 + chooser.randrange(20)
        try:
            if chooser.random() < 0.5:
                store = store.latest()
            counter = content(store)[COUNTER]
            if chooser.random() < 0.2:
                store = store.apply(rows({COUNTER: counter + 1}), [key])
                mine[key] = None
            else:
                store = store.apply(rows({COUNTER: counter + 1, key: counter}))
                mine[key] = counter
            done += 1
            action = chooser.random()
            if action < 0.15:
                store.vacuum(chooser.randint(1, 3))
            elif action < 0.2:
                store = store.compact()
            elif action < 0.25:
                store = store.merge_deltas(2)
        except ConcurrentWriteError:
            store = store.latest()
    return mine


def read(path: Path, seed: int, looks: int) -> None:
    """Versions and counters only grow, and every version is whole."""
    chooser = random.Random(seed)
    version = counter = 0
    for _ in range(looks):
        store = MasterStore.open(path)
        found = content(store)
        assert (store.version, found[COUNTER]) >= (version, counter), (store.version, version, found[COUNTER], counter)
        assert len(found) == store.rows
        since = store.changed_since(version) if version else None
        assert since is None or len(since) <= 2 * (store.version - version)
        version, counter = store.version, found[COUNTER]
        try:
            old = MasterStore.open(path, max(1, version - chooser.randint(0, 3)))
            assert content(old)[COUNTER] <= counter
        except StoreNotFoundError as error:
            assert "has no version" in str(error), error  # noqa: PT017


def main(folder: str, seed: int, writers: int, changes: int) -> None:
    path = Path(folder) / "store"
    MasterStore.build(rows({COUNTER: 0}), path, key="k")
    children = []
    for number in range(writers + 1):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                if number == writers:
                    read(path, seed, 10 * changes)
                else:
                    kept = write(path, number, seed, changes)
                    (Path(folder) / f"log-{number}").write_text(json.dumps(kept))
                code = 0
            except BaseException:  # noqa: BLE001 - shown, and counted by the parent
                traceback.print_exc()
            os._exit(code)
        children.append(child)
    failed = [child for child in children if os.waitpid(child, 0)[1]]
    assert not failed, f"seed {seed}: {len(failed)} processes failed"
    store = MasterStore.open(path)
    expected = {COUNTER: writers * changes}
    for number in range(writers):
        log = json.loads((Path(folder) / f"log-{number}").read_text())
        expected |= {int(key): value for key, value in log.items() if value is not None}
    assert content(store) == expected, f"seed {seed}: {content(store)} instead of {expected}"
    store.verify()
    store.vacuum(1)
    used = {entry.file for entry in store.manifest.segments} | {f"version-{store.version:06d}.json"}
    left = {name for name in os.listdir(path) if not name.startswith("floor-")} - used
    assert not left, f"seed {seed}: left behind: {left}"
    print(f"seed {seed}: version {store.version}, {writers * changes} changes of {writers} writers")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
