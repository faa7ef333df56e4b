"""The tuple cache H_R, as `semistream.kernels.cache` describes it, in private or in shared memory.

Private memory is an anonymous mapping, so untouched parts cost nothing and freed parts go back to the system. Shared
memory is a file (see `semistream.spark.shared`) guarded by a lock: many read, one writes.
"""

import mmap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from semistream import kernels
from semistream.errors import InvariantError
from semistream.joins.output import Indices
from semistream.joins.sizes import cell_bytes
from semistream.keys import Codes, Mask
from semistream.rows import Addresses, PackedRows, RowLayout, address_of, own_memory
from semistream.stores.contract import StoreFacts

MAGIC = 0x53454D4943414348
_WAYS_PER_CELL = 1.2  # ten ways a bucket: some buckets are full before all cells are
_WAY_BYTES = 6.4  # a 64-byte bucket of ten ways
# With these two the hit ratio came closest to perfect LFU (docs/decisions/0005-cache-policy.md): a sketch smaller than
# the misses of a period is noise, a period much shorter cannot tell the keys at the cache's edge apart.
_SKETCH_PER_CELL = 3.0
_LEAST_CELLS = 8
_HEADER_BYTES = 32 * 8
_CELL_ROOM = 1.1  # times a key's mean rows; longer ones take several cells
_PERIOD = 40  # arrivals a cell before the counts are halved
WARMING_SECONDS = 60  # after which whoever fills a cache anew is taken for dead
_LONG_AGO = 1_000  # added to the time, so that 0 lies further back
_FREQUENT = (64, 16, 4, 0)  # counts from which on keys are listed together


