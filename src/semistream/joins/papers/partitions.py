"""R on disk as the papers see it: n partitions of about d bytes, each read as one; a key is never split over two.

A partition is a run of pages. It never ends within a group of equal keys, nor does it reach from one level of the store
(its base, an update) into the next. Rows that a newer level replaces are left out.
"""

from collections.abc import Iterator

import numpy as np

from semistream.joins.output import Indices
from semistream.keys import Codes
from semistream.rows import Addresses
from semistream.stores.contract import PageStore


class Partitions:
    """The store cut into partitions, and the buffer that one is read into."""

    def __init__(self, store: PageStore, buffer_bytes: int, in_buffer: int = 1) -> None:
        """``in_buffer`` partitions fill the buffer."""
        self.store = store
        self.reader = store.reader(buffer_bytes, 1, double=False)
        self.buffer_pages = max(1, buffer_bytes // store.facts.page_bytes)
        self.pages = max(1, self.buffer_pages // in_buffer)
        self._even = store.facts.largest_page == store.facts.page_bytes  # all pages are of one size
        self.edges, self.first_codes = self._cut()

    def _cut(self) -> tuple[Indices, Codes]:
        """Where each partition begins, and where the last one ends; the smallest code of each."""
        edges, codes = [0], []
        for first, firsts in self.store.levels():
            # A page goes on with the group of the page before it when both begin with the same code.
            begins = np.flatnonzero(np.concatenate([[True], firsts[1:] != firsts[:-1], [True]]))
            last = 0
            while last < len(firsts):
                codes.append(firsts[last])
                fitting = begins[np.searchsorted(begins, last + self.pages, "right") - 1]
                following = begins[np.searchsorted(begins, last, "right")]  # of a group larger than the buffer
                last = int(max(fitting, following))
                edges.append(first + last)
        return np.array(edges, np.int64), np.array(codes, np.uint64)

    def __len__(self) -> int:
        return len(self.edges) - 1

    def of(self, codes: Codes) -> Indices:
        """The partition of each code; the number of partitions for a code that the index knows to be absent."""
        order = np.argsort(codes)
        low, high = self.store.locate(codes[order])
        found = np.searchsorted(self.edges, low, "right") - 1
        found[high <= low] = len(self)
        result = np.empty(len(codes), np.int64)
        result[order] = found
        return result

    def in_one_piece(self, first: int, end: int | None = None) -> bool:
        """Can a partition, or those up to ``end``, be loaded by one read: of one level, and within the buffer?"""
        start, stop = (int(self.edges[at]) for at in (first, first + 1 if end is None else end))
        apart = end is not None and any(start < edge < stop for edge, _ in self.store.levels())
        return not apart and stop - start <= self.buffer_pages and self._even

    def load(self, number: int, end: int | None = None) -> Iterator[tuple[Codes, Addresses]]:
        """The rows of a partition, or of several up to ``end``, by key; in several pieces only if they do not fit."""
        return self.reader.page_rows(int(self.edges[number]), int(self.edges[number + 1 if end is None else end]))

    def of_base(self) -> int:
        """How many partitions the store's base has."""
        _, firsts = next(iter(self.store.levels()))
        return int(np.searchsorted(self.edges, len(firsts)))
