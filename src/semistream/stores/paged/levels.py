"""The levels of a version: its base and, newest last, the updates since; which pages of which level hold a key.

A level is searched as one: all base segments together, or one delta. A delta lists the codes it changed; for these the
newest one that lists them holds all there is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from semistream.keys import Codes
from semistream.stores.contract import Pages
from semistream.stores.paged.segment import Segment


@dataclass(frozen=True)
class Level:
    """Segments that are searched as one; ``changed`` is empty for the base."""

    segments: tuple[Segment, ...]
    first_page: int
    firsts: Codes
    changed: Codes

    def locate(self, codes: Codes) -> tuple[Pages, Pages]:
        """The pages [low, high) on which rows of these ascending codes may lie."""
        from semistream.kernels.reading import locate_sorted

        low, high = np.empty(len(codes), np.int64), np.empty(len(codes), np.int64)
        locate_sorted(self.firsts, np.ascontiguousarray(codes), self.first_page, low, high)
        return low, high


class Levels:
    """All levels of a version."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        bases = tuple(one for one in segments if one.entry.role == "base")
        nothing = np.empty(0, np.uint64)
        firsts = (
            bases[0].firsts if len(bases) == 1 else np.concatenate([nothing, *(one.section("firsts") for one in bases)])
        )
        self.base = Level(bases, 0, firsts, nothing)
        self.all = [self.base]
        self.pages = sum(one.pages for one in bases)
        for segment in segments:
            if segment.entry.role == "delta":
                self.all.append(Level((segment,), self.pages, segment.firsts, segment.section("changed")))
                self.pages += segment.pages
        self.segments = [segment for level in self.all for segment in level.segments]  # in page order

    def locate(self, codes: Codes) -> tuple[Pages, Pages]:
        low, high = self.base.locate(codes)
        for level in self.all[1:]:  # newest last, so the newest wins
            some = np.flatnonzero(among(codes, level.changed))
            low[some], high[some] = level.locate(codes[some])
        return low, high

    def apart(self, codes: Codes, low: Pages, high: Pages) -> Iterator[tuple[Codes, Pages, Pages, Pages]]:
        """Located codes level by level: (codes, index, low, high); within one, codes and pages ascend together."""
        everything = np.arange(len(codes))
        if len(self.all) == 1 and (len(low) == 0 or int((high - low).min()) > 0):
            yield codes, everything, low, high
            return
        edges = [level.first_page for level in self.all] + [self.pages]
        for start, end in itertools.pairwise(edges):
            some = everything[(low >= start) & (low < end) & (high > low)]
            if len(some):
                yield codes[some], some, low[some], high[some]

    def replaced(self, page: int, codes: Codes) -> npt.NDArray[np.bool_]:
        """Which codes a level above this page has changed; page -1 lies below all of them."""
        result = np.zeros(len(codes), np.bool_)
        for level in self.all[1:]:
            if level.first_page > page:
                result |= among(codes, level.changed)
        return result


def among(codes: Codes, ascending: Codes) -> npt.NDArray[np.bool_]:
    """Which codes are in an ascending list."""
    if len(ascending) == 0:
        return np.zeros(len(codes), np.bool_)
    at = np.searchsorted(ascending, codes)
    at[at == len(ascending)] = 0
    return ascending[at] == codes


def wanted(low: Pages, high: Pages) -> tuple[Pages, Pages, Pages]:
    """All pages of ascending ranges [low, high), each once, with the first and last place of the codes on it."""
    from semistream.kernels.reading import wanted_pages

    most = int((high - low).clip(0).sum())
    pages, first, last = (np.empty(most, np.int64) for _ in range(3))
    count = wanted_pages(low, high, pages, first, last)
    return pages[:count], first[:count], last[:count]
