"""A driver that assigns surrogate keys while another does the same; see test_dimension.

Usage: python -m tests.dimensions.racing_drivers dimension seed rounds go
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

import pyarrow as pa

from semistream.dimensions import Dimension


def main(path: str, seed: int, rounds: int, go: Path) -> None:
    dimension = Dimension.open(path)
    chooser = random.Random(seed)
    given: dict[str, int] = {}
    print("ready", flush=True)
    while not go.exists():  # both begin at the same moment
        time.sleep(0.001)
    for turn in range(rounds):
        # About half of the keys are asked for by both drivers in the same round.
        keys = [f"{turn}-{chooser.randrange(12)}" for _ in range(8)]
        found = dimension.assign(pa.table({"product": keys}))
        for key, number in zip(keys, found["sk"].to_pylist(), strict=True):
            assert given.setdefault(key, number) == number, f"{key} had {given[key]}, now it has {number}"
    print(json.dumps(given))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
