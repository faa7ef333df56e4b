"""The window: stream rows that wait for their page, with the memory that joining them will take.

Stands for the papers' H_S and queue. Rows stay Arrow columns; only their codes are kept beside them. At a sweep the
batches are put together column by column, which takes the widest column once more; then they are met share by share
(`semistream.joins.sweep.shares`), which takes less. A waiting row is charged for its bytes, its code, and the larger of
the two.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from semistream.budget import Budget
from semistream.keys import Codes

WORK_BYTES = 28  # where rows are met all at once: a place in the order, a code, its group's start, and flags
_CODE_BYTES = 8
SHARE_BYTES = 12  # where they are met share by share: flags, and what the share at work takes, spread over all


def _sizes(schema: pa.Schema) -> list[int]:
    """A guess of each column's bytes a row, before the first batch is seen."""
    sizes = []
    for field in schema:
        try:
            sizes.append(max(1, field.type.bit_width // 8))
        except ValueError:
            sizes.append(24)
    return sizes


def stream_row_bytes(schema: pa.Schema) -> int:
    """A guess of a stream row's bytes."""
    return max(1, sum(_sizes(schema)))


def charge(batch: pa.RecordBatch) -> int:
    """Bytes that these rows take in the window and while they are swept."""
    sizes = [column.nbytes for column in batch.columns]
    return sum(sizes) + _CODE_BYTES * batch.num_rows + max(*sizes, SHARE_BYTES * batch.num_rows)


def row_charge(schema: pa.Schema) -> int:
    """What one row may be charged at most, guessed from its types."""
    return 2 * stream_row_bytes(schema) + WORK_BYTES


def waiting_bytes(schema: pa.Schema) -> int:
    """What one row is charged among many."""
    return stream_row_bytes(schema) + _CODE_BYTES + max(*_sizes(schema), SHARE_BYTES)


class Window:
    """Waiting stream rows and their codes; what they are charged is a part of the budget."""

    def __init__(self, schema: pa.Schema, budget: Budget) -> None:
        self._schema = schema
        self._budget = budget
        self._columns: list[list[pa.Array]] = [[] for _ in schema]
        self._codes: list[Codes] = []
        self.rows = 0
        self.since: float | None = None

    @property
    def bytes(self) -> int:
        """What the waiting rows are charged, or those taken until they are given up."""
        return self._budget.parts.get("window", 0)

    def add(self, batch: pa.RecordBatch, codes: Codes, now: float, size: int | None = None) -> None:
        """Let rows wait; ``size`` is their `charge`, if it is known."""
        if batch.num_rows == 0:
            return
        self._budget.require("window", charge(batch) if size is None else size)
        if self.since is None:
            self.since = now
        for waiting, column in zip(self._columns, batch.columns, strict=True):
            waiting.append(column)
        self._codes.append(codes)
        self.rows += batch.num_rows

    def take(self) -> tuple[pa.RecordBatch, Codes]:
        """All waiting rows, in order of arrival. The window is empty then; call `release` when they have left."""
        columns = []
        for position, parts in enumerate(self._columns):
            columns.append(pa.concat_arrays(parts) if parts else pa.array([], self._schema.field(position).type))
            self._columns[position] = []  # one column at a time is held twice, not all
        codes = np.concatenate(self._codes) if self._codes else np.empty(0, np.uint64)
        self._codes = []
        self.rows = 0
        self.since = None
        return pa.RecordBatch.from_arrays(columns, schema=self._schema), codes

    def release(self) -> None:
        """The rows that were taken have left: give back their bytes."""
        self._budget.resize("window", 0)
