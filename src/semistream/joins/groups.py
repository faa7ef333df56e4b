"""Stream rows grouped by code against the master rows that were read: the pairing that every disk phase ends in."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream import kernels
from semistream.joins.output import Indices, Output
from semistream.keys import Codes, Mask
from semistream.rows import Addresses, PackedRows

Value = TypeVar("Value", np.int64, np.uint64)


class Waiting:
    """Stream rows sorted by code, and which of them have matched so far."""

    def __init__(
        self,
        stream: pa.RecordBatch,
        codes: Codes,
        rows: Indices | None = None,
        matched: Mask | None = None,
        *,
        one_code: bool = False,
    ) -> None:
        """``rows`` are some of the stream's, perhaps all of ``one_code``; ``matched`` is shared with the others."""
        self.stream = stream
        self.matched = np.zeros(len(codes), np.bool_) if matched is None else matched
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
        count = kernels.pairs.group_starts(ordered, starts, ordered)  # the distinct ones take the place of all
        self.codes, self.starts = ordered[:count], starts[: count + 1]

    def pair(
        self, index: Indices, rows: Addresses, output: Output, grouped: tuple[Indices, Indices, Indices] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Join rows[i] to every stream row of codes[index[i]]; ``grouped`` is `groups_of` the index, which ascends."""
        if len(index) == 0:
            return
        groups, first, last = groups_of(index) if grouped is None else grouped
        left_from, left_to = self.starts[groups], self.starts[groups + 1]
        if output.sure and not output.wants_rows:
            self.matched[self.order[members(left_from, left_to - left_from)]] = True
            return
        for left, right in product_of_groups(left_from, left_to, first, last, output.most_rows):
            codes, stream_rows = self.codes[index[right]], self.order[left]
            yield from output.matches(self.stream, stream_rows, codes, rows[right], self.matched)


@dataclass(frozen=True)
class Groups:
    """Rows of the master by key: those of codes[i], which ascend, are rows[first[i]:last[i]]."""

    codes: Codes
    first: Indices
    last: Indices
    rows: Addresses
    packed: Sequence[PackedRows] = ()  # what the addresses point into, where it must be kept

    @staticmethod
    def of(codes: Codes, rows: Addresses, packed: Sequence[PackedRows] = ()) -> "Groups":
        """Rows in order of their codes."""
        return Groups(*groups_of(codes), rows, packed)

    @staticmethod
    def of_pieces(pieces: Sequence[tuple[Codes, PackedRows]]) -> "Groups":
        """Pieces of rows that were copied, in any order of their codes."""
        if not pieces:
            return Groups.of(np.empty(0, np.uint64), np.empty(0, np.int64))
        codes = np.concatenate([some for some, _ in pieces])
        order = np.argsort(codes, kind="stable")
        rows = np.concatenate([packed.addresses for _, packed in pieces])
        return Groups.of(codes[order], rows[order], [packed for _, packed in pieces])

    def __getitem__(self, some: Indices | Mask) -> "Groups":
        return Groups(self.codes[some], self.first[some], self.last[some], self.rows, self.packed)

    @property
    def sizes(self) -> Indices:
        return self.last - self.first

    def find(self, codes: Codes) -> tuple[Indices, Indices]:
        """Where the rows of each code begin and end: nowhere, if it is not among these."""
        first, last = np.zeros(len(codes), np.int64), np.zeros(len(codes), np.int64)
        if len(self.codes):
            at = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
            found = np.flatnonzero(self.codes[at] == codes)
            first[found], last[found] = self.first[at[found]], self.last[at[found]]
        return first, last


def groups_of(values: npt.NDArray[Value]) -> tuple[npt.NDArray[Value], Indices, Indices]:
    """The distinct ones of ascending values, and where each begins and ends."""
    values = np.require(values, requirements=["C", "W"])  # as the kernel takes them
    starts, distinct = np.empty(len(values) + 1, np.int64), np.empty_like(values)
    count = kernels.pairs.group_starts(values, starts, distinct)
    return distinct[:count], starts[:count], starts[1 : count + 1]


def members(first: Indices, sizes: Indices) -> Indices:
    """The positions first[i], …, first[i] + sizes[i] - 1 of every group i."""
    within = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.repeat(first, sizes) + within


def product_of_groups(
    left_from: Indices, left_to: Indices, right_from: Indices, right_to: Indices, most: int
) -> Iterator[tuple[Indices, Indices]]:
    """All pairs of group g's left and right ranges, at most ``most`` at a time."""
    # Products in floating point: 10**5 x 10**5 rows on many keys must not overflow the estimate.
    total = float(np.sum((left_to - left_from).astype(float) * (right_to - right_from)))
    room = int(min(most, total))
    position = np.zeros(3, np.int64)
    while position[0] < len(left_from):
        left, right = np.empty(room, np.int64), np.empty(room, np.int64)
        count = kernels.pairs.pair_groups(left_from, left_to, right_from, right_to, position, left, right)
        if count == 0:
            break
        yield left[:count], right[:count]
