"""What `bench pipeline` reads: three masters and a stream of sales that asks for a key of each.

    products, customers, shops   a master each, of all, a tenth and a thousandth of the rows (see `data`)
    sales-…/batch-00000/         a micro-batch, two files; a batch arrives when its directory is renamed, whole

Keys of each master follow Zipf's law with exponent 1, drawn apart, so that a row's three keys have nothing in common.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from semistream_lab.data import FILES_A_BATCH, BenchData
from semistream_lab.workloads.zipf import ZipfWorkload

SHARES = {"products": 1, "customers": 10, "shops": 1000}  # a master has 1/so many of the rows
# Of each master: the stream's column, and which columns are added under which names.
KEYS = {"products": "product", "customers": "customer", "shops": "shop"}
ADDED = {
    "products": {"surrogate": "product_sk", "price": "price"},
    "customers": {"surrogate": "customer_sk", "vendor": "segment"},
    "shops": {"surrogate": "shop_sk"},
}
SALE = {"sale_id": "bigint", "product": "bigint", "customer": "bigint", "shop": "bigint", "quantity": "int"}
GROUP = "three"  # the column group of every store; it covers what is added
REVENUE = "quantity * price"
TABLE = [*SALE, *(name for names in ADDED.values() for name in names.values()), "revenue"]
_BEGAN = 1_600_000_000  # Spark takes files in the order of their times


@dataclass(frozen=True)
class SalesData(BenchData):
    """The data of one number of products, below ``root``."""

    def masters(self) -> dict[str, BenchData]:
        """The masters by their names."""
        return {name: BenchData(self.root, max(1, self.rows // share)) for name, share in SHARES.items()}

    def sales(self, batches: int, batch_rows: int) -> Path:
        """The stream, a directory a micro-batch."""
        name = f"sales-{batches}x{batch_rows}"
        with self.part(name) as draft:
            if draft is not None:
                for number in range(batches):
                    self._batch(draft, number, batch_rows)
        return self.directory / name

    def _batch(self, directory: Path, number: int, rows: int) -> None:
        place = directory / batch_name(number)
        place.mkdir()
        edges = [rows * part // FILES_A_BATCH for part in range(FILES_A_BATCH + 1)]
        for part in range(FILES_A_BATCH):
            start, count = number * rows + edges[part], edges[part + 1] - edges[part]
            file = place / f"part-{part}.parquet"
            pq.write_table(self.rows_of(start, count), file)
            os.utime(file, (_BEGAN + 60 * number + part,) * 2)

    def rows_of(self, start: int, count: int) -> pa.Table:
        """Sales ``start`` to ``start + count``."""
        number = np.arange(start, start + count, dtype=np.int64)
        keys = {
            KEYS[name]: pa.array(ZipfWorkload(master.rows, seed=seed).keys(start, count))
            for seed, (name, master) in enumerate(self.masters().items(), 1)
        }
        quantity = pa.array((1 + number % 9).astype(np.int32))
        return pa.table({"sale_id": pa.array(number), **keys, "quantity": quantity})


def batch_name(number: int) -> str:
    """The directory of a micro-batch."""
    return f"batch-{number:05d}"
