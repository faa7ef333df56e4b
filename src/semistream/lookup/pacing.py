"""A stream whose source may fall silent: time goes on for the join although nothing comes.

A join gives waiting rows out when it is handed a batch without rows. Such batches are made here, when nothing has come
for so long that a row must not wait any longer. A source that can block is read in a thread, one batch each time the
join asks: at most one, which came while the join was busy with an empty one, is held here beside the join's memory.
"""

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator

import pyarrow as pa

from semistream.errors import ArgumentError
from semistream.rows import no_rows

WAIT_SECONDS = 1.0
_Batches = queue.SimpleQueue[pa.RecordBatch | BaseException | None]


def check_wait_seconds(wait_seconds: object) -> None:
    """Raise unless rows can wait for so long."""
    number = isinstance(wait_seconds, int | float) and not isinstance(wait_seconds, bool)
    if not number or not wait_seconds > 0:  # type: ignore[operator]
        raise ArgumentError(
            f"wait_seconds={wait_seconds!r} must be a positive number of seconds, or math.inf: rows then wait as long "
            "as the algorithm lets them"
        )


class ThreadReader:
    """Reads a source in a thread, a batch each time one is asked for.

    >>> batches = ThreadReader(iter([pa.record_batch({"a": [1]})]))
    >>> batches.get(None).num_rows, batches.get(None)
    (1, None)
    """

    def __init__(self, source: Iterator[pa.RecordBatch]) -> None:
        self._wanted = threading.Semaphore(0)
        self._stopped = threading.Event()
        self._batches: _Batches = queue.SimpleQueue()
        self._requested = False
        arguments = (source, self._wanted, self._stopped, self._batches)
        threading.Thread(target=_read, args=arguments, name="semistream-source", daemon=True).start()

    def get(self, timeout: float | None) -> pa.RecordBatch | None:
        """The next batch, None at the stream's end; raises `queue.Empty` after a timeout, or the source's error."""
        if not self._requested:
            self._requested = True
            self._wanted.release()
        item = self._batches.get(timeout=timeout)
        self._requested = False
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        """End the thread, at once or when its source comes back, and whoever waits for a batch."""
        self._stopped.set()
        self._wanted.release()
        self._batches.put(None)


def _read(
    source: Iterator[pa.RecordBatch], wanted: threading.Semaphore, stopped: threading.Event, batches: _Batches
) -> None:
    """The thread. It knows nothing of the reader, which may be gone before a source that blocks comes back."""
    try:
        while wanted.acquire() and not stopped.is_set():
            batch = next(source, None)
            batches.put(batch)
            if batch is None:
                return
            del batch  # the source may block for long, and the batch may be large
    except BaseException as error:  # noqa: BLE001 - raised where the batches are read
        batches.put(error)


def paced(
    batch: pa.RecordBatch,
    get: Callable[[float | None], pa.RecordBatch | None],
    wait_seconds: float,
    due: Callable[[], float | None],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[pa.RecordBatch]:
    """A first batch, what ``get`` gives after it (see `ThreadReader.get`), and one without rows whenever rows have
    waited long enough and nothing else is there.

    ``due`` is the join's own word (see `Join.due`); where it has none, rows have waited since they were handed over.
    """
    # Arrow makes no empty table of some types, such as a dictionary of views.
    quiet = no_rows(batch.schema)
    since: float | None = None  # when the first batch was handed over whose rows may still wait
    while batch is not None:
        if batch.num_rows == 0:
            since = None
        elif since is None:
            since = clock()
        yield batch
        left = due()
        if left is None:
            left = math.inf if since is None else since + wait_seconds - clock()
        try:
            batch = get(None if left == math.inf else max(0.0, left))
        except queue.Empty:
            batch = quiet
