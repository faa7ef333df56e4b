"""Where waiting stream tuples meet rows of R: output for every ``how``, in bounded pieces, many-to-many.

In stream order tuples leave one after the other, each with all its matches. `emit` does that for tuples whose matches
are at hand. `OrderedMeeting` does it for a scan: the first match that comes by is kept in a cell of the tuple's slot
until the tuple leaves; for more matches, or a longer one, the tuple asks the store then, so that memory has a bound.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.joins.groups import Groups, product_of_groups
from semistream.joins.output import Indices, Output
from semistream.joins.papers.stream_table import Entries, Slots, StreamTable
from semistream.joins.sizes import cell_bytes
from semistream.keys import Codes, Mask
from semistream.rows import Addresses, Projection, address_of
from semistream.stores.contract import Reader, StoreFacts, portions

CELL_OVERHEAD = 2  # two flags
_NOTHING: Indices = np.empty(0, np.int64)


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
            if self.output.fixed:
                yield self.output.pairs(self.table.take(slots), None, codes, rows)
                return
            tuples, at = np.unique(slots, return_inverse=True)
            yield from self.output.bounded_pairs(self.table.take(tuples), at, codes, rows)

    def settle(self, slots: Slots, iteration: int) -> Iterator[pa.RecordBatch]:
        """These tuples have met all that they ever will: count them, and give out what ``how`` wants of them."""
        table, most = self.table, self.output.most_rows
        self.waits.add(iteration - table.born[slots].astype(np.int64), table.clock() - table.came[slots].astype(float))
        for start in range(0, len(slots), most):
            yield from self._settle(slots[start : start + most])

    def _settle(self, slots: Slots) -> Iterator[pa.RecordBatch]:
        matched = self.table.matched[slots]
        if not self.output.all_left(matched):
            yield from self.output.settled(self.table.take(slots), matched)

    def _has_key(self, slots: Slots) -> Mask:
        names = self.output.plan.stream_keys
        return np.logical_and.reduce([self.table.has_value(slots, name) for name in names])

    def clear(self) -> None:
        """Forget what is kept for tuples that wait."""


def emit(
    output: Output, stream: pa.RecordBatch, codes: Codes, first: Indices, last: Indices, rows: Addresses
) -> Iterator[pa.RecordBatch]:
    """Tuple i beside its candidates rows[first[i]:last[i]], in order, for every ``how``."""
    matched = last > first
    asked = output.wants_rows or not output.sure
    for start, end in portions(np.maximum(last - first, 1), output.most_rows) if asked else ():
        tuples, left, right = np.arange(start, end), _NOTHING, _NOTHING
        found = np.zeros(end - start, np.bool_)
        for left, right in product_of_groups(tuples, tuples + 1, first[tuples], last[tuples], output.most_rows):
            if not output.sure:
                same = output.matching(stream, left, rows[right], found[left - start])
                left, right = left[same], right[same]
            found[left - start] = True
            if end == start + 1 and output.wants_rows and len(left):  # a tuple may have more matches than a batch holds
                yield from output.bounded_pairs(stream, left, codes[left], rows[right])
        matched[start:end] = found
        if output.wants_rows and (end > start + 1 or not found[0]):
            paired, unmatched = rows[right], tuples[~found]
            if output.plan.how == "left" and len(unmatched):  # their places are between the others
                everyone = np.concatenate([left, unmatched])
                order = np.argsort(everyone, kind="stable")
                left, paired = everyone[order], np.concatenate([paired, np.zeros(len(unmatched), np.int64)])[order]
            if len(left):
                yield from output.bounded_pairs(stream, left, codes[left], paired)
    output.count(stream, matched)
    if not output.wants_rows:
        yield from output.rest(stream, matched)


def emit_one(output: Output, stream: pa.RecordBatch, codes: Codes, reader: Reader) -> Iterator[pa.RecordBatch]:
    """One tuple with all its matches, from the store, however many there are."""
    matched = np.zeros(1, np.bool_)
    for found, rows in reader.match(codes):
        yield from output.matches(stream, found, codes[found], rows, matched)
    yield from output.settled(stream, matched)


class OrderedMeeting(Meeting):
    """A meeting whose tuples wait for their turn, each with a match."""

    def __init__(self, table: StreamTable, output: Output, facts: StoreFacts, reader: Reader) -> None:
        super().__init__(table, output)
        self._reader = reader
        self._projection = Projection(facts.layout, output.plan.needed)
        self._size = cell_bytes(facts, self._projection.target) if output.wants_rows else 0
        self._cells = np.empty(max(1, table.capacity * self._size), np.uint8)
        self._held = np.zeros(table.capacity, np.bool_)
        self._many = np.zeros(table.capacity, np.bool_)
        self._from_cells = output.of_layout(self._projection.target)
        self._from_cells.sure = True  # what is kept there has matched

    def paired(self, slots: Slots, codes: Codes, rows: Addresses) -> Iterator[pa.RecordBatch]:
        self.table.matched[slots] = True
        if not self.output.wants_rows:
            return
        slots, at, counts = np.unique(slots, return_index=True, return_counts=True)
        rows = np.ascontiguousarray(rows[at])
        alone = (counts == 1) & ~self._held[slots] & (self._projection.lengths(rows) <= self._size)
        self._many[slots[~alone]] = True
        self._held[slots] = True
        self._projection.copy_to(rows[alone], self._addresses(slots[alone]))
        yield from ()  # until it is their turn

    def _addresses(self, slots: Slots) -> Addresses:
        return address_of(self._cells) + slots.astype(np.int64) * self._size

    def _settle(self, slots: Slots) -> Iterator[pa.RecordBatch]:
        """In their order, each with all its matches."""
        if not self.output.wants_rows:
            yield from super()._settle(slots)
            return
        stream, cells = self.table.take(slots), self._addresses(slots)
        codes = self.table.codes_of(self.table.entries_of(slots))
        done = 0
        for one in [*np.flatnonzero(self._many[slots]).tolist(), len(slots)]:
            if one > done:
                run, first = stream.slice(done, one - done), np.arange(done, one)
                last = first + self._held[slots[first]]
                yield from emit(self._from_cells, run, codes[done:one], first, last, cells)
            if one < len(slots):
                yield from emit_one(self.output, stream.slice(one, 1), codes[one : one + 1], self._reader)
            done = one + 1
        self._held[slots] = self._many[slots] = False

    def clear(self) -> None:
        self._held[:] = self._many[:] = False
