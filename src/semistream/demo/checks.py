"""Whether the promises were kept: every sale once, and the same rows as from Spark's own join."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semistream.demo.streams import COLUMNS, Outcome, Shop, rows_in

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa


@dataclass(frozen=True)
class Verdict:
    """The tables compared."""

    ours: Outcome
    natives: list[Outcome]
    sold: int
    in_table: int
    distinct: int
    without_product: int
    same: dict[str, tuple[int, bool]]  # by name of Spark's join: rows compared, and whether they are equal
    sample: pa.Table

    @property
    def once(self) -> bool:
        """Every sale is in the table, and none twice."""
        return self.sold == self.in_table == self.distinct

    @property
    def accounted(self) -> bool:
        """The counters of the join agree with each other and with the table."""
        stats = self.ours.stats
        return (
            stats.rows_in == stats.matched + stats.unmatched == self.in_table
            and stats.unmatched == self.without_product
        )

    @property
    def good(self) -> bool:
        """All of it."""
        return self.once and self.accounted and all(equal for _, equal in self.same.values())


def check(shop: Shop, ours: Outcome, natives: list[Outcome]) -> Verdict:
    """Compare the tables by row count and by the sum of a 64-bit hash of every row."""
    from deltalake import DeltaTable
    from pyspark.sql.functions import col, count, count_distinct, count_if

    table = _read(shop, ours.table)
    row = table.select(
        count("*"), count_distinct("sale_id"), count_if(col(COLUMNS[0]).isNull()).alias("without")
    ).first()
    assert row is not None
    same = {}
    for native in natives:
        rows = rows_in(native.table)
        # Files are taken in the order of their arrival, so these are the first sales.
        first = _sums(table.where(col("sale_id") < rows))
        same[native.name] = (rows, first == _sums(_read(shop, native.table)))
    sample = DeltaTable(ours.table).to_pyarrow_dataset()
    return Verdict(ours, natives, shop.settings.rows, row[0], row[1], row[2], same, _sample(sample))


def _read(shop: Shop, table: Path) -> Any:
    from deltalake import DeltaTable

    return shop.spark.read.parquet(*DeltaTable(table).file_uris())


def _sums(frame: Any) -> tuple[int, int]:
    from pyspark.sql.functions import coalesce, count, lit, sum, xxhash64  # noqa: A004 - Spark's sum

    hashed = xxhash64(*sorted(frame.columns)).cast("decimal(38,0)")
    row = frame.select(count("*"), coalesce(sum(hashed), lit(0))).first()
    return int(row[0]), int(row[1])


def _sample(dataset: Any) -> pa.Table:
    """Three rows: the first two, and one whose product the master does not have."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    known, unknown = ds.field(COLUMNS[0]).is_valid(), ds.field(COLUMNS[0]).is_null()
    return pa.concat_tables([dataset.head(2, filter=known), dataset.head(1, filter=unknown)])
