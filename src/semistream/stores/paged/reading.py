"""Reading pages: a plan of few large requests, several in flight, the next chunk loading while this one is used.

Pages are read by ``pread`` into a fixed, page-aligned buffer that is charged to the budget. Through the page cache a
range is first asked for without waiting (RWF_NOWAIT); what is not cached, and everything with O_DIRECT, is read chunk
by chunk, several requests at a time.
"""

import itertools
import mmap
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from semistream import kernels
from semistream.durable import explained
from semistream.keys import Codes
from semistream.rows import Addresses, PackedRows, Projection, address_of, own_memory
from semistream.stats import ReadCounters
from semistream.stores.contract import Bytes, Indices, Packed, Pages, portions
from semistream.stores.paged.segment import DATA_AT, Segment

if TYPE_CHECKING:
    from semistream.stores.paged.store import MasterStore

LONGEST_REQUEST = 256 * 1024  # stays in the processor's cache while it is searched


@lru_cache(1)
def _pool(process: int) -> ThreadPoolExecutor:  # noqa: ARG001
    """One pool of readers per process: never made before a fork, never shared across one."""
    return ThreadPoolExecutor(16, thread_name_prefix="semistream-read")


@dataclass(frozen=True)
class _Plan:
    """Requests for pages of one segment: ranges[r] = [file offset, bytes, place in its chunk, chunk]."""

    segment: Segment
    asked: slice  # which of the pages asked for these are
    starts: Pages
    sizes: Pages
    ranges: Indices
    first_page: Indices

    def chunk_end(self, first: int) -> int:
        """The range after the last of the chunk that range ``first`` belongs to."""
        return int(np.searchsorted(self.ranges[:, 3], self.ranges[first, 3], "right"))


