"""Codes of keys: equality as in Spark, frozen for ever, and types that must agree."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semistream.errors import ArgumentError, KeyTypeError
from semistream.keys import KeyCodec, same_key_type
from semistream.rows import address_of

NAN, INF = float("nan"), float("inf")
TEXTS = ["", "a", "a\0", "abcdefgh", "abcdefghi", "süß"]
TEXT_CODES = [
    5197578548964807871,
    18180128802992388504,
    13048814218289268096,
    15471105583787366284,
    30004887927747598,
    3722503099944319434,
]


def codec(*columns: pa.Array, hash_bits: int = 64) -> KeyCodec:
    return KeyCodec([pa.field(f"k{i}", column.type) for i, column in enumerate(columns)], hash_bits)


def codes(*columns: pa.Array, hash_bits: int = 64) -> list[int]:
    return codec(*columns, hash_bits=hash_bits).encode(columns)[0].tolist()


# Of format 1. They lie on disks: when one of these fails, the change is wrong, not the number.
FROZEN: list[tuple[list[pa.Array], list[int]]] = [
    ([pa.array(TEXTS)], TEXT_CODES),
    ([pa.array(TEXTS, pa.large_string())], TEXT_CODES),
    ([pa.array([text.encode() for text in TEXTS])], TEXT_CODES),
    ([pa.array([b"abcd", b"\0\0\0\0"], pa.binary(4))], [4693909176062652834, 8413276416993862460]),
    ([pa.array([Decimal("1.5"), Decimal(-7)], pa.decimal128(30, 3))], [9435354776201174204, 3510226484177904684]),
    ([pa.array([Decimal("1.5"), Decimal(-7)], pa.decimal128(10, 2))], [2**63 + 150, 2**63 - 700]),
    ([pa.array([0, -1, 5, -(2**63), 2**63 - 1])], [2**63, 2**63 - 1, 2**63 + 5, 0, 2**64 - 1]),
    ([pa.array([0, -1], pa.int8())], [2**63, 2**63 - 1]),
    ([pa.array([0, 2**64 - 1], pa.uint64())], [0, 2**64 - 1]),
    ([pa.array([0.0, -0.0, 1.5, NAN, -INF])], [0, 0, 0x3FF8 << 48, 0x7FF8 << 48, 0xFFF0 << 48]),
    ([pa.array([0.0, -0.0, 1.5, NAN], pa.float32())], [0, 0, 0x3FC0 << 16, 0x7FC0 << 16]),
    ([pa.array([False, True])], [0, 1]),
    ([pa.array([dt.date(1970, 1, 2)])], [2**63 + 1]),
    ([pa.array([dt.datetime(1970, 1, 1, 0, 0, 1)], pa.timestamp("us"))], [2**63 + 10**6]),
    ([pa.array([1, 2]), pa.array(["a", "b"])], [1398597753851345381, 6247895368378486652]),
    ([pa.array(["a", "b"]), pa.array([1, 2])], [15067026233001265454, 3953823602325489823]),
    ([pa.array([1]), pa.array(["a"]), pa.array([NAN])], [1527023591053699508]),
]


@pytest.mark.parametrize(
    "columns, expected", FROZEN, ids=lambda value: "-".join(str(getattr(v, "type", "")) for v in value)
)
def test_codes_are_frozen(columns: list[pa.Array], expected: list[int]) -> None:
    assert codes(*columns) == expected


def test_other_numbers_on_disk_are_frozen() -> None:
    from semistream.kernels.bloom import bloom_add
    from semistream.kernels.hashing import checksum_of

    data = np.arange(100, dtype=np.uint8)
    assert [int(checksum_of(address_of(data), size)) for size in (0, 1, 31, 32, 100)] == [
        3746585686858627171,
        6953307502389581622,
        441435006203073915,
        9953455312222824812,
        17468583156809485439,
    ]
    words = np.zeros(16, np.uint64)
    bloom_add(words, np.array([1, 2, 3], np.uint64))
    assert words.tolist() == [
        1073741824, 16384, 64, 0, 0, 16384, 140737488355328, 9223372036854775808,
        65536, 0, 67109120, 2, 2260630266478592, 2147484160, 274877906944, 134217728,
    ]  # fmt: skip
    assert codes(pa.array(TEXTS), hash_bits=4) == [code & 15 for code in TEXT_CODES]


def test_equal_keys_have_equal_codes() -> None:
    other_nan = pa.array(np.array([0xFFF8000000000123], np.uint64).view(np.float64), from_pandas=False)
    assert codes(other_nan) == codes(pa.array([NAN]))
    assert codes(pa.array(["a"]), other_nan) == codes(pa.array(["a"]), pa.array([NAN]))
    assert codes(pa.array(["a"]), pa.array([-0.0])) == codes(pa.array(["a"]), pa.array([0.0]))
    plain = pa.array(["x", "y", "x"])
    assert codes(plain.dictionary_encode()) == codes(plain) == codes(plain.cast(pa.string_view()))
    assert codec(plain).encode([pa.chunked_array([plain.slice(0, 1), plain.slice(1)])])[0].tolist() == codes(plain)


def test_different_keys_have_different_codes() -> None:
    assert len(set(codes(pa.array(["é", "e\u0301", "E", "e", "e ", " e"])))) == 6
    assert codes(pa.array(["ab"]), pa.array(["c"])) != codes(pa.array(["a"]), pa.array(["bc"]))
    assert codes(pa.array([1]), pa.array([2])) != codes(pa.array([2]), pa.array([1]))
    many = codes(pa.array([f"key {n}" for n in range(200_000)]))
    assert len(set(many)) == 200_000


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2))
def test_codes_of_integers_keep_their_order(numbers: list[int]) -> None:
    encoded = codes(pa.array(numbers, pa.int64()))
    assert sorted(range(len(numbers)), key=numbers.__getitem__) == sorted(range(len(numbers)), key=encoded.__getitem__)


EXACT: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int8(), [-128, 0, 127]),
    (pa.int16(), [-(2**15), 2**15 - 1]),
    (pa.uint8(), [0, 255]),
    (pa.uint32(), [0, 2**32 - 1]),
    (pa.uint64(), [0, 2**63, 2**64 - 1]),
    (pa.int64(), [-(2**63), 2**63 - 1]),
    (pa.float32(), [1.5, -INF]),
    (pa.float64(), [1e-308, INF]),
    (pa.bool_(), [True, False]),
    (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    (pa.time64("us"), [dt.time(23, 59)]),
    (pa.timestamp("us"), [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)]),
    (pa.duration("s"), [dt.timedelta(-5)]),
    (pa.decimal32(5, 2), [Decimal("-999.99")]),
    (pa.decimal128(18, 4), [Decimal("-99999999999999.9999"), Decimal("0.0001")]),
    (pa.decimal256(18, 0), [Decimal(10**18 - 1)]),
]


@pytest.mark.parametrize("kind, values", EXACT, ids=str)
def test_exact_keys_come_back_from_their_codes(kind: pa.DataType, values: list[Any]) -> None:
    column = pa.array([values[0], None, *values], kind).slice(1)
    made = codec(column)
    encoded, valid = made.encode([column])
    assert made.exact
    assert valid.tolist() == [False] + [True] * len(values)
    decoded = made.decode(encoded[valid])
    assert decoded.type == kind
    assert decoded.to_pylist() == values


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(3), pa.decimal128(19, 0), pa.decimal256(40, 2)], ids=str)
def test_other_keys_are_hashed_and_compared(kind: pa.DataType) -> None:
    values = (
        ["abc", "xyz"]
        if kind == pa.string()
        else [b"abc", b"xyz"]
        if kind == pa.binary(3)
        else [Decimal(5), Decimal(7)]
    )
    column = pa.array([*values, values[0], None], kind)
    made = codec(column)
    assert not made.exact
    other = column.take(pa.array([0, 0, 0, 0]))
    assert made.same([column], [other]).tolist() == [True, False, True, False]


def test_null_in_any_column_makes_the_key_null() -> None:
    a, b = pa.array([1, None, 3, None]), pa.array(["x", "y", None, None])
    assert codec(a, b).encode([a, b])[1].tolist() == [True, False, False, False]
    assert codec(a).encode([a.slice(1)])[1].tolist() == [False, True, False]
    assert codec(a).encode([a.slice(0, 0)])[0].tolist() == []


def test_keys_are_the_same_as_spark_says() -> None:
    left = [pa.array(["a", "a", "a", "a", None]), pa.array([NAN, 0.0, 1.0, None, 1.0])]
    right = [pa.array(["a", "a", "b", "a", None]), pa.array([NAN, -0.0, 1.0, None, 1.0])]
    assert codec(*left).same(left, right).tolist()[:3] == [True, True, False]


SAME = [
    (pa.string(), pa.large_string()),
    (pa.string(), pa.string_view()),
    (pa.binary(), pa.large_binary()),
    (pa.string(), pa.dictionary(pa.int8(), pa.large_string())),
    (pa.timestamp("us", "UTC"), pa.timestamp("us", "Asia/Tokyo")),
    (pa.int64(), pa.int64()),
]
DIFFERENT = [
    (pa.int64(), pa.int32()),
    (pa.int64(), pa.uint64()),
    (pa.int64(), pa.string()),
    (pa.int64(), pa.float64()),
    (pa.int8(), pa.bool_()),
    (pa.string(), pa.binary()),
    (pa.binary(), pa.binary(4)),
    (pa.binary(3), pa.binary(4)),
    (pa.float32(), pa.float64()),
    (pa.date32(), pa.timestamp("us")),
    (pa.timestamp("us"), pa.timestamp("ms")),
    (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    (pa.decimal128(10, 2), pa.decimal128(10, 3)),
    (pa.decimal128(10, 2), pa.decimal128(12, 2)),
]


@pytest.mark.parametrize("left, right", SAME, ids=str)
def test_types_that_agree(left: pa.DataType, right: pa.DataType) -> None:
    assert same_key_type(left, right)
    assert same_key_type(right, left)


@pytest.mark.parametrize("left, right", DIFFERENT, ids=str)
def test_types_that_differ_are_both_named(left: pa.DataType, right: pa.DataType) -> None:
    for master, stream in ((left, right), (right, left)):
        with pytest.raises(KeyTypeError) as raised:
            KeyCodec([pa.field("id", master)]).check_stream(pa.schema([("ref", stream)]), {"ref": "id"})
        for word in ("'ref'", "'id'", str(master), str(stream), "Cast"):
            assert word in str(raised.value)


@pytest.mark.parametrize("stream", [pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.null()], ids=str)
def test_a_key_that_no_store_can_hold_is_a_type_that_differs(stream: pa.DataType) -> None:
    with pytest.raises(KeyTypeError) as raised:
        KeyCodec([pa.field("id", pa.int64())]).check_stream(pa.schema([("ref", stream)]), {"ref": "id"})
    for word in ("'ref'", "'id'", "int64", str(stream)):
        assert word in str(raised.value)


def test_columns_that_are_not_there() -> None:
    made = KeyCodec([pa.field("a", pa.int64()), pa.field("b", pa.int64())])
    stream = pa.schema([("x", pa.int64()), ("y", pa.int64())])
    with pytest.raises(ArgumentError, match=r"every key column of the master \(\['a', 'b'\]\)"):
        made.check_stream(stream, {"x": "a"})
    with pytest.raises(ArgumentError, match="exactly once"):
        made.check_stream(stream, {"x": "a", "y": "a"})
    with pytest.raises(ArgumentError, match=r"no column 'z'; its columns are \['x', 'y'\]"):
        made.check_stream(stream, {"x": "a", "z": "b"})
    assert made.stream_columns({"y": "a", "x": "b"}) == ["y", "x"]
    with pytest.raises(ArgumentError, match="names no column"):
        KeyCodec([])
