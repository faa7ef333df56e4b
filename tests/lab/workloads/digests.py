"""A short text that changes with any byte of a batch."""

from __future__ import annotations

import hashlib

import pyarrow as pa


def digest(batch: pa.RecordBatch) -> str:
    """Of all buffers, in order."""
    found = hashlib.sha256()
    for column in batch.columns:
        for buffer in column.buffers():
            if buffer is not None:
                found.update(buffer.to_pybytes())
    return found.hexdigest()[:16]
