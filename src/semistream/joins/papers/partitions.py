"""R on disk as the papers see it: n partitions of about d bytes, each read as one; a key is never split over two.

A partition is a run of pages. It never ends within a group of equal keys, nor does it reach from one level of the store
(its base, an update) into the next. Rows that a newer level replaces are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

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
        edges, codes = self._cut()
        self.edges, self.first_codes = np.array(edges, np.int64), np.array(codes, np.uint64)

    def _cut(self) -> tuple[list[int], list[int]]:
        """Where each partition begins, and where the last one ends; the smallest code of each."""
        edges, codes = [0], []
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
                codes.append(firsts[last])
                last = end
            if len(firsts):
                edges.append(first + len(firsts))
                codes.append(firsts[last])
        return edges, codes

    def __len__(self) -> int:
        return len(self.edges) - 1

    def of(self, code: int) -> int | None:
        """The partition that holds a code, if any does; None when the index knows that none does."""
        low, high = self.store.locate(np.array([code], np.uint64))
        if high[0] <= low[0]:
            return None
        return int(np.searchsorted(self.edges, low[0], "right")) - 1

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
