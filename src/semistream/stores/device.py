"""What a read costs here: seconds per request and seconds per byte, measured when a store is built.

The read plan needs only their ratio: a gap is read through when its bytes cost less than a new request.
"""

import mmap
import os
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from semistream import kernels
from semistream.rows import address_of


@dataclass(frozen=True)
class Device:
    """Cost of a read as ``request_seconds + bytes × byte_seconds``; the defaults are those of a warm page cache."""

    request_seconds: float = 0.9e-6
    byte_seconds: float = 0.12e-9

    @property
    def gap_bytes(self) -> int:
        """The largest gap that is cheaper to read than to skip."""
        return min(1 << 20, int(self.request_seconds / self.byte_seconds))

    def seconds(self, requests: float, size: float) -> float:
        return requests * self.request_seconds + size * self.byte_seconds


WARM = Device()
_DIRECT = Device(20e-6, 0.35e-9)  # past the page cache, where it cannot be measured
_IN_FLIGHT = 8


def measure_both(path: Path, page_bytes: int) -> dict[str, float]:
    """What reads of a file cost, through the page cache and past it, as the manifest has it."""
    cached = measure(path, page_bytes, direct=False)
    try:
        return as_numbers(cached, measure(path, page_bytes, direct=True))
    except OSError:  # this file system has no O_DIRECT
        return as_numbers(cached, _DIRECT)


def measure(path: Path, page_bytes: int, *, direct: bool) -> Device:
    """Time random page reads and long reads of a file; a fraction of a second.

    A read from the page cache is the processor's work, so its time is the thread's own: others that are busy meanwhile
    do not make it dearer. With O_DIRECT the clock counts, and requests are spread over several threads as in a real
    sweep, so the figure is the cost of a request among others in flight, not its latency.
    """
    from concurrent.futures import ThreadPoolExecutor

    size = os.path.getsize(path) // page_bytes * page_bytes
    long_bytes = max(512 * 1024, 4 * page_bytes)
    if size < 4 * long_bytes:
        return _DIRECT if direct else WARM
    fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    threads, clock = (_IN_FLIGHT, time.perf_counter) if direct else (1, time.thread_time)
    try:
        memory = mmap.mmap(-1, threads * long_bytes)
        base = address_of(np.frombuffer(memory, np.uint8))
        chooser = np.random.default_rng(1)

        def timed(length: int, requests: int) -> float:
            offsets = chooser.integers(0, (size - length) // page_bytes, requests) * page_bytes
            lengths = np.full(requests, length, np.int64)
            addresses = base + (np.arange(requests) * threads // requests) * long_bytes
            edges = [requests * i // threads for i in range(threads + 1)]
            start = clock()
            with ThreadPoolExecutor(threads) as pool:
                run = pool.map if direct else map
                read = partial(kernels.reading.read_ranges, fd, addresses, lengths, offsets)
                list(run(read, edges, edges[1:]))
            return (clock() - start) / requests

        timed(page_bytes, 64)
        short = min(timed(page_bytes, 512 if direct else 4096) for _ in range(3))
        long = min(timed(long_bytes, 64) for _ in range(3))
    finally:
        os.close(fd)
    byte_seconds = max(1e-11, (long - short) / (long_bytes - page_bytes))
    return Device(max(1e-8, short - page_bytes * byte_seconds), byte_seconds)


def as_numbers(cached: Device, direct: Device) -> dict[str, float]:
    devices = {"cached": cached, "direct": direct}
    return {f"{kind}_{name}": value for kind, device in devices.items() for name, value in asdict(device).items()}


def from_numbers(numbers: dict[str, float], *, direct: bool) -> Device:
    prefix = "direct_" if direct else "cached_"
    return Device(**{name.removeprefix(prefix): value for name, value in numbers.items() if name.startswith(prefix)})
