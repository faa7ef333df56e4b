"""The stream cut into intervals, each with the number of its rows that may be kept.

`TimedIntervals` goes by a clock: an interval is what the source hands over at once, and rows that pile up while the
join works (in a queue, a poll) make it larger. Spark's micro-batches come whole: the batches before one say what share
of it is kept (`share_of_batch`), and `KeptShare` gives that out block by block.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

MOST_ROWS = 1 << 16  # of an interval: a longer one is cut, so that choosing takes a bounded amount of memory
_BURST_SECONDS = 1.0  # what was not used may be used up to so much later
_FADING = 0.8  # how much of the measured service rate is what it was before the last interval
_ROUNDING = 1e-9

Interval = tuple[pa.RecordBatch, int]


@dataclass
class TimedIntervals:
    """Intervals by a clock, for a rate that is given or for the one at which rows have been taken so far.

    A given rate begins with a second's worth; otherwise the first interval is kept whole, since nothing is known yet.
    An interval of which not even one row may be kept is put together with the next, or ends when a batch without rows
    comes: nothing came for a while. Such a batch goes on to the join.
    """

    rate: float | None  # rows per second
    clock: Callable[[], float]
    most_rows: int = MOST_ROWS
    _rows: float = 0.0
    _seconds: float = 0.0

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Interval]:
        """Cut a stream. The time until the next interval is asked for is what the join took for the rows kept."""
        before = self.clock()
        credit = (self.rate or 0.0) * _BURST_SECONDS
        held: list[pa.RecordBatch] = []
        rows = 0
        for batch in batches:
            now, quiet = self.clock(), batch.num_rows == 0
            if not quiet:
                held.append(batch)
            rows += batch.num_rows
            rate = self.rate or (self._rows / self._seconds if self._seconds > 0 else None)  # None: not known yet
            credit = float(rows) if rate is None else min(credit, rate * _BURST_SECONDS) + rate * (now - before)
            before = now
            most = min(rows, int(credit + _ROUNDING))
            if rows and (most or quiet or rows >= self.most_rows):
                most = max(1, most)
                yield from share_of_blocks(held, most / rows, self.most_rows)
                credit -= most
                held, rows = [], 0
                self._rows = self._rows * _FADING + most
                self._seconds = self._seconds * _FADING + self.clock() - now
            if quiet:
                yield batch, 0
        if rows:
            yield from share_of_blocks(held, 1 / rows, self.most_rows)


@dataclass(frozen=True)
class PastBatch:
    """A micro-batch that is over, as far as it is known."""

    began: float
    rows: int = 0  # that came in
    kept: int = 0  # of these, not shed
    seconds: float = 0.0  # that it took; 0 when that is not known


def share_of_batch(
    past: Sequence[PastBatch],
    rate: float | None,
    *,
    now: float | None = None,
    most_seconds: float | None = None,
    unknown: float = 1.0,
) -> float:
    """The share of the coming micro-batch that is kept; ``past`` are those before it, the newest first.

    That is the rows for which there is time, over the rows of the last batch. Without a ``rate`` (rows per second) it
    is the best of the past batches: a small batch is slow for its fixed costs, and would shed more and more. There is
    as much time as the last batch's rows took to come, which is the time since the batch before it began, or until
    ``now`` where it was the first one. With ``most_seconds`` and no rate there is so much time instead. ``unknown`` is
    the share where that cannot be told: nothing came, or a clock was set back.
    """
    began = [one.began for one in past[:2]]
    if len(began) == 1 and now is not None:
        began.insert(0, now)
    if len(began) < 2:
        return unknown
    rows = past[0].rows
    seconds = available = began[0] - began[1]
    if rate is None:
        rate = max((one.kept / one.seconds for one in past if one.seconds > 0), default=0.0)
        available = most_seconds or seconds
    return min(1.0, rate * available / rows) if rows and rate and seconds > 0 else unknown


@dataclass
class KeptShare:
    """A share of all rows, given out block by block; at least one row of each, so that none goes unseen."""

    share: float
    _seen: int = 0
    _given: int = 0

    def of(self, rows: int) -> int:
        """How many of the next ``rows`` rows may go on."""
        self._seen += rows
        most = max(1, min(rows, int(self.share * self._seen + _ROUNDING) - self._given))
        self._given += most
        return most


def share_of_blocks(batches: Iterable[pa.RecordBatch], share: float, block_rows: int) -> Iterator[Interval]:
    """Blocks of equal length, whatever the batches, and a share of each."""
    part = KeptShare(share)
    for block in cut_blocks(batches, lambda: block_rows):
        yield block, part.of(block.num_rows)


def cut_blocks(batches: Iterable[pa.RecordBatch], block_rows: Callable[[], int]) -> Iterator[pa.RecordBatch]:
    """Blocks of so many rows as are asked for when each begins: small batches are put together, large ones cut."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            piece = batch.slice(start, block_rows() - rows)
            start += piece.num_rows
            rows += piece.num_rows
            held.append(piece)
            if rows >= block_rows():
                yield _together(held)
                held, rows = [], 0
    if held:
        yield _together(held)


def _together(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