class PageBuffer:
    """Reads pages of one store into one buffer."""

    def __init__(self, store: "MasterStore", buffer_bytes: int, reads_in_flight: int, *, double: bool) -> None:
        """``double`` halves the buffer: one half loads while the other is used."""
        least = store.facts.largest_page
        self.store = store
        self.double = double and buffer_bytes >= 2 * least
        self._half = max(least, buffer_bytes // (2 if self.double else 1)) & ~4095
        self._memory = own_memory(self._half * (2 if self.double else 1))
        self._address = address_of(np.frombuffer(self._memory, np.uint8))
        self.reads_in_flight = reads_in_flight
        self.counters = ReadCounters()

    def read(self, pages: Pages) -> Iterator[tuple[slice, Addresses]]:
        """Load and verify ascending pages, as many at a time as the buffer holds: which, and where until the next."""
        for plan in self._plans(pages):
            for base, first, last in self._chunks(plan, 0):
                low, high = plan.first_page[first], plan.first_page[last]
                some = slice(low, high)
                ranges = np.repeat(plan.ranges[first:last], np.diff(plan.first_page[first : last + 1]), axis=0)
                addresses = base + ranges[:, 2] + DATA_AT + plan.starts[some] * self.store.page_bytes - ranges[:, 0]
                _check(plan.segment, addresses, plan.sizes[some], plan.starts[some])
                yield slice(plan.asked.start + low, plan.asked.start + high), addresses

    def read_each(self, pages: Pages) -> Iterator[tuple[slice, Addresses]]:
        """As `read`, for pages in any order, also the same one several times, with a request of its own for each."""
        store, stride = self.store, self.store.page_bytes
        places = np.empty((len(pages), 3), np.int64)  # segment, stride, length in strides
        for number, segment in enumerate(store.segments):
            mine = np.flatnonzero((pages >= store.edges[number]) & (pages < store.edges[number + 1]))
            places[mine, 0] = number
            places[mine, 1], places[mine, 2] = segment.places(pages[mine] - store.edges[number])
        for start, end in portions(places[:, 2] * stride, self._half):
            some = places[start:end]
            lengths = some[:, 2] * stride
            addresses = self._address + np.cumsum(lengths) - lengths
            for number in np.unique(some[:, 0]):
                mine = np.flatnonzero(some[:, 0] == number)
                segment = store.segments[number]
                _read(segment, addresses[mine], lengths[mine], DATA_AT + some[mine, 1] * stride, 0, len(mine))
                _check(segment, addresses[mine], lengths[mine], some[mine, 1])
            self._count(end - start, end - start, int(lengths.sum()))
            yield slice(start, end), addresses

    def collect_pages(
        self,
        pages: Pages,
        first: Indices,
        last: Indices,
        codes: Codes,
        projection: Projection,
        staging: Bytes,
        most_rows: int,
    ) -> Packed:
        """See `Reader.collect`: rows of codes[first[p]:last[p]] on page p; up to ``most_rows`` per piece, or a page."""
        source, target = projection.source, projection.target
        rows_on_a_page = self.store.facts.largest_page // (8 + source.head)
        offsets = np.zeros(min(len(staging) // max(1, target.head), most_rows + rows_on_a_page) + 2, np.int64)
        index = np.empty(len(offsets) - 1, np.int64)
        state = np.zeros(5, np.int64)

        def run(plan: _Plan, wanted: Indices, fd: int, base: int, end: int) -> int:
            read = (np.int32(fd), base, end, plan.ranges, plan.first_page, wanted, codes, source.row_width)
            output = (address_of(staging), len(staging), offsets, index, state)
            status: int = kernels.pages.collect(*read, *projection.arguments, *output)
            if status == kernels.pages.DAMAGED:
                plan.segment.damaged(f"page {plan.starts[state[kernels.pages.PAGE]]} has a wrong checksum")
            return status

        def piece() -> tuple[Indices, PackedRows]:
            rows = int(state[kernels.pages.ROWS])
            state[kernels.pages.ROWS] = state[kernels.pages.BYTES] = 0
            return index[:rows], PackedRows(staging, offsets[: rows + 1])

        for plan in self._plans(pages):
            places = DATA_AT + plan.starts * self.store.page_bytes
            wanted = np.stack([places, plan.sizes, plan.starts, first[plan.asked], last[plan.asked]], axis=1)
            state[:3] = 0
            count = len(plan.ranges)
            while not self.store.direct and state[kernels.pages.RANGE] < count:
                status = run(plan, wanted, plan.segment.fd, self._address, count)
                if status == kernels.pages.FULL:
                    yield piece()
                elif status == kernels.pages.COLD:
                    break
            warm = int(state[kernels.pages.RANGE])
            self._count(int(plan.first_page[warm]), warm, int(plan.ranges[:warm, 1].sum()))
            # What is not in the page cache, or read past it: chunks of requests in flight.
            for base, _, end in self._chunks(plan, warm):
                while run(plan, wanted, -1, base, end) == kernels.pages.FULL:
                    yield piece()
        if state[kernels.pages.ROWS]:
            yield piece()

    def _plans(self, pages: Pages) -> Iterator[_Plan]:
        gap, stride, edges = self.store.facts.device.gap_bytes, self.store.page_bytes, self.store.edges
        longest = min(LONGEST_REQUEST, self._half)
        cuts = np.searchsorted(pages, edges)
        for number, segment in enumerate(self.store.segments):
            asked = slice(cuts[number], cuts[number + 1])
            mine = pages[asked]
            if len(mine) == 0:
                continue
            starts, strides = segment.places(mine - edges[number])
            ranges = np.empty((len(mine), 4), np.int64)
            first_page = np.empty(len(mine) + 1, np.int64)
            places, sizes = DATA_AT + starts * stride, strides * stride
            count = kernels.reading.plan_reads(places, sizes, gap, longest, self._half, ranges, first_page)
            yield _Plan(segment, asked, starts, sizes, ranges[:count], first_page[: count + 1])

    def _chunks(self, plan: _Plan, first: int) -> Iterator[tuple[int, int, int]]:
        """Load chunk after chunk: (address that the ranges' places count from, first range, last range)."""
        waiting: list[Future[None]] = []
        half = 0
        try:
            while first < len(plan.ranges):
                base = self._address + half * self._half
                last = plan.chunk_end(first)
                if not waiting:
                    waiting = self._start(plan, first, last, base)
                for future in waiting:
                    future.result()
                waiting = []
                if self.double and last < len(plan.ranges):
                    other = self._address + (1 - half) * self._half
                    waiting = self._start(plan, last, plan.chunk_end(last), other)
                    half = 1 - half
                pages = int(plan.first_page[last] - plan.first_page[first])
                self._count(pages, last - first, int(plan.ranges[first:last, 1].sum()))
                yield base, first, last
                first = last
        finally:
            for future in waiting:  # nothing may write into the buffer after it is given up
                future.exception()

    def _start(self, plan: _Plan, first: int, last: int, base: int) -> list[Future[None]]:
        ranges = plan.ranges[first:last]
        parts = min(self.reads_in_flight, len(ranges))
        edges = [len(ranges) * i // parts for i in range(parts + 1)]
        addresses = base + ranges[:, 2]
        lengths, offsets = np.ascontiguousarray(ranges[:, 1]), np.ascontiguousarray(ranges[:, 0])
        if parts == 1 and not self.double:  # nothing to overlap with: another thread would only cost its wake-up
            _read(plan.segment, addresses, lengths, offsets, 0, len(ranges))
            return []
        return [
            _pool(os.getpid()).submit(_read, plan.segment, addresses, lengths, offsets, start, end)
            for start, end in itertools.pairwise(edges)
        ]

    def _count(self, pages: int, requests: int, size: int) -> None:
        self.counters.pages += pages
        self.counters.requests += requests
        self.counters.bytes += size


def _read(segment: Segment, addresses: Addresses, lengths: Pages, offsets: Pages, first: int, last: int) -> None:
    failed = kernels.reading.read_ranges(segment.fd, addresses, lengths, offsets, first, last)
    if failed < 0:
        return
    # Ask again through Python, for the operating system's own words.
    with mmap.mmap(-1, int(lengths[failed])) as memory, explained("read", segment.path):
        got = os.preadv(segment.fd, [memory], int(offsets[failed]))
    segment.damaged(f"it is cut short: of {lengths[failed]:,} bytes at {offsets[failed]:,} there are {got:,}")


def _check(segment: Segment, addresses: Addresses, lengths: Pages, positions: Pages) -> None:
    bad = kernels.pages.first_damaged(*map(np.ascontiguousarray, (addresses, lengths, positions)))
    if bad >= 0:
        segment.damaged(f"page {positions[bad]} has a wrong checksum")
