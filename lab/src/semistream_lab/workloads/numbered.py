"""Rows that follow from their number: the same from every starting point and in batches of every size."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.errors import ArgumentError

Numbers = npt.NDArray[np.int64]
BITS = 31
BATCH_ROWS = 1 << 18


def random_bits(seed: int, column: int, number: Numbers) -> Numbers:
    """31 random bits for each row number: SplitMix64 as a counter, so no row depends on another.

    ``column`` tells the uses apart that one workload makes of its seed.
    """
    origin = (seed * 1_000_003 + column) * 0xD1342543DE82EF95 % 2**64
    mixed = number.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(origin)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return (mixed >> np.uint64(64 - BITS)).astype(np.int64)


def slices(
    read: Callable[[int, int], pa.RecordBatch], rows: int, batch_rows: int = BATCH_ROWS, start: int = 0
) -> Iterator[pa.RecordBatch]:
    """``rows`` rows from ``start`` on, in batches."""
    if batch_rows < 1:
        raise ArgumentError(f"batch_rows={batch_rows} must be at least 1")
    for at in range(start, start + rows, batch_rows):
        yield read(at, min(batch_rows, start + rows - at))


def check_range(start: int, count: int, rows: int | None = None, what: str = "stream") -> None:
    """Refuse rows that are not there."""
    if start < 0 or count < 0:
        raise ArgumentError(f"start={start} and count={count} must be 0 or more")
    if rows is not None and start + count > rows:
        raise ArgumentError(f"start={start}, count={count}: the {what} has {rows:,} rows")
