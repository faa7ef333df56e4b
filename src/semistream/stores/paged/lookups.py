"""Finding rows in a paged store: which pages hold a code, and where on them its rows lie."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from semistream.keys import Codes
from semistream.rows import Addresses, PackedRows, Projection
from semistream.stores.contract import Found, Pages
from semistream.stores.paged.levels import wanted
from semistream.stores.paged.reading import PageBuffer


class MasterReader(PageBuffer):
    """The reader of a `MasterStore`; see `semistream.stores.contract.PageReader`."""

    def match(self, codes: Codes) -> Found:
        """See `Reader.match`."""
        low, high = self.store.locate(codes)
        for level_codes, index, level_low, level_high in self.store.located.apart(codes, low, high):
            pages, first, last = wanted(level_low, level_high)
            done = 0
            for addresses in self.read(pages):
                some = slice(done, done + len(addresses))
                done = some.stop
                found, rows = self._match_loaded(addresses, first[some], last[some], level_codes)
                yield index[found], rows

    def match_each(self, codes: Codes) -> Found:
        """See `Reader.match_each`: the baseline of the papers."""
        order = np.argsort(codes, kind="stable")
        low, high = np.empty(len(codes), np.int64), np.empty(len(codes), np.int64)
        low[order], high[order] = self.store.locate(codes[order])
        sizes = high - low
        wanted_by = np.repeat(np.arange(len(codes)), sizes)
        pages = np.repeat(low, sizes) + np.arange(len(wanted_by)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        done = 0
        for addresses in self.read_each(pages):
            one = wanted_by[done : done + len(addresses)]
            done += len(addresses)
            yield self._match_loaded(addresses, one, one + 1, codes)

    def collect(
        self,
        codes: Codes,
        projection: Projection,
        staging: npt.NDArray[np.uint8],
        most_codes: int,
        whole: npt.NDArray[np.bool_],
    ) -> Iterator[tuple[npt.NDArray[np.int64], PackedRows]]:
        """See `Reader.collect`; a code is whole when all its rows lie on one page."""
        for start in range(0, len(codes), most_codes):
            some = codes[start : start + most_codes]
            located = self.store.locate(some)
            whole[start : start + len(some)] = located[1] - located[0] == 1
            for level_codes, index, low, high in self.store.located.apart(some, *located):
                pages, first, last = wanted(low, high)
                for found, rows in self.collect_pages(pages, first, last, level_codes, projection, staging, most_codes):
                    yield start + index[found], rows

    def rows(self) -> Iterator[tuple[Codes, Addresses]]:
        """See `Reader.rows`."""
        for first, firsts in self.store.levels():
            yield from self.page_rows(first, first + len(firsts))

    def page_rows(self, first: int, last: int) -> Iterator[tuple[Codes, Addresses]]:
        """See `PageReader.page_rows`; rows that a newer level replaces are left out."""
        levels = self.store.located
        for codes, rows in self.all_rows(np.arange(first, last)):
            if len(levels.all) > 1:
                keep = ~levels.replaced(first, codes)
                rows, codes = rows[keep], codes[keep]
            yield codes, rows

    def all_rows(self, pages: Pages) -> Iterator[tuple[Codes, Addresses]]:
        """Every row on these ascending pages, those that a newer level replaces too."""
        from semistream.kernels import pages as kernels

        for addresses in self.read(pages):
            count = kernels.count_rows(addresses)
            rows, codes = np.empty(count, np.int64), np.empty(count, np.uint64)
            kernels.list_rows(addresses, self.store.layout.row_width, rows, codes)
            yield codes, rows

    def _match_loaded(
        self, addresses: Addresses, first: Pages, last: Pages, codes: Codes
    ) -> tuple[npt.NDArray[np.int64], Addresses]:
        from semistream.kernels import pages as kernels

        most = kernels.count_rows(addresses)
        rows, found = np.empty(most, np.int64), np.empty(most, np.int64)
        count = kernels.match_pages(addresses, first, last, codes, self.store.layout.row_width, rows, found)
        return found[:count], rows[:count]