class TupleCache:
    """Rows of hot keys, and keys known to be absent."""

    def __init__(self, memory: mmap.mmap, layout: RowLayout, shape: dict[str, Any]) -> None:
        self._kernels = kernels.cache
        _ = kernels.cache_admission, kernels.cache_values  # imported now, not while others wait for a lock
        self._memory, self.layout, self.shape = memory, layout, shape
        self.header: npt.NDArray[np.int64] = np.frombuffer(memory, np.int64, kernels.cache.HEADER_FIELDS)
        cell_bytes, simple = shape["cell_bytes"], shape["simple"]
        cells, buckets, sketch, self.table_bytes = self.geometry(shape["size"], cell_bytes)
        value_at = kernels.cache.SIMPLE_VALUE_AT if simple else kernels.cache.CHAIN_VALUE_AT
        # What never changes: the header's first fields, from `MAGIC` to `CELLS_AT`.
        self._fixed = [MAGIC, cells, buckets, sketch, cell_bytes, value_at, int(simple)]
        self._fixed += [_HEADER_BYTES, self.table_bytes - sketch, self.table_bytes]
        self.cell_cost = _cell_cost(cell_bytes)

    @classmethod
    def private(cls, size: int, layout: RowLayout, cell_bytes: int, *, simple: bool) -> "TupleCache":
        memory = own_memory(size)
        if size >= 4 << 20:
            memory.madvise(mmap.MADV_HUGEPAGE)  # random probes of a large table miss the TLB otherwise
        cache = cls(memory, layout, {"size": size, "cell_bytes": cell_bytes, "simple": simple})
        cache.reset()
        return cache

    @staticmethod
    def geometry(size: int, cell_bytes: int) -> tuple[int, int, int, int]:
        """How many cells, buckets and sketch counters fit into ``size`` bytes, and where the cells begin."""
        room = size - _HEADER_BYTES - 128
        cells = int(room / _cell_cost(cell_bytes)) - 1
        buckets = int(cells * _WAYS_PER_CELL / 10) + 1
        sketch = (max(64, int(cells * _SKETCH_PER_CELL)) + 7) & ~7
        return cells, buckets, sketch, _HEADER_BYTES + 64 * buckets + sketch

    @classmethod
    def holds_anything(cls, size: int, cell_bytes: int) -> bool:
        return size > 0 and cls.geometry(size, cell_bytes)[0] >= _LEAST_CELLS

    def reset(self) -> None:
        """Start afresh. The cells need no clearing: those above ``top`` are never looked at."""
        k, h = self._kernels, self.header
        h[:] = 0
        h[k.FREE_HEAD], h[k.LIMIT] = k.NONE, self._fixed[k.CELLS]
        h[: len(self._fixed)] = self._fixed
        np.frombuffer(self._memory, np.uint8)[self._fixed[k.BUCKETS_AT] : self._fixed[k.CELLS_AT]] = 0

    @property
    def sound(self) -> bool:
        """Is the header as it should be? Checked before every use: a damaged one would lead the kernels astray."""
        k, h, fixed = self._kernels, self.header.tolist(), self._fixed
        return bool(
            h[: len(fixed)] == fixed
            and 0 <= h[k.TOP] <= h[k.LIMIT] <= fixed[k.CELLS]
            and 0 <= h[k.LIVE] <= h[k.TOP]
            and 0 <= h[k.FREE_COUNT] <= h[k.TOP]
            and 0 <= h[k.HAND] < fixed[k.BUCKETS]
            and (h[k.FREE_HEAD] == k.NONE or 0 <= h[k.FREE_HEAD] < fixed[k.CELLS])
            and h[k.COUNTED] >= 0
        )

    @contextmanager
    def reading(self) -> Iterator[bool]:
        """While held, addresses from `probe` stay valid; `writing` is for one alone. False: it must not be used."""
        if not self.sound:
            self.reset()
        yield True

    writing = reading

    @property
    def rows(self) -> int:
        """Keys in the cache, those known to be absent included."""
        return int(self.header[self._kernels.LIVE])

    @property
    def used_bytes(self) -> int:
        """Memory touched: the tables, and the cells up to the highest used."""
        return self.table_bytes + int(self.header[self._kernels.TOP]) * self.shape["cell_bytes"]

    @property
    def free_cells(self) -> int:
        k, h = self._kernels, self.header
        return int(h[k.FREE_COUNT] + h[k.LIMIT] - h[k.TOP])

    @property
    def full(self) -> bool:
        return self.free_cells <= 0

    @property
    def _period(self) -> int:
        """Arrivals after which the counts are halved."""
        return _PERIOD * max(1024, int(self.header[self._kernels.LIMIT]))

    @property
    def arrivals_counted(self) -> int:
        return int(self.header[self._kernels.COUNTED])

    @property
    def longest(self) -> int:
        """Bytes of the longest value that was taken."""
        return int(self.header[self._kernels.LONGEST])

    def probe(self, codes: Codes, valid: Mask, staging: npt.NDArray[np.uint8] | None = None) -> tuple[Addresses, int]:
        """Address of each key's value, 1 when the key cannot match, 0 when it is not here; and the number of hits. Rows
        of fixed width are copied to the ``staging``, if there is one.
        """
        out = np.empty(len(codes), np.int64)
        place, width = (0, 0) if staging is None else (address_of(staging), self.layout.head)
        return out, int(self._kernels.probe(self.header, codes, valid, out, place, width))

    def spread(self, values: Addresses) -> tuple[Indices, Addresses, npt.NDArray[np.uint8]]:
        """(value index, row address) for every row of these values; the third result keeps copied rows alive."""
        head, last = self.layout.head, self.layout.last_variable_slot
        counts, sizes = np.empty(len(values), np.int64), np.empty(len(values), np.int64)
        kernels.cache_values.measure_values(self.header, values, head, last, counts, sizes)
        buffer = np.empty(int(sizes.sum()), np.uint8)
        if len(buffer):
            targets = np.where(sizes > 0, np.cumsum(sizes) - sizes + address_of(buffer), 0)
            kernels.cache_values.copy_values(self.header, values, targets, head, last, counts)
            values = np.where(targets > 0, targets, values)
        total = int(counts.sum())
        index, rows = np.empty(total, np.int64), np.empty(total, np.int64)
        kernels.cache_values.spread_values(values, counts, head, last, index, rows)
        return index, rows, buffer

    def offer(self, codes: Codes, packed: PackedRows, first: Indices, last: Indices, least: int, longest: int) -> None:
        """Offer groups of packed rows: rows first[i] to last[i] of ``packed`` for codes[i]."""
        k, h = self._kernels, self.header
        starts = packed.offsets[first]
        lengths = packed.offsets[last] - starts
        kernels.cache_admission.admit(h, codes, starts + address_of(packed.buffer), lengths, least, longest)
        if h[k.COUNTED] > self._period:
            k.halve(h)

    def offer_absent(self, codes: Codes, least: int) -> None:
        nothing = np.zeros(len(codes), np.int64)
        kernels.cache_admission.admit(self.header, codes, nothing, nothing, least, 0)

    def hot_keys(self, at_once: int) -> Iterator[tuple[Codes, npt.NDArray[np.uint8]]]:
        """The keys whose rows are here and how often they came, so many at a time, about in the order of their counts.
        Others may use the cache meanwhile: what changes may be left out or come twice.
        """
        codes, counts = np.empty(at_once, np.uint64), np.empty(at_once, np.uint8)
        for least, below in zip(_FREQUENT, (256, *_FREQUENT), strict=False):
            bucket = np.zeros(1, np.int64)
            while bucket[0] < self.header[self._kernels.BUCKETS]:
                with self.reading() as usable:
                    if not usable:
                        return
                    count = int(kernels.cache_admission.hot_keys(self.header, least, below, codes, counts, bucket))
                yield codes[:count], counts[:count]

    def expect(self, codes: Codes, counts: npt.NDArray[np.uint8], arrivals: int) -> None:
        """Take it that these keys have come so often among so many arrivals: `offer` will find them as frequent. More
        arrivals than a period has, in a larger cache, must not halve the counts.
        """
        kernels.cache_admission.expect(self.header, codes, counts, min(arrivals, self._period))

    def take_warming(self) -> bool:
        """Is nobody else filling this cache with what was hot in an earlier run? Then the caller has to."""
        h, warmed, now = self.header, self._kernels.WARMED, int(time.monotonic()) + _LONG_AGO
        if h[warmed] == self._kernels.WARM or now < h[warmed] + WARMING_SECONDS:
            return False  # without the lock: it is asked for every block of a task
        with self.writing() as usable:
            mine = usable and h[warmed] != self._kernels.WARM and now >= h[warmed] + WARMING_SECONDS
            if mine:
                h[warmed] = now
            return bool(mine)

    def end_warming(self, *, done: bool) -> None:
        self.header[self._kernels.WARMED] = self._kernels.WARM if done else 0

    @property
    def warm(self) -> bool:
        """Does it hold all that it got from an earlier run?"""
        return bool(self.header[self._kernels.WARMED] == self._kernels.WARM)

    def discard(self, codes: Codes) -> None:
        kernels.cache_admission.discard(self.header, codes)

    def limit_bytes(self, size: int) -> int:
        """Keep `used_bytes` within a size, or the least that a cache needs; memory beyond goes back to the system."""
        k, h, cell_bytes = self._kernels, self.header, self.shape["cell_bytes"]
        size = max(size, self.table_bytes + _LEAST_CELLS * cell_bytes)
        cells = min(self._fixed[k.CELLS], (size - self.table_bytes) // cell_bytes)
        if cells < h[k.TOP]:
            kernels.cache_admission.limit_cells(h, cells)
            page = mmap.PAGESIZE
            start = -(-(self.table_bytes + cells * cell_bytes) // page) * page
            if start < len(self._memory):
                self._memory.madvise(mmap.MADV_DONTNEED, start, len(self._memory) - start)
        h[k.LIMIT] = cells
        return size

    def check(self) -> None:
        """Every entry is found where it should be; live, chained and free cells add up."""
        k, h = self._kernels, self.header
        found = np.zeros(4, np.int64)
        k.check_structure(h, found)
        live, held, free, lost = found.tolist()
        if live != h[k.LIVE] or free != h[k.FREE_COUNT] or lost or held + free != h[k.TOP]:
            raise InvariantError(
                f"tuple cache: {live} live entries found, {int(h[k.LIVE])} counted; {free} free cells found, "
                f"{int(h[k.FREE_COUNT])} counted; {held} held, {int(h[k.TOP])} in use; {lost} not reachable"
            )


def _cell_cost(cell_bytes: int) -> float:
    """Bytes that one cached cell takes, with its share of the tables."""
    return cell_bytes + _WAY_BYTES * _WAYS_PER_CELL + _SKETCH_PER_CELL


def key_cell(facts: StoreFacts, layout: RowLayout) -> tuple[int, bool]:
    """The size of a cell with its header, and whether values are ``simple``: one row of fixed width each. Where they
    are not, the size is what a key's rows take on average.
    """
    if facts.unique and layout.fixed:
        return kernels.cache.SIMPLE_VALUE_AT + layout.head, True
    return kernels.cache.CHAIN_VALUE_AT + max(16, cell_bytes(facts, layout, facts.rows_per_key, _CELL_ROOM)), False
