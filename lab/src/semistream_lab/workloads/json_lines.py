"""Batches as JSON, one object a line, made column by column: Arrow reads such files, but writes none."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.errors import SchemaError

# What JSON writes otherwise within a text; a backslash must come first.
_ESCAPES = {"\\": "\\\\", '"': '\\"'} | {chr(code): f"\\u{code:04x}" for code in range(32)}


def json_lines(batch: pa.RecordBatch) -> bytes:
    """All rows; a NULL is written as null, a time as ISO 8601, a decimal with all its digits."""
    if not batch.num_rows:
        return b""
    pieces: list[object] = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        head = ("{" if not pieces else ", ") + json.dumps(field.name) + ": "
        pieces += [head, _values(column, field.name)]
    lines = pc.binary_join_element_wise(*pieces, "}\n", "")
    _, offsets, letters = lines.buffers()
    ends = np.frombuffer(offsets, np.int32)[lines.offset : lines.offset + len(lines) + 1]
    return letters[int(ends[0]) : int(ends[-1])].to_pybytes()


def _values(column: pa.Array, name: str) -> pa.Array:
    kind, types = column.type, pa.types
    if types.is_floating(kind):
        column = pc.if_else(pc.is_finite(column), column, pa.scalar(None, kind))  # JSON knows neither NaN nor infinity
        text = column.cast(pa.string())
    elif types.is_integer(kind) or types.is_boolean(kind) or types.is_decimal(kind):
        text = column.cast(pa.string())
    elif types.is_string(kind):
        text = column
        for letter, written in _ESCAPES.items():
            if pc.any(pc.match_substring(text, letter)).as_py():
                text = pc.replace_substring(text, letter, written)
        text = _quoted(text)
    elif types.is_date(kind):
        text = _quoted(column.cast(pa.string()))
    elif types.is_timestamp(kind):
        written = pc.strftime(column, "%Y-%m-%dT%H:%M:%S" + ("Z" if kind.tz == "UTC" else ""))
        text = _quoted(written)
    else:
        raise SchemaError(f"column {name!r} of type {kind} cannot be written as JSON")
    return pc.fill_null(text, "null")


def _quoted(text: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', text, '"', "")
