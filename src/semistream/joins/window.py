"""The window: stream rows that wait for their page, and the shares in which a sweep meets them.

Stands for the papers' H_S and queue. Rows stay Arrow columns; only their codes are kept beside them. A sweep divides
what waits into ranges of codes, met one after the other by its lanes: sorting and searching such a share takes little
memory. A code that many rows have is a share of its own: there is nothing to sort.
"""

import itertools
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from semistream import kernels
from semistream.budget import Budget
from semistream.joins.output import Indices
from semistream.joins.threads import LEAST_ROWS
from semistream.keys import Codes
from semistream.rows import varies

SHARES = 16  # of a full window, for each lane that works on one
_FEW = 2  # for each lane where less waits: one that has less to read takes the next
_LOWEST, _HIGHEST = np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)
_SAMPLE = 64  # codes for each share
MOST_TEXT = 2**31 - 1  # bytes of a column whose offsets have 32 bits


class Window:
    """Waiting stream rows and their codes; what they are charged is a part of the budget."""

    def __init__(self, schema: pa.Schema, budget: Budget) -> None:
        self._schema = schema
        self._budget = budget
        self._columns: list[list[pa.Array]] = [[] for _ in schema]
        self._codes: list[Codes] = []
        self._text = {at: 0 for at, field in enumerate(schema) if varies(field.type)}  # bytes that may need offsets
        self.rows = 0
        self.since: float | None = None

    @property
    def bytes(self) -> int:
        """What the waiting rows are charged, or those taken until they are given up."""
        return self._budget.parts.get("window", 0)

    def can_hold(self, batch: pa.RecordBatch) -> bool:
        """Could all that waits then be put together? A column has an end, however much memory there is."""
        return self.rows == 0 or all(size + batch.column(at).nbytes <= MOST_TEXT for at, size in self._text.items())

    def add(self, batch: pa.RecordBatch, codes: Codes, now: float, size: int) -> None:
        """Let rows wait; ``size`` is their `charge`."""
        self._budget.require("window", size)
        if self.since is None:
            self.since = now
        for waiting, column in zip(self._columns, batch.columns, strict=True):
            waiting.append(column)
        for at in self._text:
            self._text[at] += batch.column(at).nbytes
        self._codes.append(codes)
        self.rows += batch.num_rows

    def take(self) -> tuple[pa.RecordBatch, Codes]:
        """All waiting rows, in order of arrival. The window is empty then; call `release` when they have left."""
        columns = []
        for position, parts in enumerate(self._columns):
            columns.append(pa.concat_arrays(parts) if parts else pa.nulls(0, self._schema.field(position).type))
            self._columns[position] = []  # one column at a time is held twice, not all
        codes = np.concatenate(self._codes) if self._codes else np.empty(0, np.uint64)
        self._codes, self._text, self.rows, self.since = [], dict.fromkeys(self._text, 0), 0, None
        return pa.RecordBatch.from_arrays(columns, schema=self._schema), codes

    def release(self) -> None:
        """The rows that were taken have left: give back their bytes."""
        self._budget.resize("window", 0)


@dataclass
class Share:
    """Waiting rows whose codes lie in [low, high), for one lane to meet; and what was found of their keys."""

    low: np.uint64 = _LOWEST
    high: np.uint64 | None = None  # no bound
    keys: int = 0
    absent: int = 0

    @property
    def one_code(self) -> bool:
        return self.last == self.low

    @property
    def last(self) -> np.uint64:
        return _HIGHEST if self.high is None else self.high - np.uint64(1)

    def rows(self, codes: Codes) -> Indices | None:
        """Which rows these are; None for all of them."""
        if self.high is None and self.low == _LOWEST:
            return None
        return kernels.pairs.select_range(codes, self.low, self.last)


def shares_of(codes: Codes, lanes: int, most_rows: int) -> list[Share]:
    """Waiting rows by ranges of their codes, of at most about so many rows each; a key's rows are in one share."""
    count = -(-len(codes) // max(1, most_rows))
    if lanes > 1:
        count = max(count, min(_FEW * lanes, len(codes) // LEAST_ROWS))
    if count <= 1:
        return [Share()]
    sample = np.sort(codes[:: max(1, len(codes) // (count * _SAMPLE))])
    edges, often = np.unique(sample[[len(sample) * number // count for number in range(1, count)]], return_counts=True)
    frequent = edges[often > 1]
    edges = np.union1d(edges, frequent[frequent < _HIGHEST] + np.uint64(1))
    edges = edges[edges > _LOWEST]
    return [Share(low, high) for low, high in itertools.pairwise([_LOWEST, *edges, None])]
