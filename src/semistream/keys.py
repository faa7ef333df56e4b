"""Keys as 64-bit codes, so that every table, page and join handles one type.

Integers, dates, timestamps, booleans, floats and decimals of up to 18 digits are their own 64-bit value: the code
*is* the key (``exact``). Strings, binary, longer decimals and composite keys are hashed, and the real key is verified
after the read: a collision is never a match.

Equality is Spark's: NULL never matches, NaN = NaN, -0.0 = 0.0, strings by their bytes. The types of both sides must
agree; nothing is cast silently.

>>> import pyarrow as pa
>>> codec = KeyCodec([pa.field("id", pa.int64())])
>>> codes, valid = codec.encode([pa.array([3, None, 1])])
>>> valid.tolist(), bool(codes[2] < codes[0])
([True, False, True], True)
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semistream import kernels
from semistream.errors import ArgumentError, KeyTypeError, SchemaError
from semistream.rows import is_binary, is_text, offsets_of, plain_values, raw_values, storage_type

Codes = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
_SIGN = np.uint64(1 << 63)
_LOSSLESS_DIGITS = 18


class KeyCodec:
    """Encodes the key columns of a batch; one for a store, shared by all its users."""

    def __init__(self, fields: Sequence[pa.Field], hash_bits: int = 64) -> None:
        if not fields:
            raise ArgumentError("key=[] names no column; give at least one key column")
        self.fields = list(fields)
        self.hash_bits = hash_bits
        self.exact = len(fields) == 1 and _is_exact(fields[0].type)

    def row_schema(self, schema: pa.Schema) -> pa.Schema:
        """The columns that are packed into rows: an exact key is its code already."""
        hidden = self.fields[0].name if self.exact else None
        return pa.schema([field for field in schema if field.name != hidden])

    def encode(self, columns: Sequence[pa.Array]) -> tuple[Codes, Mask]:
        """A code for each row, and which rows have no NULL in their key (the codes of the others mean nothing)."""
        parts = []
        valid = np.ones(len(columns[0]), np.bool_)
        for field, column in zip(self.fields, columns, strict=True):
            plain = _plain(column)
            if plain.null_count:
                valid &= pc.is_valid(plain).to_numpy(zero_copy_only=False)
            parts.append(_codes(plain, field.type))
        codes = parts[0]
        if len(parts) > 1:
            codes = codes.copy()
            for part in parts[1:]:
                kernels.hashing.combine(codes, part)
        if not self.exact and self.hash_bits < 64:
            codes = codes & np.uint64((1 << self.hash_bits) - 1)
        return codes, valid

    def decode(self, codes: Codes) -> pa.Array:
        """The key column back from codes of an exact key."""
        kind = self.fields[0].type
        if pa.types.is_boolean(kind):
            return pa.array(codes != 0)
        width = kind.bit_width // 8
        if pa.types.is_decimal(kind):
            low = (codes ^ _SIGN).view(np.int64)
            words = np.stack([low, low >> 63], axis=1)
            wide = pa.Array.from_buffers(pa.decimal128(38, kind.scale), len(codes), [None, pa.py_buffer(words)])
            return pc.cast(wide, kind)
        signed = not (pa.types.is_floating(kind) or pa.types.is_unsigned_integer(kind))
        values = (codes ^ _SIGN if signed else codes).astype(f"u{width}")
        return pa.Array.from_buffers(kind, len(codes), [None, pa.py_buffer(values)])

    def same(self, left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Mask:
        """Row by row, are the real keys equal? Used to tell a hash collision from a match."""
        result = np.ones(len(left[0]), np.bool_)
        for ours, theirs in zip(self._comparable(left), self._comparable(right), strict=True):
            result &= pc.fill_null(pc.equal(ours, theirs), fill_value=False).to_numpy(zero_copy_only=False)
        return result

    def among(self, keys: Sequence[pa.Array], wanted: Sequence[pa.Array]) -> Mask:
        """Row by row, is this real key one of the wanted ones?"""
        names = [f"k{position}" for position in range(len(self.fields))]
        left = pa.table([*self._comparable(keys), pa.array(np.arange(len(keys[0])))], [*names, "row"])
        right = pa.table(self._comparable(wanted), names)
        found = left.join(right, names, join_type="left semi", use_threads=False).column("row").to_numpy()
        result = np.zeros(len(keys[0]), np.bool_)
        result[found] = True
        return result

    def groups(self, columns: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
        """A number for each row, the same for equal real keys and only for these; NULL counts as a value here."""
        numbers = np.zeros(len(columns[0]), np.int64)
        for position, column in enumerate(self._comparable(columns)):
            part = pc.dictionary_encode(column, null_encoding="encode").indices.to_numpy().astype(np.int64)
            if position:  # dense again, so that no product overflows
                part = np.unique(numbers * (int(part.max(initial=0)) + 1) + part, return_inverse=True)[1]
            numbers = part.astype(np.int64, copy=False)
        return numbers

    def _comparable(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Columns on which Arrow's equality is Spark's: exact types as codes (NaN, -0.0), the others as they are."""
        made = []
        for field, column in zip(self.fields, columns, strict=True):
            plain = _plain(column)
            if _is_exact(field.type):
                unknown = pc.is_null(plain).to_numpy(zero_copy_only=False) if plain.null_count else None
                made.append(pa.array(_codes(plain, field.type), mask=unknown))
            else:
                made.append(pc.cast(plain, field.type))
        return made

    def check_stream(self, stream: pa.Schema, on: dict[str, str]) -> None:
        """Fail, naming both types, when a key column of the stream is missing or of another type than the master's."""
        master = {field.name: field.type for field in self.fields}
        if sorted(on.values()) != sorted(master):
            raise ArgumentError(
                f"on={on!r} must name every key column of the master ({list(master)}) exactly once; "
                "give on={stream column: master column} when the names differ"
            )
        for name, key in on.items():
            if stream.get_field_index(name) < 0:
                raise ArgumentError(f"the stream has no column {name!r}; its columns are {stream.names}")
            have, want = stream.field(name).type, master[key]
            if not same_key_type(have, want):
                raise KeyTypeError(
                    f"stream column {name!r} is {have}, master key {key!r} is {want}; they must agree. "
                    f"Cast one side, for example the stream's column to {want}"
                )

    def stream_columns(self, on: dict[str, str]) -> list[str]:
        """The stream's key columns in the order of the master's key."""
        by_master = {master: stream for stream, master in on.items()}
        return [by_master[field.name] for field in self.fields]


