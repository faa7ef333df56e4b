"""What this machine can do at best, measured in the process that was profiled, in nanoseconds of CPU time.

Each is the best of some rounds: others on the machine can only make them slower.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from semistream.rows import address_of, own_memory
from semistream.stores import MasterStore

LINE = 64
PAGE = 4096
_ROUNDS = 5
_STEPS = 200_000
_LEAST_BYTES, _MOST_BYTES = 1 << 20, 2 << 30  # of the memory that is read at random
_COPIED = 32 << 20
_LONG = 256 << 10  # bytes of a long read


@dataclass(frozen=True)
class Limits:
    """Nanoseconds of CPU time."""

    memory_bytes: int  # that were read at random
    line_ns: float  # a cache line from memory, each read waiting for the one before
    line_in_flight_ns: float  # the same with 16 reads in flight
    page_read_ns: float  # one page of 4 KiB out of the page cache, by `preadv2`
    read_ns_per_byte: float  # a byte more in the same call, of 256 KiB
    page_check_ns: float  # the checksum of a page of 4 KiB that is in the processor's cache
    copy_ns_per_byte: float  # bytes copied from memory to memory


def measure(store: MasterStore, memory_bytes: int) -> Limits:
    """The limits, for random reads in as much memory as a cache has, and for pages of a store's first segment."""
    from semistream_lab.profile_kernels import IN_FLIGHT, chase, chase_many, check_pages, read_pages

    size = min(max(memory_bytes, _LEAST_BYTES), _MOST_BYTES) // LINE * LINE
    memory, places = _chains(size, IN_FLIGHT)
    page, long = np.zeros(4 * PAGE, np.uint8), np.zeros(_LONG, np.uint8)
    segment = store.segments[0]
    whole = max(1, (segment.entry.bytes - _LONG) // PAGE)
    offsets = np.sort(np.random.default_rng(1).integers(0, whole, _STEPS // 10)) * PAGE
    file = np.int32(segment.fd)
    source = np.ones(_COPIED, np.uint8)
    target = np.zeros(_COPIED, np.uint8)
    # Each round goes on where the one before ended, so that no line is read twice while caches still have it.
    one = _best(lambda: chase(places[:1], _STEPS), _STEPS)
    many = _best(lambda: chase_many(places, _STEPS // IN_FLIGHT), _STEPS // IN_FLIGHT * IN_FLIGHT)
    del memory
    one_page = _best(lambda: read_pages(file, address_of(page), PAGE, offsets), len(offsets))
    some = np.ascontiguousarray(offsets[::64])
    many_pages = _best(lambda: read_pages(file, address_of(long), _LONG, some), len(some))
    return Limits(
        memory_bytes=size,
        line_ns=one,
        line_in_flight_ns=many,
        page_read_ns=one_page,
        read_ns_per_byte=max(0.0, many_pages - one_page) / (_LONG - PAGE),
        page_check_ns=_best(lambda: check_pages(address_of(page), PAGE, _STEPS), _STEPS),
        copy_ns_per_byte=_best(lambda: np.copyto(target, source), _COPIED),
    )


def _chains(size: int, count: int) -> tuple[mmap.mmap, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Memory in which each line holds the address of another one, in random order; and lines far apart to begin at."""
    memory = own_memory(size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)  # as the tuple cache asks for
    words = np.frombuffer(memory, np.int64)
    order = np.random.default_rng(0).permutation(size // LINE)
    base = address_of(words)
    words[order * (LINE // 8)] = np.roll(order, -1) * LINE + base
    return memory, base + order[np.linspace(0, len(order), count, endpoint=False).astype(np.int64)] * LINE


def _best(work: Callable[[], object], units: int) -> float:
    took = []
    for _ in range(_ROUNDS):
        start = time.thread_time_ns()
        work()
        took.append(time.thread_time_ns() - start)
    return min(took) / units
