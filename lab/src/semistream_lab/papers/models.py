"""Tuned X-HYBRIDJOIN's own tuning model, as far as the paper prints it and as it was derived where it does not.

p_N is the share of the stream that the pinned part answers, n the number of swappable partitions of the rest; the join
serves w = h_S/(n(1 − p_N) + p_N) tuples per read of R.
"""

from __future__ import annotations

import math
from typing import Any

from semistream.budget import Budget
from semistream.stores import MasterStore
from semistream_lab.arms_joins import Setting
from semistream_lab.cells import Cell, enriched
from semistream_lab.data import BenchData
from semistream_lab.workloads.zipf import ZipfWorkload

_EULER = 0.5772156649


def tuned_tuples_per_read(slots: float, pinned: float, swappable: float, rows: float) -> float:
    """Equations 5 and 6, in tuples of R.

    >>> round(tuned_tuples_per_read(slots=10_000, pinned=1_000, swappable=500, rows=100_000), 1)
    131.5
    """
    share = (math.log(pinned) + _EULER) / (math.log(rows) + _EULER) if pinned >= 1 else 0.0
    parts = max(1.0, (rows - pinned) / swappable)
    return slots / (parts * (1 - share) + share)


def tuned_model(cell: Cell, data: BenchData, result: dict[str, Any]) -> dict[str, Any]:
    """What the model says for the sizes that the join chose, and what a read of R served."""
    store = MasterStore.open(data.store())
    stream = ZipfWorkload(cell.params["rows"]).stream(0, 1).schema
    setting = Setting.of(cell, store, stream, "key", enriched(cell.params["columns"]))
    join = setting.join(Budget(cell.params["memory"], whole=store.bytes))
    a_page = store.rows / store.pages
    pinned_pages = join.budget.parts["pinned part"] // store.page_bytes // 2
    said = tuned_tuples_per_read(
        join.table.capacity, pinned_pages * a_page, join.partitions.buffer_pages * a_page, store.rows
    )
    return {
        "model_tuples_per_page": said / join.partitions.buffer_pages,
        "pinned_pages": pinned_pages,
        "swappable_pages": join.partitions.buffer_pages,
        "served_per_page": result["tuples_per_page"],
    }
