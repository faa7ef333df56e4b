"""A clock that tests move, and sources that take time by it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa


@dataclass
class Clock:
    """Seconds that pass when a test says so."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def every(
    seconds: float, batches: Iterable[pa.RecordBatch], clock: Clock, *, at_once: bool = False
) -> Iterator[pa.RecordBatch]:
    """Batches that come one after the other, so many seconds apart, the first perhaps at once."""
    due = clock.now - (seconds if at_once else 0.0)
    for batch in batches:
        due += seconds
        clock.now = max(clock.now, due)
        yield batch
