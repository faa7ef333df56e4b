"""Where waiting stream tuples meet rows of R: output for every ``how``, in bounded pieces, many-to-many.

Shared by the joins of the papers. `meet` joins the rows of a piece of R with the tuples that wait for them; `settle`
closes the account of tuples that will meet nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.joins.groups import Groups, product_of_groups
from semistream.joins.matching import Indices
from semistream.joins.output import Output
from semistream.joins.papers.multimap import Entries, Slots
from semistream.joins.papers.stream_table import StreamTable
from semistream.keys import Codes, Mask
from semistream.rows import Addresses


@dataclass
class Waits:
    """How long tuples waited, in iterations and in seconds."""

    tuples: int = 0
    iterations: int = 0
    longest: int = 0
    seconds: float = 0.0
    longest_seconds: float = 0.0

    def add(self, iterations: Indices, seconds: npt.NDArray[np.float64]) -> None:
        """Some tuples leave after so many iterations and seconds each."""
        if len(iterations):
            self.tuples += len(iterations)
            self.iterations += int(iterations.sum())
            self.longest = max(self.longest, int(iterations.max()))
            self.seconds += float(seconds.sum())
            self.longest_seconds = max(self.longest_seconds, float(seconds.max()))

    @property
    def mean(self) -> float:
        """The mean wait in iterations."""
        return self.iterations / self.tuples if self.tuples else 0.0


class Meeting:
    """Stream table and output of one join."""

    def __init__(self, table: StreamTable, output: Output) -> None:
        self.table = table
        self.output = output
        self.waits = Waits()

    def meet(self, entries: Entries, groups: Groups) -> Iterator[pa.RecordBatch]:
        """Join the tuples of entries[i] with the rows of group i; the tuples stay, marked as matched."""
        table, output = self.table, self.output
        if len(entries) == 0:
            return
        slots = table.slots_of(entries)
        # In order, tuples without a key wait among the others.
        keyless = output.plan.ordered
        if output.sure and not output.wants_rows:
            table.matched[slots[self._has_key(slots)] if keyless else slots] = True
            return
        counts = table.counts(entries)
        ends = np.cumsum(counts)
        for left, right in product_of_groups(ends - counts, ends, groups.first, groups.last, output.most_rows):
            if keyless:
                same = self._has_key(slots[left])
                left, right = left[same], right[same]
            if not output.sure:
                tuples, at = np.unique(left, return_inverse=True)
                stream, before = table.take(slots[tuples]), table.matched[slots[left]]
                same = output.matching(stream, at, groups.rows[right], before)
                left, right = left[same], right[same]
            of = np.searchsorted(groups.last, right, "right")  # the group that a row belongs to
            yield from self.paired(slots[left], groups.codes[of], groups.rows[right])

    def paired(self, slots: Slots, codes: Codes, rows: Addresses) -> Iterator[pa.RecordBatch]:
        """The tuples that wait in slots[i] have found rows[i] of codes[i]."""
        self.table.matched[slots] = True
        if self.output.wants_rows and len(slots):
            yield self.output.pairs(self.table.take(slots), None, codes, rows)

    def settle(self, slots: Slots, iteration: int) -> Iterator[pa.RecordBatch]:
        """These tuples have met all that they ever will: count them, and give out what ``how`` wants of them."""
        self._count_waits(slots, iteration)
        most = self.output.most_rows
        for start in range(0, len(slots), most):
            some = slots[start : start + most]
            matched = self.table.matched[some]
            if not self.output.all_left(matched):
                yield from self.output.settled(self.table.take(some), matched)

    def _has_key(self, slots: Slots) -> Mask:
        names = self.output.plan.stream_keys
        return np.logical_and.reduce([self.table.has_value(slots, name) for name in names])

    def _count_waits(self, slots: Slots, iteration: int) -> None:
        table = self.table
        self.waits.add(iteration - table.born[slots].astype(np.int64), table.clock() - table.came[slots].astype(float))

    def clear(self) -> None:
        """Forget what is kept for tuples that wait."""
