"""The papers' synthetic workload: a master of 120-byte rows, and a stream of 20-byte rows whose keys follow Zipf's law.

Keys lie in the master sorted by popularity or shuffled; shuffled is the harder case, since hot keys share no pages.
Skew is set apart for both sides: ``skew`` says how often the stream asks for a key, ``master_skew`` how many rows a key
has in a master of ``rows`` rows over ``distinct`` keys (many-to-many). Shuffled, the keys that are asked for most are
others than those with most rows; sorted, they are the same.

Rows a key are not drawn but shared out: key k gets the rows whose middles fall into its share of the whole, so the
master has exactly ``rows`` rows, and every key its expected number to within one. A key whose share is below one row
may have none: rows of the stream that ask for it stay unmatched, as those of the share ``absent`` do.

>>> load = ZipfWorkload(rows=1000, seed=7)
>>> load.stream(0, 3).column("key").to_pylist() == load.stream(0, 3).column("key").to_pylist()
True
>>> many = ZipfWorkload(rows=1000, distinct=10, master_skew=1.0, shuffled=False)
>>> many.rows_a_key().tolist()
[341, 171, 114, 85, 69, 56, 49, 43, 38, 34]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from semistream.errors import ArgumentError
from semistream_lab.workloads.numbered import BATCH_ROWS, BITS, Numbers, check_range, random_bits, slices

if TYPE_CHECKING:
    from semistream.stores.paged.store import Progress

MASTER_BYTES = 120  # of a row, as in all the papers
STREAM_BYTES = 20
_MASTER_FIXED = 37  # 8 key + 8 + 8 + 4 + 8 + 1; the rest is text
_MOST_BYTES = 4096  # a batch of text must stay below 2 GiB
_WIDE_COLUMNS = 12
_WIDE_TEXT = 18
_GOLDEN = 0.6180339887498949  # consecutive multiples of it lie far apart in the circle
_STRIDE = 64  # keys between two stored sums: 12 MB for 100 million keys, and few powers to add up for a row


@dataclass(frozen=True)
class ZipfWorkload:
    """``rows`` master rows with keys from 0 on, and streams of any length over them.

    ``distinct=0`` gives every row a key of its own. ``shift_every=N`` makes other keys popular after every N stream
    rows. ``row_bytes`` and ``stream_bytes`` are the sizes of a row on each side.
    """

    name: ClassVar[str] = "zipf"
    idea: ClassVar[str] = "the papers' synthetic data: keys by Zipf's law, on both sides"
    aliases: ClassVar[Mapping[str, str]] = {}
    on: ClassVar[dict[str, str]] = {"key": "key"}
    key: ClassVar[list[str]] = ["key"]
    stream_rows: ClassVar[int | None] = None

    rows: int = 1_000_000
    skew: float = 1.0
    seed: int = 1
    shuffled: bool = True
    absent: float = 0.0
    distinct: int = 0
    master_skew: float = 0.0
    shift_every: int = 0
    row_bytes: int = MASTER_BYTES
    stream_bytes: int = STREAM_BYTES

    def __post_init__(self) -> None:
        for name, least in (("rows", 1), ("skew", 0), ("seed", 0), ("distinct", 0), ("shift_every", 0)):
            value = getattr(self, name)
            if not value >= least:  # NaN is refused as well
                raise ArgumentError(f"{name}={value} must be {'at least 1' if least else '0 or more'}")
        if not 0 <= self.absent <= 1:
            raise ArgumentError(f"absent={self.absent} must be between 0 and 1")
        if not self.master_skew >= 0:
            raise ArgumentError(f"master_skew={self.master_skew} must be 0 or more")
        if self.master_skew and not self.distinct:
            raise ArgumentError(
                f"master_skew={self.master_skew} needs distinct=, the number of keys that the {self.rows:,} rows have"
            )
        for name, least in (("row_bytes", _MASTER_FIXED + 1), ("stream_bytes", STREAM_BYTES)):
            if not least <= getattr(self, name) <= _MOST_BYTES:
                raise ArgumentError(f"{name}={getattr(self, name)} must be between {least} and {_MOST_BYTES:,}")

    @property
    def key_count(self) -> int:
        """Keys that the stream asks for, those of the share ``absent`` not counted."""
        return self.distinct or self.rows

    @property
    def master_rows(self) -> int:
        """Rows of the master."""
        return self.rows

    @property
    def master_schema(self) -> pa.Schema:
        """Columns of the master."""
        return self.master_slice(0, 0).schema

    @property
    def stream_schema(self) -> pa.Schema:
        """Columns of the stream."""
        return self.stream(0, 0).schema

    def prepare(self, progress: Progress | None = None) -> None:
        """Nothing: every row is computed."""

    def keys(self, start: int, count: int) -> Numbers:
        """Keys of stream rows ``start`` to ``start + count``; the same whatever the batch size."""
        from semistream_lab.workloads.zipf_kernels import permute, zipf_ranks

        check_range(start, count)
        ranks = np.empty(count, np.int64)
        zipf_ranks(self.key_count, float(self.skew), np.uint64(self.seed), start, ranks)
        ranks -= 1
        number = np.arange(start, start + count, dtype=np.int64)
        if self.shift_every:
            ranks += number // self.shift_every * int(1 + _GOLDEN * self.key_count) % self.key_count
            ranks %= self.key_count
        if self.shuffled:
            permute(ranks, self.key_count, np.uint64(self.seed + 1))
        if self.absent:
            ranks[random_bits(self.seed, 31, number) < self.absent * 2**BITS] += self.key_count
        return ranks

    def stream(self, start: int, count: int, *, wide: bool = False) -> pa.RecordBatch:
        """Stream rows of 20 bytes (key, store, time) and more as asked, or of about 250 with text columns."""
        keys = self.keys(start, count)
        number = np.arange(start, start + count)
        columns = {
            "key": pa.array(keys),
            "store": pa.array((number % 997).astype(np.int32)),
            "at": pa.array(number),
        }
        if self.stream_bytes > STREAM_BYTES:
            columns["note"] = _texts(number, self.stream_bytes - STREAM_BYTES)
        if wide:
            text = _texts(np.arange(1000), _WIDE_TEXT)
            for c in range(_WIDE_COLUMNS):
                columns[f"text{c}"] = text.take(pa.array((number + 83 * c) % 1000))
        return pa.record_batch(columns)

    def master(self, batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Master rows of 120 bytes, in random order."""
        return slices(self.master_slice, self.rows, batch_rows)

    def master_slice(self, start: int, count: int) -> pa.RecordBatch:
        """Rows ``start`` to ``start + count`` in the order of `master`."""
        from semistream_lab.workloads.zipf_kernels import permute

        check_range(start, count, self.rows, "master")
        number = np.arange(start, start + count, dtype=np.int64)
        permute(number, self.rows, np.uint64(self.seed + 99))
        return pa.record_batch(
            {
                "key": pa.array(self._keys_of(number)),
                "surrogate": pa.array(number + 1_000_000_000),
                "price": pa.array(number % 10_007 / 100.0),
                "vendor": pa.array((number % 5_003).astype(np.int32)),
                "updated": pa.array(number * 1000, pa.timestamp("us")),
                "active": pa.array(number % 7 != 0),
                "description": _texts(number, self.row_bytes - _MASTER_FIXED),
            }
        )

    def rows_a_key(self) -> Numbers:
        """Rows of each key in the master (8 bytes per key): f_R of the papers."""
        counts = np.zeros(self.key_count, np.int64)
        for start in range(0, self.rows, BATCH_ROWS):
            keys = self._keys_of(np.arange(start, min(self.rows, start + BATCH_ROWS), dtype=np.int64))
            np.add.at(counts, keys, 1)
        return counts

    def _keys_of(self, number: Numbers) -> Numbers:
        """The keys of master rows, known by their number before shuffling."""
        from semistream_lab.workloads.zipf_kernels import permute, zipf_share_out

        if not self.distinct or not len(number):
            return number
        keys = np.empty(len(number), np.int64)
        zipf_share_out(number, self.rows, self.distinct, float(self.master_skew), _STRIDE, self._sums, keys)
        if self.shuffled:
            permute(keys, self.distinct, np.uint64(self.seed + 3))
        return keys

    @cached_property
    def _sums(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Sums of the first 0, 64, 128 … terms of Zipf's law, and of all of them."""
        from semistream_lab.workloads.zipf_kernels import zipf_sums

        sums = np.empty(-(-self.distinct // _STRIDE) + 1)
        zipf_sums(self.distinct, float(self.master_skew), _STRIDE, sums)
        return sums


def _texts(numbers: Numbers, width: int) -> pa.Array:
    """Text of a fixed width, made from numbers without a Python loop."""
    from semistream_lab.workloads.zipf_kernels import number_texts

    count = len(numbers)
    letters = np.empty((count, width), np.uint8)
    words = b"article of the range, "
    words = (words * (width // len(words) + 1))[:width]
    number_texts(numbers, min(10, width), np.frombuffer(bytearray(words), np.uint8), letters)
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(letters)])
