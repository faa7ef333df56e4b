"""How the lanes of a `sweep` share what waits: by ranges of its codes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from semistream.joins.matching import Indices
from semistream.joins.threads import LEAST_ROWS
from semistream.keys import Codes

_EACH = 2  # shares for each lane: one that has less to read takes the next
_LOWEST = np.uint64(0)
_SAMPLE = 256  # codes for each share


@dataclass
class Share:
    """Waiting rows whose codes lie in [low, high), for one lane to meet; and what was found of their keys."""

    low: np.uint64 = _LOWEST
    high: np.uint64 | None = None  # no bound
    keys: int = 0
    absent: int = 0

    def rows(self, codes: Codes) -> Indices | None:
        """Which rows these are; None for all of them."""
        above = codes >= self.low if self.low > _LOWEST else None
        if self.high is None:
            return None if above is None else np.flatnonzero(above)
        below = codes < self.high
        return np.flatnonzero(below if above is None else above & below)


def shares_of(codes: Codes, lanes: int) -> list[Share]:
    """Waiting rows by ranges of their codes, of about the same number of rows; a key's rows are in one share."""
    count = min(_EACH * lanes, len(codes) // LEAST_ROWS) if lanes > 1 else 1
    if count <= 1:
        return [Share()]
    sample = np.sort(codes[:: max(1, len(codes) // (count * _SAMPLE))])
    edges = np.unique(sample[[len(sample) * number // count for number in range(1, count)]])
    edges = edges[edges > _LOWEST]
    return [Share(low, high) for low, high in itertools.pairwise([_LOWEST, *edges, None])]