def same_key_type(left: pa.DataType, right: pa.DataType) -> bool:
    """Equal up to how Arrow lays the values out: large strings, views, dictionaries, and the name of a time zone."""
    try:
        left, right = storage_type("key", left), storage_type("key", right)
    except SchemaError:
        return False
    if pa.types.is_timestamp(left) and pa.types.is_timestamp(right):
        return left.unit == right.unit and (left.tz is None) == (right.tz is None)
    both_alike = (is_text(left) and is_text(right)) or (is_binary(left) and is_binary(right))
    return both_alike or bool(left.equals(right))


def _is_exact(kind: pa.DataType) -> bool:
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= _LOSSLESS_DIGITS)
    types = pa.types
    plain = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_temporal(kind)
    return bool(plain and kind.bit_width <= 64)


def _plain(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return pc.cast(plain_values(column), storage_type("key", column.type))


def _codes(column: pa.Array, kind: pa.DataType) -> Codes:
    if pa.types.is_boolean(column.type):
        return pc.fill_null(column, fill_value=False).to_numpy(zero_copy_only=False).astype(np.uint64)
    if pa.types.is_floating(kind):
        width = column.type.bit_width // 8
        values = (raw_values(column, f"f{width}") + 0.0).astype(f"f{width}", copy=False)  # -0.0 + 0.0 is 0.0
        values[np.isnan(values)] = np.nan
        return values.view(f"u{width}").astype(np.uint64)
    if pa.types.is_decimal(kind) and _is_exact(kind):
        words = raw_values(pc.cast(column, pa.decimal128(38, kind.scale)), "i8", per_value=2)
        return words[::2].view(np.uint64) ^ _SIGN
    if _is_exact(kind):
        values = raw_values(column)
        if pa.types.is_unsigned_integer(column.type):
            return values.astype(np.uint64)
        return values.astype(np.int64).view(np.uint64) ^ _SIGN
    codes = np.empty(len(column), np.uint64)
    buffer = column.buffers()[-1]
    data = buffer.address if buffer is not None else 0
    if is_text(column.type) or is_binary(column.type):
        kernels.hashing.hash_strings(data, *offsets_of(column), codes)
    else:
        width = column.type.bit_width // 8
        kernels.hashing.hash_fixed(data + width * column.offset, width, codes)
    return codes
