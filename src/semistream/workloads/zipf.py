"""The papers' synthetic workload: a master of 120-byte rows, and a stream whose keys follow Zipf's law.

Keys lie in the master sorted by popularity or shuffled; shuffled is the harder case, since hot keys share no pages.

>>> load = ZipfWorkload(rows=1000, seed=7)
>>> load.stream(0, 3).column("key").to_pylist() == load.stream(0, 3).column("key").to_pylist()
True
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.errors import ArgumentError

_TEXT_BYTES = 83  # makes a master row 120 bytes: 8 key + 8 + 8 + 4 + 8 + 1 + 83
_WIDE_COLUMNS = 12
_WIDE_TEXT = 18


@dataclass(frozen=True)
class ZipfWorkload:
    """``rows`` master rows with keys 0 to rows - 1, and streams of any length over them."""

    rows: int
    skew: float = 1.0
    seed: int = 1
    shuffled: bool = True
    absent: float = 0.0

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ArgumentError(f"rows={self.rows} must be at least 1")
        if self.skew < 0:
            raise ArgumentError(f"skew={self.skew} must be 0 or more")
        if not 0 <= self.absent <= 1:
            raise ArgumentError(f"absent={self.absent} must be between 0 and 1")

    def keys(self, start: int, count: int) -> npt.NDArray[np.int64]:
        """Keys of stream rows ``start`` to ``start + count``; the same whatever the batch size."""
        from semistream.kernels.zipf import permute, zipf_ranks

        ranks = np.empty(count, np.int64)
        zipf_ranks(self.rows, float(self.skew), np.uint64(self.seed), start, ranks)
        ranks -= 1
        if self.shuffled:
            permute(ranks, self.rows, np.uint64(self.seed + 1))
        if self.absent:
            chooser = np.random.default_rng([self.seed, start])
            missing = chooser.random(count) < self.absent
            ranks[missing] += self.rows
        return ranks

    def stream(self, start: int, count: int, *, wide: bool = False) -> pa.RecordBatch:
        """Stream rows of 20 bytes (key, store, quantity, time), or of about 250 with text columns."""
        keys = self.keys(start, count)
        number = np.arange(start, start + count)
        columns = {
            "key": pa.array(keys),
            "store": pa.array((number % 997).astype(np.int32)),
            "at": pa.array(number),
        }
        if wide:
            text = _texts(np.arange(1000), _WIDE_TEXT)
            for c in range(_WIDE_COLUMNS):
                columns[f"text{c}"] = text.take(pa.array((number + 83 * c) % 1000))
        return pa.record_batch(columns)

    def master(self, batch_rows: int = 1 << 18) -> Iterator[pa.RecordBatch]:
        """Master rows of 120 bytes, in random order."""
        from semistream.kernels.zipf import permute

        for start in range(0, self.rows, batch_rows):
            keys = np.arange(start, min(self.rows, start + batch_rows), dtype=np.int64)
            permute(keys, self.rows, np.uint64(self.seed + 99))
            yield pa.record_batch(
                {
                    "key": pa.array(keys),
                    "surrogate": pa.array(keys + 1_000_000_000),
                    "price": pa.array(keys % 10_007 / 100.0),
                    "vendor": pa.array((keys % 5_003).astype(np.int32)),
                    "updated": pa.array(keys * 1000, pa.timestamp("us")),
                    "active": pa.array(keys % 7 != 0),
                    "description": _texts(keys, _TEXT_BYTES),
                }
            )


def _texts(numbers: npt.NDArray[np.int64], width: int) -> pa.Array:
    """Text of a fixed width, made from numbers without a Python loop."""
    count = len(numbers)
    letters = np.empty((count, width), np.uint8)
    letters[:] = np.frombuffer((b"article of the range, " * 8)[:width], np.uint8)
    rest = numbers.copy()
    for place in range(min(10, width)):
        letters[:, place] = 48 + rest % 10
        rest //= 10
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(letters)])
