"""R on disk as the papers see it: n partitions of about d bytes, each read as one; a key is never split over two.

A partition is a run of pages. It never ends within a group of equal keys, nor does it reach from one level of the store
(its base, an update) into the next. Rows that a newer level replaces are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

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
        self.edges = self._cut()

    def _cut(self) -> npt.NDArray[np.int64]:
        edges = [0]
        for first, firsts in self.store.levels():
            # A page goes on with the group of the page before it when both begin with the same code.
            begins = np.flatnonzero(np.concatenate([[True], firsts[1:] != firsts[:-1]]))
            last = 0
            while len(firsts) - last > self.pages:
                end = int(begins[np.searchsorted(begins, last + self.pages, "right") - 1])
                if end <= last:  # a group larger than the buffer
                    following = int(np.searchsorted(begins, last, "right"))
                    if following == len(begins):
                        break
                    end = int(begins[following])
                edges.append(first + end)
                last = end
            if len(firsts):
                edges.append(first + len(firsts))
        return np.array(edges, np.int64)

    def __len__(self) -> int:
        return len(self.edges) - 1

    def of(self, code: int) -> int | None:
        """The partition that holds a code, if any does; None when the index knows that none does."""
        low, high = self.store.locate(np.array([code], np.uint64))
        if high[0] <= low[0]:
            return None
        return int(np.searchsorted(self.edges, low[0], "right")) - 1

    def in_one_piece(self, number: int) -> bool:
        """Does the partition fit the buffer?"""
        return int(self.edges[number + 1] - self.edges[number]) <= self.pages and self._even

    def together(self, first: int, last: int) -> bool:
        """Can the partitions [first, last) be loaded by one read: of one level, and within the buffer?"""
        pages = int(self.edges[first]), int(self.edges[last])
        apart = any(pages[0] < edge < pages[1] for edge, _ in self.store.levels())
        return not apart and pages[1] - pages[0] <= self.buffer_pages and self._even

    def load(self, number: int, last: int | None = None) -> Iterator[tuple[Codes, Addresses]]:
        """The rows of a partition, or of several up to ``last``, by key; in several pieces only if they do not fit.

        Addresses are valid until the next piece is asked for.
        """
        end = number + 1 if last is None else last
        yield from self.reader.page_rows(int(self.edges[number]), int(self.edges[end]))

    def first_codes(self) -> Codes:
        """The smallest code of each partition of the base."""
        _, firsts = next(iter(self.store.levels()))
        return firsts[self.edges[self.edges < len(firsts)]]

    def first_code(self, number: int) -> int:
        """The smallest code of a partition."""
        page = int(self.edges[number])
        start, firsts = max(
            ((edge, codes) for edge, codes in self.store.levels() if edge <= page and len(codes)),
            key=lambda one: one[0],
        )
        return int(firsts[page - start])
