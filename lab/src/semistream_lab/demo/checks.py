"""Whether the promises were kept: every sale once, and the same rows as from Spark's own join."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from semistream.warehouse.delta import rows_of
from semistream_lab.demo.query import Outcome
from semistream_lab.demo.shop import COLUMNS

_HIDDEN = ("sold_at", "store", "customer", "product_key")  # of the sample: a terminal is narrow


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
    customers: tuple[int, int] = (0, 0)  # those that were made, and different pairs of customer and key among the sales

    @property
    def numbered(self) -> bool:
        """Every customer has one key, and every key is one customer's."""
        return self.customers[0] == self.customers[1]

    @property
    def once(self) -> bool:
        """Every sale is in the table, and none twice."""
        return self.sold == self.in_table == self.distinct

    @property
    def accounted(self) -> bool:
        """The counters of the join agree with each other and with the table."""
        stats = self.ours.stats
        return (
            stats.rows_in == self.in_table == stats.matched + stats.unmatched
            and stats.unmatched == self.without_product
        )

    @property
    def good(self) -> bool:
        """All of it, the replay after the restart included."""
        same = all(equal for _, equal in self.same.values())
        return self.once and self.accounted and self.numbered and self.ours.replayed > 0 and same


def check(sold: int, ours: Outcome, natives: list[Outcome]) -> Verdict:
    """Read the tables and compare them row by row."""
    table = _sorted(ours.table)
    keys = table.column(COLUMNS[0])
    shown = table.select([name for name in table.column_names if name not in _HIDDEN])
    same = {}
    for native in natives:
        theirs = _sorted(native.table)
        # Files are taken in the order of their arrival, so these are the first sales. Spark's joins make no customers.
        first = table.slice(0, theirs.num_rows).select(theirs.column_names)
        same[native.name] = (theirs.num_rows, theirs.num_rows > 0 and theirs.equals(first))
    return Verdict(
        ours=ours,
        natives=natives,
        sold=sold,
        in_table=table.num_rows,
        distinct=len(np.unique(table.column("sale_id").to_numpy())),
        without_product=keys.null_count,
        same=same,
        customers=(0, 0) if ours.customers is None else _customers(table, ours.customers),
        sample=pa.concat_tables([shown.filter(keys.is_valid()).slice(0, 2), shown.filter(keys.is_null()).slice(0, 1)]),
    )


def _customers(sales: pa.Table, path: Path) -> tuple[int, int]:
    pairs = sales.select(["customer", "customer_key"]).group_by(["customer", "customer_key"]).aggregate([])
    made = _rows(path).select(["customer", "customer_key"])
    both = pa.concat_tables([pairs, made.cast(pairs.schema)]).group_by(["customer", "customer_key"]).aggregate([])
    return made.num_rows, both.num_rows


def _sorted(path: Path) -> pa.Table:
    return _rows(path).sort_by("sale_id")


def _rows(path: Path) -> pa.Table:
    from deltalake import DeltaTable

    return rows_of(DeltaTable(path))
