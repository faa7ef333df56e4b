"""Kill a loader at random moments, start it again where it may have been, and compare with a model in the end.

Usage: python -m tests.changes.killed_loaders folder kills

A batch applies changes to a store, assigns surrogate keys, changes a history, and remembers keys that were loaded. A
loader begins some batches before the one at which the last was killed, as one does that lost its notes.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.changes import SeenKeys, apply_changes
from semistream.dimensions import Dimension
from semistream.stores import MasterStore
from tests.waiting import wait_until

KEYS = 12
SALES = 20


def changes(batch: int) -> pa.Table:
    chooser = random.Random(batch)
    keys = [f"k{chooser.randrange(KEYS)}" for _ in range(5)]
    ops = [chooser.choice(["upsert", "upsert", "delete"]) for _ in keys]
    prices = [None if op == "delete" else chooser.randrange(3) for op in ops]
    return pa.table(
        {"_op": ops, "k": keys, "v": pa.array(prices, pa.int64()), "at": [batch * 10 + n for n in range(5)]}
    )


def run_batch(root: Path, batch: int) -> None:
    token = ("loader", batch)
    apply_changes(root / "store", changes(batch), token=token)
    names = Dimension.open(root / "names")
    names.assign(pa.table({"k": [f"{batch % 40}-{n}" for n in range(4)]}))
    history = Dimension.open(root / "history")
    history.apply(changes(batch), effective="at", token=token)
    seen = SeenKeys(root / "seen", pa.schema([("sale", pa.int64())]))
    seen.add(pa.table({"sale": range(batch * SALES, (batch + 1) * SALES)}), token=token)


def done(root: Path) -> int:
    """The last batch that a loader got through."""
    return int((root / "done").read_text()) if (root / "done").exists() else 0


def load(root: Path, first: int) -> None:
    batch = first
    while True:
        run_batch(root, batch)
        if batch > done(root):  # what is repeated was done
            (root / "doing").write_text(str(batch))
            (root / "doing").rename(root / "done")
        batch += 1


def prepare(root: Path) -> None:
    empty = pa.schema([("k", pa.string()), ("v", pa.int64())]).empty_table()
    MasterStore.build(empty, root / "store", key="k")
    key, attributes = pa.schema([("k", pa.string())]), pa.schema([("v", pa.int64())])
    Dimension.create(root / "names", key=key, attributes=attributes, surrogate="sk")
    Dimension.create(root / "history", key=key, attributes=attributes, surrogate="sk", history=True, time=pa.int64())
    SeenKeys(root / "seen", pa.schema([("sale", pa.int64())]))


def check(root: Path, batches: int) -> None:
    """All batches up to here, each once, whatever was killed and repeated."""
    model: dict[str, int] = {}
    log: dict[str, list[tuple[int, int | None]]] = {}
    for batch in range(batches):
        for row in changes(batch).to_pylist():
            log.setdefault(row["k"], []).append((row["at"], row["v"]))
            if row["_op"] == "delete":
                model.pop(row["k"], None)
            else:
                model[row["k"]] = row["v"]
    store = MasterStore.open(root / "store")
    assert {row["k"]: row["v"] for b in store.scan() for row in b.to_pylist()} == model
    names: list[dict[str, Any]] = Dimension.open(root / "names").rows()[0].to_pylist()
    assert {row["k"] for row in names} == {f"{batch % 40}-{n}" for batch in range(batches) for n in range(4)}
    assert sorted(row["sk"] for row in names) == list(range(1, len(names) + 1)), "dense and given once"
    versions = Dimension.open(root / "history").rows()[0].to_pylist()
    numbers = [row["sk"] for row in versions]
    assert len(set(numbers)) == len(numbers)
    for key, seen in log.items():
        for moment in range(0, batches * 10, 7):
            past = [value for time, value in seen if time <= moment]
            valid = [
                row["v"]
                for row in versions
                if row["k"] == key
                and (row["valid_from"] or 0) <= moment
                and (row["valid_to"] is None or moment < row["valid_to"])
            ]
            assert valid == [value for value in past[-1:] if value is not None], f"{key} at {moment}"
    assert SeenKeys(root / "seen", pa.schema([("sale", pa.int64())])).store.rows == batches * SALES


def main(folder: str, kills: int) -> None:
    root = Path(folder)
    prepare(root)
    run_batch(root, 0)
    chooser = random.Random(7)
    reached = 0
    for number in range(kills):
        child = os.fork()
        if child == 0:
            try:
                load(root, max(0, reached - chooser.randrange(3)))
            finally:
                os._exit(1)
        if number % 5 == 0:  # on a slow machine, too, some get through
            wait_until(lambda: done(root) > reached)  # noqa: B023 - called here and now
        time.sleep(chooser.uniform(0.02, 0.25))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "the loader ended by itself"
        reached = max(reached, done(root))  # one that began earlier was killed before it came so far
    for batch in range(max(0, reached - 1), reached + 2):  # the last one too, which may be half done
        run_batch(root, batch)
    check(root, reached + 2)
    assert reached > 1, "no loader got through"
    print(f"{kills} kills, {reached} batches")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
