"""The papers' example: a shop's sales, each to be given the surrogate key, vendor and price of its product.

Products are known by the code on their label ("P00000123"), as in the source systems of a warehouse: a string that says
nothing, which is why the warehouse gives out surrogate keys. A whole number would join faster, since its code needs no
check of the real key, but it is not what a till sends. Sales follow Zipf's law over shuffled products, so that popular
ones share no pages, and a few name a product that the master does not have yet.

Every value follows from the seed and the row's number: the stream is the same whatever the size of its batches.

>>> shop = RetailWorkload(products=1000, seed=7)
>>> shop.sales(0, 2).column("product").to_pylist()
['P00000798', 'P00000939']
>>> shop.sales(1, 1).equals(shop.sales(0, 2).slice(1))
True
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from semistream.errors import ArgumentError, local_path
from semistream_lab.workloads.numbered import BATCH_ROWS, Numbers, check_range, random_bits, slices

if TYPE_CHECKING:
    from semistream.stores.paged.store import Progress

STORES = 400
VENDORS = 5_000
FIRST_SURROGATE = 1_000_000_000  # far from any number in a product's code, so that a mix-up shows
OPENING = dt.datetime(2026, 1, 2, 7, tzinfo=dt.UTC)
MICROSECONDS_A_SALE = 1_000
MOST_PRODUCTS = 50_000_000  # a code has eight digits, and half of the codes are kept for unknown products

_QUALITIES = ("Plain", "Bright", "Heavy", "Light", "Large", "Small", "Soft", "Classic", "Daily", "Garden")
_THINGS = {
    "Kettle": "Kitchen",
    "Pan": "Kitchen",
    "Lamp": "Lighting",
    "Lantern": "Lighting",
    "Chair": "Furniture",
    "Shelf": "Furniture",
    "Hammer": "Tools",
    "Drill": "Tools",
    "Towel": "Textiles",
    "Cushion": "Textiles",
    "Notebook": "Stationery",
    "Pencil": "Stationery",
}

PRODUCT_SCHEMA = pa.schema(
    [
        ("product_id", pa.string()),
        ("product_key", pa.int64()),
        ("name", pa.string()),
        ("category", pa.string()),
        ("vendor", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("listed_on", pa.date32()),
    ]
)
SALES_SCHEMA = pa.schema(
    [
        ("sale_id", pa.int64()),
        ("sold_at", pa.timestamp("us", tz="UTC")),
        ("store", pa.int32()),
        ("product", pa.string()),
        ("quantity", pa.int32()),
    ]
)


@dataclass(frozen=True)
class RetailWorkload:
    """``products`` products, and sales of any number over them; a share of ``unknown`` sales matches no product."""

    name: ClassVar[str] = "retail"
    idea: ClassVar[str] = "a shop's sales and its products, known by a code"
    aliases: ClassVar[Mapping[str, str]] = {"rows": "products", "absent": "unknown"}
    on: ClassVar[dict[str, str]] = {"product": "product_id"}
    key: ClassVar[list[str]] = ["product_id"]
    master_schema: ClassVar[pa.Schema] = PRODUCT_SCHEMA
    stream_schema: ClassVar[pa.Schema] = SALES_SCHEMA
    stream_rows: ClassVar[int | None] = None

    products: int = 1_000_000
    skew: float = 1.0
    unknown: float = 0.002
    seed: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.products <= MOST_PRODUCTS:
            raise ArgumentError(f"products={self.products} must be between 1 and {MOST_PRODUCTS:,}")
        if self.skew < 0:
            raise ArgumentError(f"skew={self.skew} must be 0 or more")
        if not 0 <= self.unknown <= 1:
            raise ArgumentError(f"unknown={self.unknown} must be between 0 and 1")
        if self.seed < 0:
            raise ArgumentError(f"seed={self.seed} must be 0 or more")

    @property
    def master_rows(self) -> int:
        """Rows of the master."""
        return self.products

    def prepare(self, progress: Progress | None = None) -> None:
        """Nothing: every row is computed."""

    def master(self, batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """All products, in random order."""
        return slices(self.master_slice, self.products, batch_rows)

    def stream(self, start: int, count: int) -> pa.RecordBatch:
        """The same as `sales`, by the name that it has in every workload."""
        return self.sales(start, count)

    def sales(self, start: int, count: int) -> pa.RecordBatch:
        """Sales ``start`` to ``start + count`` of the stream."""
        check_range(start, count)
        number = np.arange(start, start + count, dtype=np.int64)
        opening = int(OPENING.timestamp()) * 1_000_000
        columns = [
            pa.array(number),
            pa.array(opening + number * MICROSECONDS_A_SALE, SALES_SCHEMA.field("sold_at").type),
            pa.array((self._random(number, 11) % STORES + 1).astype(np.int32)),
            _codes(self._sold(start, count)),
            pa.array((1 + self._random(number, 12) % 5 * (self._random(number, 13) % 3 == 0)).astype(np.int32)),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SALES_SCHEMA)

    def _sold(self, start: int, count: int) -> Numbers:
        from semistream_lab.workloads.zipf_kernels import permute, zipf_ranks

        product = np.empty(count, np.int64)
        zipf_ranks(self.products, float(self.skew), np.uint64(self.seed), start, product)
        product -= 1
        permute(product, self.products, np.uint64(self.seed + 1))
        number = np.arange(start, start + count, dtype=np.int64)
        product[self._random(number, 14) < self.unknown * 2**31] += self.products
        return product

    def master_slice(self, start: int, count: int) -> pa.RecordBatch:
        """Products ``start`` to ``start + count``, in the order of `master`."""
        from semistream_lab.workloads.zipf_kernels import permute

        check_range(start, count, self.products, "master")
        number = np.arange(start, start + count, dtype=np.int64)
        permute(number, self.products, np.uint64(self.seed + 2))
        thing = pa.array(self._random(number, 21) % len(_THINGS))
        quality = pa.array(self._random(number, 22) % len(_QUALITIES))
        things = pa.array(list(_THINGS)).take(thing)
        vendors = pc.binary_join_element_wise("Vendor", _digits(self._random(number, 23) % VENDORS + 1, 4), " ")
        columns = [
            _codes(number),
            pa.array(number + FIRST_SURROGATE),
            pc.binary_join_element_wise(pa.array(_QUALITIES).take(quality), things, _digits(number % 1000, 3), " "),
            pa.array(list(_THINGS.values())).take(thing),
            vendors,
            _decimals(self._random(number, 24) % 20_000 + 49, PRODUCT_SCHEMA.field("price").type),
            pa.array((14_610 + self._random(number, 25) % 5_000).astype(np.int32), pa.date32()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=PRODUCT_SCHEMA)

    def _random(self, number: Numbers, column: int) -> Numbers:
        return random_bits(self.seed, column, number)


def write_master(path: str | os.PathLike[str], shop: RetailWorkload) -> Path:
    """All products as one Parquet file."""
    path = local_path("path", path)
    with pq.ParquetWriter(path, PRODUCT_SCHEMA) as writer:
        for batch in shop.master():
            writer.write_batch(batch)
    return path


def write_files(batches: Iterable[pa.RecordBatch], directory: str | os.PathLike[str]) -> Iterator[Path]:
    """Write each batch as a Parquet file, and yield its path once a reader can see it: then all of it is there.

    The caller sets the pace, since the next file is written when it is asked for.
    """
    directory = local_path("directory", directory)
    directory.mkdir(parents=True, exist_ok=True)
    for number, batch in enumerate(batches):
        path = directory / f"sales-{number:06}.parquet"
        draft = directory / f".{path.name}.part"  # Spark passes over names that begin with a dot
        pq.write_table(pa.Table.from_batches([batch]), draft)
        draft.rename(path)
        yield path


def _digits(numbers: Numbers, width: int, prefix: bytes = b"") -> pa.Array:
    """Numbers with leading zeros as text, made place by place instead of row by row."""
    count, wide = len(numbers), width + len(prefix)
    letters = np.empty((count, wide), np.uint8)
    letters[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
    rest = numbers.copy()
    for place in range(wide - 1, len(prefix) - 1, -1):
        letters[:, place] = 48 + rest % 10
        rest //= 10
    offsets = np.arange(0, (count + 1) * wide, wide, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(letters)])


def _codes(products: Numbers) -> pa.Array:
    return _digits(products, 8, b"P")


def _decimals(cents: Numbers, kind: pa.DataType) -> pa.Array:
    words = np.zeros((len(cents), 2), np.int64)  # a decimal is 128 bits, the low word first
    words[:, 0] = cents
    return pa.Array.from_buffers(kind, len(cents), [None, pa.py_buffer(words)])
