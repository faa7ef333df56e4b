"""Stream rows grouped by code against the master rows that were read: the pairing that every disk phase ends in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.joins.matching import Indices
from semistream.joins.output import Output
from semistream.keys import Codes, Mask
from semistream.rows import Addresses

Value = TypeVar("Value", np.int64, np.uint64)


class Waiting:
    """Stream rows sorted by code, and which of them have matched so far."""

    def __init__(
        self, stream: pa.RecordBatch, codes: Codes, matched: Mask, rows: Indices | None, *, one_code: bool
    ) -> None:
        """``rows`` are some of the stream's, if not all; ``matched`` is shared with whoever has the others."""
        from semistream.kernels.pairs import group_starts

        self.stream, self.matched = stream, matched
        if one_code and rows is not None:
            self.order: Indices = rows
            self.codes: Codes = codes[rows[:1]]
            self.starts: Indices = np.array([0, len(rows)][: len(rows) + 1])
            return
        mine = codes if rows is None else codes[rows]
        order = np.argsort(mine)
        starts = np.empty(len(mine) + 1, np.int64)
        ordered = mine[order]
        self.order = order if rows is None else rows[order]
        count = group_starts(ordered, starts, ordered)  # the distinct ones take the place of all
        self.codes, self.starts = ordered[:count], starts[: count + 1]

    def pair(
        self, index: Indices, rows: Addresses, output: Output, grouped: tuple[Indices, Indices, Indices] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Join rows[i] to every stream row of codes[index[i]]; ``index`` ascends. Output comes in bounded pieces.

        ``grouped`` is `groups_of` the index, if it is known.
        """
        if len(index) == 0:
            return
        groups, first, last = groups_of(index) if grouped is None else grouped
        if output.sure and not output.wants_rows:
            self._mark(groups)
            return
        left_from, left_to = self.starts[groups], self.starts[groups + 1]
        for left, right in product_of_groups(left_from, left_to, first, last, output.most_rows):
            stream_rows = self.order[left]
            if not output.sure:
                same = output.matching(self.stream, stream_rows, rows[right], self.matched[stream_rows])
                stream_rows, right = stream_rows[same], right[same]
            self.matched[stream_rows] = True
            if output.wants_rows and len(right):
                yield output.pairs(self.stream, stream_rows, self.codes[index[right]], rows[right])

    def _mark(self, groups: Indices) -> None:
        sizes = self.starts[groups + 1] - self.starts[groups]
        self.matched[self.order[members(self.starts[groups], sizes)]] = True


def groups_of(values: npt.NDArray[Value]) -> tuple[npt.NDArray[Value], Indices, Indices]:
    """The distinct ones of ascending values, and where each begins and ends."""
    if values.dtype == np.int64 and values.flags.c_contiguous:
        from semistream.kernels.pairs import runs

        distinct, first, last = (np.empty(len(values), np.int64) for _ in range(3))
        count = runs(values, distinct, first, last)
        return distinct[:count], first[:count], last[:count]  # type: ignore[return-value] # they are whole numbers
    new = np.ones(len(values), np.bool_)
    new[1:] = values[1:] != values[:-1]
    first = np.flatnonzero(new)
    return values[first], first, np.append(first[1:], len(values))[: len(first)]


def members(first: Indices, sizes: Indices) -> Indices:
    """The positions first[i], …, first[i] + sizes[i] - 1 of every group i."""
    within = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.repeat(first, sizes) + within


def product_of_groups(
    left_from: Indices, left_to: Indices, right_from: Indices, right_to: Indices, most: int
) -> Iterator[tuple[Indices, Indices]]:
    """All pairs of group g's left and right ranges, at most ``most`` at a time."""
    from semistream.kernels.pairs import pair_groups

    # Products in floating point: 10**5 x 10**5 rows on many keys must not overflow the estimate.
    total = float(np.sum((left_to - left_from).astype(float) * (right_to - right_from)))
    room = int(min(most, total))
    position = np.zeros(3, np.int64)
    while position[0] < len(left_from):
        left, right = np.empty(room, np.int64), np.empty(room, np.int64)
        count = pair_groups(left_from, left_to, right_from, right_to, position, left, right)
        if count == 0:
            break
        yield left[:count], right[:count]
