"""Reading pages: a plan of few large requests, several in flight, the next chunk loading while this one is used.

Pages are read by ``pread`` into a fixed, page-aligned buffer that is charged to the budget. Through the page cache the reader first takes what is cached without
waiting (RWF_NOWAIT) and only then waits for the rest, several requests at a time; with O_DIRECT all requests go to
the pool at once.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from semistream.errors import CorruptStoreError
from semistream.rows import Addresses, address_of
from semistream.stores.segment import DATA_AT, Segment

if TYPE_CHECKING:
    from semistream.stores.paged import MasterStore

Pages = npt.NDArray[np.int64]
LONGEST_REQUEST = 512 * 1024
DEFAULT_BUFFER = 4 << 20
_pools: dict[int, ThreadPoolExecutor] = {}


def _pool() -> ThreadPoolExecutor:
    """One pool of readers a process: never made before a fork, never shared across one."""
    pid = os.getpid()
    if pid not in _pools:
        _pools.clear()
        _pools[pid] = ThreadPoolExecutor(16, thread_name_prefix="semistream-read")
    return _pools[pid]


@dataclass
class ReadCounters:
    """What reading has cost so far."""

    pages: int = 0
    requests: int = 0
    bytes: int = 0


@dataclass
class LoadedPages:
    """Pages in memory, valid until the next are asked for: page number and address of each."""

    pages: Pages
    addresses: Addresses


@dataclass
class _Chunk:
    segment: Segment
    pages: Pages
    at: npt.NDArray[np.int64]
    ranges: npt.NDArray[np.int64]
    strides: npt.NDArray[np.int64] = field(repr=False)
    positions: npt.NDArray[np.int64] = field(repr=False)


class PageReader:
    """Reads pages of one store into one buffer."""

    def __init__(self, store: MasterStore, buffer_bytes: int = DEFAULT_BUFFER, reads_in_flight: int = 8) -> None:
        least = store.largest_page
        self.store = store
        self.double = buffer_bytes >= 2 * least
        self._half = max(least, buffer_bytes // (2 if self.double else 1)) & ~4095
        self._memory = mmap.mmap(-1, self._half * (2 if self.double else 1))
        self._address = address_of(np.frombuffer(self._memory, np.uint8))
        self.reads_in_flight = reads_in_flight
        self.counters = ReadCounters()
        self._cold = store.direct

    @staticmethod
    def buffer_bytes(store: MasterStore, wanted: int) -> int:
        """What a reader with this wish will really take."""
        return max(store.largest_page, wanted) & ~4095

    def read(self, pages: Pages, gap_bytes: int | None = None) -> Iterator[LoadedPages]:
        """Load ascending page numbers, as many at a time as the buffer holds; checksums are verified."""
        gap = self.store.device.gap_bytes if gap_bytes is None else gap_bytes
        chunks = self._plan(pages, gap)
        waiting: list[Future[None]] | None = None
        for number, chunk in enumerate(chunks):
            half = number & 1 if self.double else 0
            base = self._address + half * self._half
            if waiting is None:
                waiting = self._start(chunk, base)
            for future in waiting:
                future.result()
            waiting = None
            if self._cold and self.double and number + 1 < len(chunks):
                waiting = self._start(chunks[number + 1], self._address + (1 - half) * self._half)
            addresses = base + chunk.at
            try:
                self._check(chunk.segment, addresses, chunk.strides * self.store.page_bytes, chunk.positions)
            except CorruptStoreError:
                for future in waiting or []:
                    future.result()  # nothing may write into the buffer after it is given up
                raise
            self.counters.pages += len(chunk.pages)
            self.counters.requests += len(chunk.ranges)
            self.counters.bytes += int(chunk.ranges[:, 1].sum())
            yield LoadedPages(chunk.pages, addresses)

    def read_each(self, pages: Pages) -> Iterator[LoadedPages]:
        """Load pages in the given order, also the same one several times, with a request of its own for each."""
        stride = self.store.page_bytes
        places = np.empty((len(pages), 3), np.int64)  # segment, stride, length in strides
        for number, segment in enumerate(self.store.segments):
            mine = np.flatnonzero((pages >= self.store.edges[number]) & (pages < self.store.edges[number + 1]))
            places[mine, 0] = number
            places[mine, 1], places[mine, 2] = segment.places(pages[mine] - self.store.edges[number])
        ends = np.cumsum(places[:, 2]) * stride
        start = 0
        while start < len(pages):
            base = int(ends[start - 1]) if start else 0
            end = max(start + 1, int(np.searchsorted(ends, base + self._half, "right")))
            some = places[start:end]
            lengths = some[:, 2] * stride
            addresses = self._address + ends[start:end] - base - lengths
            for number in np.unique(some[:, 0]):
                mine = np.flatnonzero(some[:, 0] == number)
                offsets = DATA_AT + some[mine, 1] * stride
                segment = self.store.segments[number]
                _read(segment, addresses[mine], lengths[mine], offsets, 0, len(mine))
                self._check(segment, addresses[mine], lengths[mine], np.ascontiguousarray(some[mine, 1]))
            self.counters.pages += end - start
            self.counters.requests += end - start
            self.counters.bytes += int(lengths.sum())
            yield LoadedPages(pages[start:end], addresses)
            start = end

    @staticmethod
    def _check(segment: Segment, addresses: Addresses, lengths: Pages, positions: Pages) -> None:
        from semistream.kernels.pages import first_damaged

        bad = first_damaged(addresses, lengths, positions)
        if bad >= 0:
            raise CorruptStoreError(
                f"{segment.path}: page {int(positions[bad])} is damaged (wrong checksum); "
                "restore the file from a copy or build the store again"
            )

    def _plan(self, pages: Pages, gap: int) -> list[_Chunk]:
        from semistream.kernels.reading import plan_reads

        stride = self.store.page_bytes
        chunks = []
        for segment, local, numbers in self.store.by_segment(pages):
            starts, strides = segment.places(local)
            offsets = DATA_AT + starts * stride
            ranges = np.empty((len(local), 4), np.int64)
            chunk_of = np.empty(len(local), np.int64)
            at = np.empty(len(local), np.int64)
            count = plan_reads(offsets, strides * stride, gap, LONGEST_REQUEST, self._half, ranges, chunk_of, at)
            ranges = ranges[:count]
            last = int(chunk_of[-1]) if len(local) else -1
            edges = np.searchsorted(chunk_of, np.arange(last + 2))
            range_edges = np.searchsorted(ranges[:, 3], np.arange(last + 2))
            for c in range(last + 1):
                some = slice(edges[c], edges[c + 1])
                chunks.append(
                    _Chunk(
                        segment,
                        numbers[some],
                        at[some],
                        ranges[range_edges[c] : range_edges[c + 1]],
                        strides[some],
                        starts[some],
                    )
                )
        return chunks

    def _start(self, chunk: _Chunk, base: int) -> list[Future[None]]:
        """Begin the reads of a chunk; what the page cache has is there on return."""
        from semistream.kernels.reading import read_cached

        addresses = base + chunk.ranges[:, 2]
        lengths = np.ascontiguousarray(chunk.ranges[:, 1])
        offsets = np.ascontiguousarray(chunk.ranges[:, 0])
        if not self.store.direct:
            pending = np.empty(len(lengths), np.int64)
            count = read_cached(chunk.segment.fd, addresses, lengths, offsets, pending)
            self._cold = count > 0
            if count == 0:
                return []
            left = pending[:count]
            addresses, lengths, offsets = addresses[left], lengths[left], offsets[left]
        parts = min(self.reads_in_flight, len(lengths))
        edges = [len(lengths) * i // parts for i in range(parts + 1)]
        return [
            _pool().submit(_read, chunk.segment, addresses, lengths, offsets, first, last)
            for first, last in zip(edges[:-1], edges[1:], strict=True)
        ]


def _read(segment: Segment, addresses: Addresses, lengths: Pages, offsets: Pages, first: int, last: int) -> None:
    from semistream.kernels.reading import read_ranges

    failed = read_ranges(segment.fd, addresses, lengths, offsets, first, last)
    if failed < 0:
        return
    # Ask again through Python, for the operating system's own words.
    with mmap.mmap(-1, int(lengths[failed])) as memory:
        got = os.preadv(segment.fd, [memory], int(offsets[failed]))
    raise CorruptStoreError(
        f"{segment.path}: read of {int(lengths[failed]):,} bytes at {int(offsets[failed]):,} gave {got:,}; the file is cut short"
    )
