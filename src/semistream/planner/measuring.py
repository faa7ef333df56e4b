"""Measuring a join while its stream flows: rows, seconds and counters, without an empty start or the end.

The first part of the stream fills tables and caches; the clock and the counters are read as rows go in, so nothing that
happens when the stream ends, and everybody leaves, is in the figures.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from semistream.stats import Stats


@dataclass(frozen=True)
class Measured:
    """What the measured part of a stream took."""

    rows: int
    seconds: float
    stats: Stats

    @property
    def rows_per_second(self) -> float:
        """The service rate."""
        return self.rows / self.seconds

    @property
    def tuples_per_page(self) -> float | None:
        """Stream tuples a page read; None when nothing was read."""
        return self.rows / self.stats.pages_read if self.stats.pages_read else None


def measure(
    join: Any, batches: Iterator[pa.RecordBatch], *, warm_rows: int, warm_seconds: float, seconds: float
) -> Measured:
    """Join a stream: warm up until ``warm_rows`` have gone in or the time is over, then measure for some seconds."""
    marks: list[tuple[int, float, Stats]] = []
    fed = 0

    def mark() -> None:
        marks.append((fed, time.perf_counter(), join.stats.copy()))

    def feed() -> Iterator[pa.RecordBatch]:
        nonlocal fed
        began = time.perf_counter()
        for batch in batches:
            now = time.perf_counter()
            if not marks and (fed >= warm_rows or now - began > warm_seconds):
                mark()
            elif marks and now - marks[0][1] > seconds:
                break
            yield batch
            fed += batch.num_rows
        mark()

    for _ in join.join(feed()):
        pass
    if len(marks) == 1:  # the stream ended while it was warming up
        marks.insert(0, (0, marks[0][1] - 1e-9, Stats()))
    (before, start, old), (after, end, new) = marks[0], marks[1]
    return Measured(after - before, max(1e-9, end - start), new.since(old))
