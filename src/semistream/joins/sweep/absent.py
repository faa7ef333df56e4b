"""Keys that the master does not hold, told by the store's filter of its keys once many reads find nothing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from semistream.budget import Budget
from semistream.keys import Codes
from semistream.stores.contract import Store

_ABSENT_SHARE = 0.05  # of the keys read: above it the filter is worth its memory
_LEAST_KEYS = 1000
_FILTER_SHARE = 0.15  # of the budget at most
_PART = "filter"


class AbsentKeys:
    """The filter, when it is worth its memory."""

    def __init__(self, store: Store, budget: Budget) -> None:
        self._store, self._budget = store, budget
        self.filter: npt.NDArray[np.uint64] | None = None

    @property
    def bytes(self) -> int:
        """What it takes of the budget."""
        return self._budget.parts.get(_PART, 0)

    def learn(self, keys: int, absent: int, window_bytes: int) -> None:
        """Load the filter if many of these keys were absent and it takes less than half of the window."""
        size = self._store.facts.filter_bytes
        if self.filter is not None or keys < _LEAST_KEYS or absent <= _ABSENT_SHARE * keys:
            return
        most = min(_FILTER_SHARE * self._budget.total, window_bytes // 2 - 1)
        if 0 < size <= most and self._budget.grant(_PART, size):
            self.filter = self._store.bloom()

    def mark(self, codes: Codes, values: npt.NDArray[np.int64]) -> None:
        """Set the values of those keys to 1 that have 0, not known, and cannot match."""
        if self.filter is None:
            return
        from semistream.kernels.bloom import bloom_test

        unknown = np.flatnonzero(values == 0)
        maybe = np.empty(len(unknown), np.bool_)
        bloom_test(self.filter, codes[unknown], maybe)
        absent = unknown[~maybe]
        if len(absent):
            values[absent[~self._store.in_deltas(codes[absent])]] = 1
