"""The window: stream rows that wait for their page, with the memory that joining them will take.

Stands for the papers' H_S and queue. Rows stay Arrow columns; only their codes are kept beside them. At a sweep they are put together
once, so a waiting row is charged for its bytes twice, and for the arrays that sorting and pairing need.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from semistream.keys import Codes

WORK_BYTES = 72  # a row's code, its place in the order, its group and page range (8 bytes each), and pairs for output


def stream_row_bytes(schema: pa.Schema) -> int:
    """A guess of a stream row's bytes, before the first batch is seen."""
    size = 0
    for field in schema:
        try:
            size += max(1, field.type.bit_width // 8)
        except ValueError:
            size += 24
    return max(1, size)


class Window:
    """Waiting stream rows and their codes."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._codes: list[Codes] = []
        self.rows = 0
        self.bytes = 0
        self.since: float | None = None

    def add(self, batch: pa.RecordBatch, codes: Codes, now: float) -> None:
        """Let rows wait."""
        if batch.num_rows == 0:
            return
        if self.since is None:
            self.since = now
        self._batches.append(batch)
        self._codes.append(codes)
        self.rows += batch.num_rows
        self.bytes += 2 * batch.nbytes + WORK_BYTES * batch.num_rows

    def take(self) -> tuple[pa.RecordBatch, Codes]:
        """All waiting rows, in order of arrival; the window is empty afterwards."""
        batches, codes = self._batches, self._codes
        self._batches, self._codes = [], []
        self.rows = self.bytes = 0
        self.since = None
        if len(batches) == 1:
            return batches[0], codes[0]
        whole = pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], schema=self._schema)
        return whole, np.concatenate(codes) if codes else np.empty(0, np.uint64)
