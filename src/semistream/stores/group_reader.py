"""A reader for stores that find all rows of a key at once: `Reader` by one method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from semistream.errors import InvariantError
from semistream.keys import Codes
from semistream.rows import Addresses, PackedRows, Projection, address_of
from semistream.stats import ReadCounters
from semistream.stores.contract import Found

Indices = npt.NDArray[np.int64]


class GroupReader(ABC):
    """Hands out at most ``buffer_bytes`` of rows at a time, or those of one code."""

    def __init__(self, buffer_bytes: int) -> None:
        self.buffer_bytes = buffer_bytes
        self.counters = ReadCounters()

    @abstractmethod
    def find(self, codes: Codes, most_bytes: int) -> Found:
        """The rows of codes in any order: (index of the code, address of its row), index ascending.

        A chunk has whole groups, at most ``most_bytes`` of them or one.
        """

    @abstractmethod
    def rows(self) -> Iterator[tuple[Codes, Addresses]]:
        """Every row, as `Reader.rows` gives them."""

    def match(self, codes: Codes) -> Found:
        return self.find(codes, self.buffer_bytes)

    match_each = match

    def collect(
        self,
        codes: Codes,
        projection: Projection,
        staging: npt.NDArray[np.uint8],
        most_codes: int,
        whole: npt.NDArray[np.bool_],
    ) -> Iterator[tuple[Indices, PackedRows]]:
        """See `Reader.collect`; a row with fewer columns is never longer, so what fits the staging fits projected."""
        whole[:] = True
        for start in range(0, len(codes), most_codes):
            for index, rows in self.find(codes[start : start + most_codes], min(self.buffer_bytes, len(staging))):
                offsets = np.zeros(len(rows) + 1, np.int64)
                np.cumsum(projection.lengths(rows), out=offsets[1:])
                if offsets[-1] > len(staging):
                    raise InvariantError(f"{offsets[-1]:,} bytes of rows for a staging of {len(staging):,}")
                projection.copy_to(rows, offsets[:-1] + address_of(staging))
                yield start + index, PackedRows(staging, offsets)


def portions(sizes: Indices, most: int) -> Iterator[tuple[int, int]]:
    """Things of these sizes in runs of at most ``most`` together, or of one thing.

    >>> list(portions(np.array([3, 4, 9, 1]), 7))
    [(0, 2), (2, 3), (3, 4)]
    """
    ends = np.cumsum(sizes)
    start = 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + most, "right")))
        yield start, end
        start = end
