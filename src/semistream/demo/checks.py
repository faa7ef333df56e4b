"""Whether the promises were kept: every sale once, and the same rows as from Spark's own join."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from semistream.demo.query import Outcome
from semistream.demo.shop import COLUMNS


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
            stats.rows_in == self.in_table == stats.matched + stats.unmatched
            and stats.unmatched == self.without_product
        )

    @property
    def good(self) -> bool:
        """All of it, the replay after the restart included."""
        return self.once and self.accounted and self.ours.replayed > 0 and all(equal for _, equal in self.same.values())


def check(sold: int, ours: Outcome, natives: list[Outcome]) -> Verdict:
    """Read the tables and compare them row by row."""
    table = _sorted(ours.table)
    keys = table.column(COLUMNS[0])
    same = {}
    for native in natives:
        theirs = _sorted(native.table)
        # Files are taken in the order of their arrival, so these are the first sales.
        same[native.name] = (theirs.num_rows, theirs.num_rows > 0 and theirs.equals(table.slice(0, theirs.num_rows)))
    return Verdict(
        ours=ours,
        natives=natives,
        sold=sold,
        in_table=table.num_rows,
        distinct=len(np.unique(table.column("sale_id").to_numpy())),
        without_product=keys.null_count,
        same=same,
        sample=pa.concat_tables([table.filter(keys.is_valid()).slice(0, 2), table.filter(keys.is_null()).slice(0, 1)]),
    )


def _sorted(path: Path) -> pa.Table:
    from deltalake import DeltaTable

    return DeltaTable(path).to_pyarrow_table().sort_by("sale_id")
