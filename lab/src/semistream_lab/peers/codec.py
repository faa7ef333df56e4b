"""Rows as bytes, for stores of keys and values: keys in eight bytes that sort as the numbers do, values packed.

>>> import pyarrow as pa
>>> codec = RowCodec(pa.schema([("a", pa.int32()), ("b", pa.string())]))
>>> values = codec.encode([pa.array([1, 2], pa.int32()), pa.array(["x", "yy"])])
>>> [len(value) for value in values], codec.decode(values)[1].to_pylist()
([5, 6], ['x', 'yy'])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def key_bytes(keys: npt.NDArray[np.int64]) -> list[bytes]:
    """Keys from 0 on."""
    found: list[bytes] = keys.astype(">u8").view("V8").tolist()
    return found


class RowCodec:
    """Columns of fixed size first, then at most one of text."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._text = [field.name for field in schema if pa.types.is_string(field.type)]
        fixed = [(field.name, _number(field.type)) for field in schema if field.name not in self._text]
        self._head = np.dtype(fixed)

    def encode(self, columns: Sequence[Any]) -> list[bytes]:
        """A value for each row."""
        by_name = dict(zip(self._schema.names, columns, strict=True))
        head = np.empty(len(columns[0]), self._head)
        for name in self._head.names or ():
            column = by_name[name]
            head[name] = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column.to_numpy(False)
        raw, size = head.tobytes(), self._head.itemsize
        heads = [raw[start : start + size] for start in range(0, len(raw), size)] if size else [b""] * len(head)
        if not self._text:
            return heads
        return [one + text.encode() for one, text in zip(heads, by_name[self._text[0]].to_pylist(), strict=True)]

    def decode(self, values: list[bytes]) -> list[pa.Array]:
        """The columns of some values."""
        size = self._head.itemsize
        heads = np.empty(0, self._head)
        if size:
            heads = np.frombuffer(b"".join([v[:size] for v in values] if self._text else values), self._head)
        found = []
        for field in self._schema:
            if field.name in self._text:
                found.append(pa.array([value[size:] for value in values], pa.binary()).cast(field.type))
            elif pa.types.is_boolean(field.type):
                found.append(pa.array(heads[field.name].astype(bool)))
            else:
                found.append(pa.array(np.ascontiguousarray(heads[field.name])).cast(field.type))
        return found


def _number(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "i8"
    return "u1" if pa.types.is_boolean(kind) else str(np.dtype(kind.to_pandas_dtype()).str)
