"""What the tests of all warehouses share: one of each kind, batches for it, and a process that dies in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.warehouse import (
    BatchWrites,
    DeltaWarehouse,
    PostgresWarehouse,
    Warehouse,
    Write,
    stage,
)
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
QUERY = "0b7f61f3-d9f5-4942-945a-e7a65429d651"
OTHER = "7c1de9a0-52f6-4f6b-8f0e-3f6d2d0c9b11"
SALES = pa.schema([("sale_id", pa.int64()), ("price", pa.decimal128(10, 2)), ("vendor", pa.string())])
LOST = pa.schema([("sale_id", pa.int64()), ("reason", pa.string())])

# Carries out what it is given and dies where the environment says.
CHILD = """
import json, sys
import pyarrow as pa
from tests.warehouse.warehouses import Place
from semistream.warehouse import BatchWrites
from semistream.warehouse.contract import decode_schema

place, what = json.load(sys.stdin)
place = Place(*place)
warehouse = place.open()
if "commit" in what:
    warehouse.commit(BatchWrites.from_json(what["commit"]))
else:
    rows = pa.Table.from_pylist(what["rows"], decode_schema(what["schema"]))
    warehouse.mirror(what["table"], what["key"], rows, what["version"])
"""


@dataclass
class Place:
    """Where a warehouse is; it can be opened again and again, by other processes too."""

    kind: str
    root: str
    address: str
    name: str = field(default_factory=lambda: f"test {uuid.uuid4()}")

    def open(self, **options: Any) -> Warehouse:
        return KINDS[self.kind](self, **options)

    def killed(self, point: str, what: dict[str, Any]) -> None:
        """Let another process do this, and see it die at the failpoint."""
        done = subprocess.run(
            [sys.executable, "-c", CHILD],
            input=json.dumps([[self.kind, self.root, self.address, self.name], what]).encode(),
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
                "SEMISTREAM_FAILPOINT": point,
            },
            capture_output=True,
            check=False,
            timeout=PATIENCE,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]


KINDS: dict[str, Callable[..., Warehouse]] = {
    "delta": lambda place, **options: DeltaWarehouse(place.root, **options),
    "postgres": lambda place, **options: PostgresWarehouse(
        place.address, staging=Path(place.root), schema=place.name, **options
    ),
}


def sales(number: int, count: int = 3) -> pa.Table:
    ids = [number * 100 + row for row in range(count)]
    vendors = [['Zoë\n\\.\n\'"x",', None, ""][row % 3] for row in range(count)]
    return pa.table({"sale_id": ids, "price": [f"{row}.25" for row in range(count)], "vendor": vendors}).cast(SALES)


def lost(number: int, count: int = 1) -> pa.Table:
    ids = [number * 100 + 50 + row for row in range(count)]
    return pa.table({"sale_id": ids, "reason": ["no product"] * count}, LOST)


def prepared(place: Place) -> Warehouse:
    warehouse = place.open()
    warehouse.prepare("sales", SALES)
    warehouse.prepare("lost", LOST)
    return warehouse


def batch_of(
    warehouse: Warehouse,
    number: int,
    tables: Mapping[str, pa.Table] | None = None,
    *,
    query: str = QUERY,
    kind: Any = "append",
    app: str = "shop",
) -> BatchWrites:
    """Stage rows as two tasks would, and say what the batch does. By default sales, and lost rows in odd batches."""
    if tables is None:
        tables = {"sales": sales(number), "lost": lost(number, number % 2)}
    writes = []
    for table, rows in tables.items():
        half = rows.num_rows // 2
        parts = [part for part in (rows.slice(0, half), rows.slice(half)) if part.num_rows]
        files = tuple(stage(warehouse.place(table), part, rows.schema) for part in parts)
        writes.append(Write(table, files, rows.schema, kind))
    return BatchWrites(app, query, number, tuple(writes))


def model(*numbers: int) -> dict[str, pa.Table]:
    """What the default batches leave in the tables."""
    return {
        "sales": pa.concat_tables([sales(number) for number in numbers] or [sales(0, 0)]),
        "lost": pa.concat_tables([lost(number, number % 2) for number in numbers] or [lost(0, 0)]),
    }
