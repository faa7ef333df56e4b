"""Finding rows in a paged store: which pages of which level hold a code, and where on them its rows lie.

The levels of a version are its base and, newest last, the updates since. A level is searched as one: all base segments
together, or one delta. A delta lists the codes it changed; for these the newest one that lists them holds all there is.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from semistream import kernels
from semistream.keys import Codes, Mask
from semistream.rows import Addresses, Projection
from semistream.stores.contract import Bytes, Found, Indices, Packed, Pages
from semistream.stores.paged.reading import PageBuffer
from semistream.stores.paged.segment import Segment


@dataclass(frozen=True)
class Level:
    """Pages that are searched as one; ``changed`` is empty for the base."""

    first_page: int
    firsts: Codes
    changed: Codes

    def locate(self, codes: Codes) -> tuple[Pages, Pages]:
        """The pages [low, high) on which rows of these ascending codes may lie."""
        low, high = np.empty(len(codes), np.int64), np.empty(len(codes), np.int64)
        kernels.reading.locate_sorted(self.firsts, np.ascontiguousarray(codes), self.first_page, low, high)
        return low, high


class Levels:
    """The levels of a version, from its segments and the edges of their pages."""

    def __init__(self, segments: Sequence[Segment], edges: Pages) -> None:
        bases = [one for one in segments if one.entry.role == "base"]
        nothing = np.empty(0, np.uint64)
        one_base = len(bases) == 1
        firsts = bases[0].firsts if one_base else np.concatenate([nothing, *(one.section("firsts") for one in bases)])
        self.all = [Level(0, firsts, nothing)]
        self.pages = int(edges[-1])
        for first_page, segment in zip(edges[:-1].tolist(), segments, strict=True):
            if segment.entry.role == "delta":
                self.all.append(Level(first_page, segment.firsts, segment.section("changed")))

    def locate(self, codes: Codes) -> tuple[Pages, Pages]:
        low, high = self.all[0].locate(codes)
        for level in self.all[1:]:  # newest last, so the newest wins
            some = np.flatnonzero(among(codes, level.changed))
            low[some], high[some] = level.locate(codes[some])
        return low, high

    def apart(self, codes: Codes, low: Pages, high: Pages) -> Iterator[tuple[Codes, Indices, Pages, Indices, Indices]]:
        """Located codes level by level: (codes, index, and what `wanted` says of their pages)."""
        everything = np.arange(len(codes))
        if len(self.all) == 1 and (len(low) == 0 or int((high - low).min()) > 0):
            yield codes, everything, *wanted(low, high)
            return
        edges = [level.first_page for level in self.all] + [self.pages]
        for start, end in itertools.pairwise(edges):
            some = everything[(low >= start) & (low < end) & (high > low)]
            if len(some):
                yield codes[some], some, *wanted(low[some], high[some])

    def replaced(self, page: int, codes: Codes) -> Mask:
        """Which codes a level above this page has changed; page -1 lies below all of them."""
        result = np.zeros(len(codes), np.bool_)
        for level in self.all[1:]:
            if level.first_page > page:
                result |= among(codes, level.changed)
        return result


def among(codes: Codes, ascending: Codes) -> Mask:
    """Which codes are in an ascending list."""
    if len(ascending) == 0:
        return np.zeros(len(codes), np.bool_)
    at = np.searchsorted(ascending, codes)
    at[at == len(ascending)] = 0
    return ascending[at] == codes


def wanted(low: Pages, high: Pages) -> tuple[Pages, Indices, Indices]:
    """All pages of ascending ranges [low, high), each once, with the first and last place of the codes on it."""
    most = int((high - low).clip(0).sum())
    pages, first, last = (np.empty(most, np.int64) for _ in range(3))
    count = kernels.reading.wanted_pages(low, high, pages, first, last)
    return pages[:count], first[:count], last[:count]


class MasterReader(PageBuffer):
    """The reader of a `MasterStore`; its methods are those of `semistream.stores.contract.PageReader`."""

    def match(self, codes: Codes) -> Found:
        for level_codes, index, pages, first, last in self.store.located.apart(codes, *self.store.locate(codes)):
            for some, addresses in self.read(pages):
                found, rows = self._match_loaded(addresses, first[some], last[some], level_codes)
                yield index[found], rows

    def match_each(self, codes: Codes) -> Found:
        order = np.argsort(codes, kind="stable")
        low, high = np.empty(len(codes), np.int64), np.empty(len(codes), np.int64)
        low[order], high[order] = self.store.locate(codes[order])
        sizes = high - low
        wanted_by = np.repeat(np.arange(len(codes)), sizes)
        pages = np.repeat(low, sizes) + np.arange(len(wanted_by)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        for some, addresses in self.read_each(pages):
            yield self._match_loaded(addresses, wanted_by[some], wanted_by[some] + 1, codes)

    def collect(self, codes: Codes, projection: Projection, staging: Bytes, most_codes: int, whole: Mask) -> Packed:
        for start in range(0, len(codes), most_codes):
            some = codes[start : start + most_codes]
            located = self.store.locate(some)
            whole[start : start + len(some)] = located[1] - located[0] == 1  # all its rows lie on one page
            for level_codes, index, pages, first, last in self.store.located.apart(some, *located):
                for found, rows in self.collect_pages(pages, first, last, level_codes, projection, staging, most_codes):
                    yield start + index[found], rows

    def rows(self) -> Iterator[tuple[Codes, Addresses]]:
        for first, firsts in self.store.levels():
            yield from self.page_rows(first, first + len(firsts))

    def page_rows(self, first: int, last: int) -> Iterator[tuple[Codes, Addresses]]:
        levels = self.store.located
        for codes, rows in self.all_rows(np.arange(first, last)):
            if len(levels.all) > 1:  # without the rows that a newer level replaces
                keep = ~levels.replaced(first, codes)
                rows, codes = rows[keep], codes[keep]
            yield codes, rows

    def all_rows(self, pages: Pages) -> Iterator[tuple[Codes, Addresses]]:
        """Every row on these ascending pages, those that a newer level replaces too."""
        for _, addresses in self.read(pages):
            count = kernels.pages.count_rows(addresses)
            rows, codes = np.empty(count, np.int64), np.empty(count, np.uint64)
            kernels.pages.list_rows(addresses, self.store.layout.row_width, rows, codes)
            yield codes, rows

    def _match_loaded(
        self, addresses: Addresses, first: Indices, last: Indices, codes: Codes
    ) -> tuple[Indices, Addresses]:
        most = kernels.pages.count_rows(addresses)
        rows, found = np.empty(most, np.int64), np.empty(most, np.int64)
        count = kernels.pages.match_pages(addresses, first, last, codes, self.store.layout.row_width, rows, found)
        return found[:count], rows[:count]
