"""Flip random bytes in the memory of a join's cache between two streams; the rows must stay right.

Usage: python -m tests.joins.damaged_cache fixed|text|hashed tables|header rounds
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.budget import Budget
from semistream.joins.sweep.join import SweepJoin, SweepSettings
from semistream.lookup.bind import bind
from semistream.lookup.spec import LookupSpec
from semistream.stores import MasterStore

KEYS = 3_000
HEADER_BYTES = 256
MEMORY = 120_000


def main(shape: str, part: str, rounds: int) -> None:
    chooser = np.random.default_rng(99)
    numbers = np.arange(KEYS)
    keys: Any = [f"k{n}" for n in numbers.tolist()] if shape == "hashed" else numbers
    columns: dict[str, Any] = {"k": keys, "v": 3 * numbers}
    if shape != "fixed":
        columns["note"] = [f"{n} " * (n % 30) for n in numbers.tolist()]
    with tempfile.TemporaryDirectory() as folder:
        store = MasterStore.build(pa.table(columns), Path(folder) / "store", key="k")
        stream = pa.schema([("k", store.schema.field("k").type), ("row", pa.int64())])
        plan = bind(LookupSpec(on="k"), stream, store)
        steady = SweepSettings(adapt=False)
        join = SweepJoin(store, plan, Budget(MEMORY), steady)
        for number in range(rounds):
            if number % 10 == 0:  # start anew from time to time, so that later rounds meet a healthy cache too
                join = SweepJoin(store, plan, Budget(MEMORY), steady)
                for _ in range(3):
                    _feed(join, chooser, stream, shape)
            assert join.cache is not None
            memory = np.frombuffer(join.cache._memory, np.uint8)
            first, last = (0, HEADER_BYTES) if part == "header" else (HEADER_BYTES, len(memory))
            places = chooser.integers(first, last, 1 if part == "header" else int(chooser.choice([1, 20, 2_000])))
            memory[places] ^= chooser.integers(1, 256, len(places)).astype(np.uint8)
            _feed(join, chooser, stream, shape)
            _feed(join, chooser, stream, shape)
            del memory
    print(f"{rounds} rounds")


def _feed(join: SweepJoin, chooser: np.random.Generator, stream: pa.Schema, shape: str) -> None:
    numbers = (1.02 * KEYS * chooser.random(800) ** 3).astype(np.int64)  # some keys are absent
    keys: Any = [f"k{n}" for n in numbers.tolist()] if shape == "hashed" else numbers
    batch = pa.record_batch({"k": keys, "row": np.arange(len(numbers))}, schema=stream)
    made = pa.Table.from_batches(join.join([batch]), join.plan.output)
    assert made.num_rows == len(numbers), f"{made.num_rows} rows instead of {len(numbers)}"
    rows = made["row"].to_numpy()
    assert len(np.unique(rows)) == len(numbers)
    present = numbers[rows] < KEYS
    wanted = np.where(present, 3 * numbers[rows], -1)
    got = made["v"].fill_null(-1).to_numpy()
    assert (got == wanted).all(), f"{int((got != wanted).sum())} wrong values"
    if shape != "fixed":
        notes = [f"{n} " * (n % 30) if n < KEYS else None for n in numbers[rows].tolist()]
        assert made["note"].to_pylist() == notes, "wrong text"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
