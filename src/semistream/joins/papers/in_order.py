"""Output in stream order: tuples leave one after the other, each with all its matches.

`emit` does it for tuples whose matches are at hand. `OrderedMeeting` is for a scan join, where matches come whenever
their chunk comes by: the first one is kept in a cell of the tuple's slot until the tuple leaves. A tuple with more
matches, or with one that is longer than a cell, asks the store for them when it leaves; so memory has a bound however
many there are.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from semistream.joins.groups import product_of_groups
from semistream.joins.matching import Indices
from semistream.joins.output import Output
from semistream.joins.papers.meeting import Meeting
from semistream.joins.papers.multimap import Slots
from semistream.joins.papers.stream_table import StreamTable
from semistream.joins.sizes import cell_bytes
from semistream.keys import Codes
from semistream.rows import Addresses, Projection, address_of
from semistream.stores.contract import Reader, StoreFacts, portions

CELL_OVERHEAD = 2  # two flags
_NOTHING: Indices = np.empty(0, np.int64)


def emit(
    output: Output, stream: pa.RecordBatch, codes: Codes, first: Indices, last: Indices, rows: Addresses, *, sure: bool
) -> Iterator[pa.RecordBatch]:
    """Tuple i beside its candidates rows[first[i]:last[i]], in order, for every ``how``; ``sure`` that they match."""
    matched = last > first
    for start, end in portions(np.maximum(last - first, 1), output.most_rows) if output.wants_rows or not sure else ():
        tuples, left, right = np.arange(start, end), _NOTHING, _NOTHING
        found = np.zeros(end - start, np.bool_)
        for left, right in product_of_groups(tuples, tuples + 1, first[tuples], last[tuples], output.most_rows):
            if not sure:
                same = output.matching(stream, left, rows[right], found[left - start])
                left, right = left[same], right[same]
            found[left - start] = True
            if end == start + 1 and output.wants_rows and len(left):  # a tuple may have more matches than a batch holds
                yield output.pairs(stream, left, codes[left], rows[right])
        matched[start:end] = found
        if output.wants_rows and (end > start + 1 or not found[0]):
            left, paired = _with_unmatched(output, tuples[~found], left, rows[right])
            if len(left):
                yield output.pairs(stream, left, codes[left], paired)
    output.count(stream, matched)
    if not output.wants_rows:
        yield from output.rest(stream, matched)


def _with_unmatched(output: Output, unmatched: Indices, left: Indices, rows: Addresses) -> tuple[Indices, Addresses]:
    """Put tuples without a match between the others, where ``how`` wants them."""
    if output.plan.how != "left" or len(unmatched) == 0:
        return left, rows
    everyone = np.concatenate([left, unmatched])
    order = np.argsort(everyone, kind="stable")
    return everyone[order], np.concatenate([rows, np.zeros(len(unmatched), np.int64)])[order]


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

    def paired(self, slots: Slots, codes: Codes, rows: Addresses) -> Iterator[pa.RecordBatch]:
        del codes
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

    def settle(self, slots: Slots, iteration: int) -> Iterator[pa.RecordBatch]:
        """These tuples, in their order, have met all that they ever will."""
        if not self.output.wants_rows:
            yield from super().settle(slots, iteration)
            return
        self._count_waits(slots, iteration)
        for start in range(0, len(slots), self.output.most_rows):
            some = slots[start : start + self.output.most_rows]
            stream, codes, cells = self.table.take(some), self.table.codes_of(some), self._addresses(some)
            done = 0
            for one in [*np.flatnonzero(self._many[some]).tolist(), len(some)]:
                if one > done:
                    run, first = stream.slice(done, one - done), np.arange(done, one)
                    last = first + self._held[some[first]]
                    yield from emit(self._from_cells, run, codes[done:one], first, last, cells, sure=True)
                if one < len(some):
                    yield from emit_one(self.output, stream.slice(one, 1), codes[one : one + 1], self._reader)
                done = one + 1
        self._held[slots] = self._many[slots] = False

    def clear(self) -> None:
        """Forget what is kept."""
        self._held[:] = self._many[:] = False
