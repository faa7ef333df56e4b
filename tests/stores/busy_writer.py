"""Change a store and vacuum it, version after version, until standard input ends.

Usage: python -m tests.stores.busy_writer store

Every version n holds the keys 0 to 99, each with the value n.
"""

from __future__ import annotations

import select
import sys
from pathlib import Path

import pyarrow as pa

from semistream.stores import MasterStore

KEYS = 100


def table(number: int) -> pa.Table:
    return pa.table({"k": range(KEYS), "v": [number] * KEYS})


def main(path: Path) -> None:
    store = MasterStore.open(path)
    while not select.select([sys.stdin], [], [], 0)[0]:
        store = store.upsert(table(store.version + 1))
        store.vacuum(keep=1)
    print(store.version)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
