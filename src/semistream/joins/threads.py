"""Work in several threads for one join: it is given back in order or as it comes, and none of it outlives the join.

The kernels, numpy and Arrow release the GIL, so a thread is enough for a core. Threads are shared by all joins of a
process, and none is made before it is needed: a process that was forked makes its own.
"""

import os
import queue
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

T = TypeVar("T")
LEAST_ROWS = 1024  # of what a thread is given: for fewer, waking it costs more than it does
_MOST_THREADS = 1024  # of all joins together; a thread is made when there is work for it
_pools: dict[int, ThreadPoolExecutor] = {}


def piece_rows(rows: int, most: int, threads: int) -> int:
    """Rows of a piece of a batch: every thread gets as many pieces, unless the batch is small.

    >>> piece_rows(200_000, 65_536, 1), piece_rows(200_000, 65_536, 2), piece_rows(500, 65_536, 2)
    (65536, 50000, 65536)
    """
    if threads == 1 or rows < threads * LEAST_ROWS:
        return most
    rounds = -(-rows // (threads * most))
    return -(-rows // (threads * rounds))


def _pool() -> ThreadPoolExecutor:
    """One pool per process: never made before a fork, never shared across one."""
    pid = os.getpid()
    if pid not in _pools:
        _pools.setdefault(pid, ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="semistream-join"))
        for other in [other for other in list(_pools) if other != pid]:
            _pools.pop(other, None)
    return _pools[pid]


class Ahead(Generic[T]):
    """Pieces of work that run at the same time; their results come in the order in which they were started."""

    def __init__(self) -> None:
        self._running: deque[Future[T]] = deque()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Callable[[], T]) -> None:
        self._running.append(_pool().submit(work))

    def next(self) -> T:
        """The result of what was started first; an error of it is raised here."""
        return self._running.popleft().result()

    def seen(self) -> list[T]:
        """All results that `next` will give, once all work is done."""
        wait(self._running)
        return [one.result() for one in self._running]

    def stop(self) -> None:
        """Forget all results; when this returns, nothing runs any more."""
        for one in self._running:
            one.cancel()
        wait(self._running)
        self._running.clear()


def side_by_side(parts: Sequence[Iterator[T]]) -> Generator[T, None, None]:
    """What some iterators give, as it comes, each advanced in a thread; each is one item ahead of the reader at most.
    An error of one is raised here. When this ends, however it ends, no thread is in any of them, and all are closed.
    """
    came: queue.SimpleQueue[int] = queue.SimpleQueue()
    steps: dict[int, Future[T | None]] = {}

    def start(number: int) -> None:
        steps[number] = _pool().submit(next, parts[number], None)
        steps[number].add_done_callback(lambda _: came.put(number))

    try:
        for number in range(len(parts)):
            start(number)
        while steps:
            number = came.get()
            item = steps.pop(number).result()
            if item is not None:
                start(number)
                yield item
                del item
    finally:
        wait(steps.values())
        for part in parts:
            if isinstance(part, Generator):
                part.close()
