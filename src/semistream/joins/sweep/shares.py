"""How a `sweep` divides what waits: into ranges of its codes, met one after the other by its lanes.

A share is small, so what sorting and searching it takes is little beside the rows that wait. A code that many rows have
is a share of its own: there is nothing to sort.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from semistream.joins.matching import Indices
from semistream.joins.threads import LEAST_ROWS
from semistream.keys import Codes

SHARES = 16  # of a full window, for each lane that works on one
_FEW = 2  # for each lane where less waits: one that has less to read takes the next
_LOWEST, _HIGHEST = np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)
_SAMPLE = 64  # codes for each share


@dataclass
class Share:
    """Waiting rows whose codes lie in [low, high), for one lane to meet; and what was found of their keys."""

    low: np.uint64 = _LOWEST
    high: np.uint64 | None = None  # no bound
    keys: int = 0
    absent: int = 0

    @property
    def one_code(self) -> bool:
        """Do all its rows have the same code?"""
        return self.last == self.low

    @property
    def last(self) -> np.uint64:
        """The highest code that may be in it."""
        return _HIGHEST if self.high is None else self.high - np.uint64(1)

    def rows(self, codes: Codes) -> Indices | None:
        """Which rows these are; None for all of them."""
        from semistream.kernels.pairs import select_range

        if self.high is None and self.low == _LOWEST:
            return None
        rows: Indices = select_range(codes, self.low, self.last)
        return rows


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
