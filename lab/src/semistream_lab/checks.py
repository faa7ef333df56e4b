"""Do two arms give the same rows? A checksum that does not depend on their order.

Every row is mixed to one number from all its columns, and the numbers are added up modulo 2⁶⁴. Since the stream's row
number is one of the columns, a master row joined to the wrong stream row changes the sum.

>>> import pyarrow as pa
>>> one, other = Checksum(), Checksum()
>>> one.add(pa.record_batch({"a": [1, 2], "b": ["x", None]}))
>>> other.add(pa.record_batch({"a": [2, 1], "b": [None, "x"]}))
>>> one.text == other.text, one.rows
(True, 2)
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from semistream.keys import KeyCodec

_ODD = 0x9E3779B97F4A7C15  # 2⁶⁴ divided by the golden ratio
_WORD = 1 << 64


class Checksum:
    """Rows seen, rows with a match, and the sum of their hashes."""

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take a batch in; batches may come in any order and size."""
        mixed = np.zeros(batch.num_rows, np.uint64)
        for number, field in enumerate(batch.schema):
            codes, valid = KeyCodec([field]).encode([batch.column(number)])
            codes = np.where(valid, codes, np.uint64(0xABCDEF))
            mixed = (mixed ^ codes) * np.uint64(_ODD)
            mixed ^= mixed >> np.uint64(29)
        self._sum = (self._sum + int(mixed.sum(dtype=np.uint64))) % _WORD
        self.rows += batch.num_rows

    @property
    def text(self) -> str:
        """Count and sum, to be compared."""
        return f"{self.rows}:{self._sum:016x}"
