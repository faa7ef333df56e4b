"""Debezium's envelopes: every operation, every encoding, and every way in which a record can be bad."""

from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from semistream.changes.debezium import debezium_changes
from semistream.changes.rows import Changes
from semistream.changes.values import array_of
from semistream.errors import ArgumentError, BadRecordsError

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("price", pa.decimal128(9, 2))])


def line(op: str | None, before: Any = None, after: Any = None, **more: Any) -> str:
    return json.dumps({"before": before, "after": after, "op": op, **more})


def row(number: int, name: str = "n", price: Any = "1.50") -> dict[str, Any]:
    return {"id": number, "name": name, "price": price}


def read(*lines: str | bytes, schema: pa.Schema = SCHEMA, **options: Any) -> Changes:
    numbered = [("file", number, text) for number, text in enumerate(lines, 1)]
    return debezium_changes(numbered, schema, ["id"], **options)


def test_every_operation() -> None:
    found = read(
        line("r", after=row(1)),
        line("c", after=row(2, price=2.25)),
        line("u", before=row(1), after=row(1, "new", 3)),
        line("d", before={"id": 2}),
        "null",
        "",
        line("m", message={}),
    )
    assert found.rejects == []
    assert found.rows.drop_columns(["_time"]).to_pylist() == [
        {"_op": "upsert", "id": 1, "name": "n", "price": Decimal("1.50")},
        {"_op": "insert", "id": 2, "name": "n", "price": Decimal("2.25")},
        {"_op": "update", "id": 1, "name": "new", "price": Decimal("3.00")},
        {"_op": "delete", "id": 2, "name": None, "price": None},
    ]


def test_within_its_wrapper() -> None:
    wrapped = {"schema": {"type": "struct", "fields": []}, "payload": json.loads(line("c", after=row(1)))}
    tombstone = {"schema": None, "payload": None}
    found = read(json.dumps(wrapped), json.dumps(tombstone))
    assert (found.rows["id"].to_pylist(), found.rejects) == ([1], [])


def test_columns_that_the_store_has_not_are_left_out() -> None:
    assert read(line("c", after={**row(1), "more": [1, {"x": 2}]})).rows["name"].to_pylist() == ["n"]


@pytest.mark.parametrize(
    "sources, expected",
    [
        ([{"lsn": 30}, {"lsn": 10}, {"lsn": 20}], "bca"),
        (
            [{"file": "bin.000009", "pos": 900}, {"file": "bin.000010", "pos": 4}, {"file": "bin.000009", "pos": 5}],
            "cab",
        ),
        ([{"scn": "300"}, {"scn": "20"}, {"scn": "100"}], "bca"),
        ([{"ts_ms": 3}, {"ts_ms": 1}, {"ts_ms": 2}], "bca"),
        ([{"ts_ms": 3, "lsn": 1}, {"ts_ms": 1}, {"ts_ms": 2}], "bca"),
        ([{"ts_ms": 1}, {"ts_ms": 1}, {"ts_ms": 1}], "abc"),
        ([{}, {}, {}], "abc"),
    ],
)
def test_the_order_of_the_source(sources: list[dict[str, Any]], expected: str) -> None:
    lines = [line("u", after=row(1, name), source=source) for name, source in zip("abc", sources, strict=True)]
    assert read(*lines).rows["name"].to_pylist() == list(expected)


def test_bad_envelopes_do_not_change_the_order() -> None:
    """Of two changes in one millisecond the later in the log counts, whatever else cannot be read."""
    later, earlier = (
        line("u", ts_ms=7, after=row(1, name), source={"lsn": lsn}) for name, lsn in (("b", 20), ("a", 10))
    )
    for bad in ('{"op": "x"}', "{}", line("c", source={"scn": "5"}), line("d", source={"ts_ms": 3})):
        found = read(later, bad, earlier)
        assert (found.rows["name"].to_pylist(), len(found.rejects)) == (["a", "b"], 1), bad


def test_an_emptied_table() -> None:
    found = read(line("c", after=row(1)), line("t"), line("c", after=row(2)), line("c", after=row(3)))
    assert found.truncated
    assert found.rows["id"].to_pylist() == [2, 3]
    ordered = read(line("t", source={"lsn": 9}), line("c", after=row(1), source={"lsn": 5}))
    assert (ordered.truncated, ordered.rows.num_rows) == (True, 0)


def test_an_update_that_moves_a_key() -> None:
    found = read(line("u", before=row(1), after=row(2)))
    assert found.rows.select(["_op", "id"]).to_pylist() == [{"_op": "delete", "id": 1}, {"_op": "update", "id": 2}]


BAD = [
    (b"\xff\xfe{}", "no JSON"),
    ("{", "no JSON"),
    ("[1]", "no JSON object but a list"),
    ("[" * 100_000, "no JSON"),
    ('{"x": 1}', "no operation"),
    (line("x", after=row(1)), "'x'; known are"),
    (line("c"), "operation 'c' without 'after'"),
    (line("c", after=[1]), "operation 'c' without 'after'"),
    (line("d"), "REPLICA IDENTITY"),
    (line("d", before={"name": "n"}), "column 'id' is not in 'before'"),
    (line("u", after={"id": 1, "name": "n"}), "column 'price' is not in 'after'"),
    (line("u", after=row(1, "__debezium_unavailable_value")), "column 'name' was not sent; set REPLICA IDENTITY FULL"),
    (line("c", after={**row(1), "id": None}), "key column 'id' is NULL"),
    (line("c", after={**row(1), "id": "1"}), "column 'id': '1' is no int64"),
    (line("c", after={**row(1), "id": 1.5}), "column 'id': 1.5 is no int64"),
    (line("c", after={**row(1), "id": True}), "column 'id': True is no int64"),
    (line("c", after={**row(1), "id": 2**70}), "is no int64"),
    (line("c", after=row(1, price="1.505")), "is no decimal128"),
    (line("c", after=row(1, price=10_000_000)), "is no decimal128"),
    (line("c", after=row(1, price="NaN")), "is no decimal128"),
    (line("c", after=row(1, price="AJY=")), "decimal.handling.mode=string"),
    (line("c", after=row(1, name=17)), "column 'name': 17 is no string"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("record, reason", BAD)
def test_a_bad_record_is_returned_whole(record: str | bytes, reason: str) -> None:
    found = read(line("c", after=row(7)), record, line("c", after=row(8)))
    assert found.rows["id"].to_pylist() == [7, 8]
    assert [(one.source, one.line) for one in found.rejects] == [("file", 2)]
    assert reason in found.rejects[0].reason
    shown = record.decode(errors="backslashreplace") if isinstance(record, bytes) else record
    assert found.rejects[0].record == shown
    assert found.records == 3


def test_too_many_bad_records() -> None:
    found = read(line("c", after=row(7)), "{", "{", line("c", after=row(8)))
    found.check(0.5)
    found.check(None)
    with pytest.raises(
        BadRecordsError, match=r"2 of 4 records are bad, more than max_bad_rate=0.4.*file, line 2"
    ) as told:
        found.check(0.4)
    assert len(told.value.rejects) == 2
    with pytest.raises(ArgumentError, match="max_bad_rate=2"):
        found.check(2)


MOMENT = dt.datetime(2024, 2, 29, 12, 30, 45, 123_000, dt.UTC)
MS = int(MOMENT.timestamp() * 1000)
DAYS = (MOMENT.date() - dt.date(1970, 1, 1)).days
CLOCK = dt.time(12, 30, 45, 123_000)
CLOCK_MS = ((12 * 60 + 30) * 60 + 45) * 1000 + 123


@pytest.mark.parametrize(
    "kind, value, hint, expected",
    [
        (pa.date32(), DAYS, None, MOMENT.date()),
        (pa.date32(), "2024-02-29", None, MOMENT.date()),
        (pa.date64(), DAYS, None, MOMENT.date()),
        (pa.timestamp("ms"), MS, None, MOMENT.replace(tzinfo=None)),
        (pa.timestamp("us"), MS * 1000, None, MOMENT.replace(tzinfo=None)),
        (pa.timestamp("us", "UTC"), MS, "ms", MOMENT),
        (pa.timestamp("ms", "UTC"), MS * 10**6, "ns", MOMENT),
        (pa.timestamp("us", "UTC"), "2024-02-29T13:30:45.123+01:00", None, MOMENT),
        (pa.timestamp("us"), "2024-02-29T12:30:45.123Z", None, MOMENT.replace(tzinfo=None)),
        (pa.time32("ms"), CLOCK_MS, None, CLOCK),
        (pa.time64("us"), CLOCK_MS, "ms", CLOCK),
        (pa.time64("us"), "12:30:45.123", None, CLOCK),
        (pa.bool_(), 1, None, True),
        (pa.bool_(), False, None, False),
        (pa.float64(), "NaN", None, "NaN"),
        (pa.float32(), Decimal("1.5"), None, 1.5),
        (pa.int8(), -128, None, -128),
        (pa.uint8(), 255, None, 255),
        (pa.binary(), base64.b64encode(b"\0\xff").decode(), None, b"\0\xff"),
        (
            pa.decimal128(9, 2),
            base64.b64encode((-150).to_bytes(2, "big", signed=True)).decode(),
            "base64",
            Decimal("-1.5"),
        ),
        (
            pa.decimal128(38, 10),
            "1234567890123456789012345678.0123456789",
            None,
            Decimal("1234567890123456789012345678.0123456789"),
        ),
        (pa.large_string(), "x", None, "x"),
    ],
)
def test_encodings(kind: pa.DataType, value: Any, hint: str | None, expected: Any) -> None:
    array, bad = array_of([value, None], pa.field("x", kind), [hint, hint])
    assert bad == {}
    found = array.to_pylist()
    assert array.type == kind
    assert (str(found[0]).replace("nan", "NaN") if expected == "NaN" else found[0]) == expected
    assert found[1] is None


@pytest.mark.parametrize(
    "kind, value",
    [
        (pa.int8(), 128),
        (pa.uint8(), -1),
        (pa.bool_(), 2),
        (pa.date32(), "29.2.2024"),
        (pa.date32(), 2**40),
        (pa.timestamp("us"), 1.5),
        (pa.timestamp("us"), 2**70),
        (pa.time32("ms"), "25:00"),
        (pa.binary(), "no base64!"),
        (pa.binary(2), base64.b64encode(b"123").decode()),
        (pa.float64(), "much"),
        (pa.float64(), True),
        (pa.decimal128(5, 2), {}),
        (pa.decimal128(5, 2), "1e999999999"),
        (pa.string(), []),
    ],
)
def test_values_that_do_not_fit(kind: pa.DataType, value: Any) -> None:
    array, bad = array_of([value], pa.field("x", kind))
    assert array.to_pylist() == [None]
    assert f"is no {kind}" in bad[0]


def test_no_part_of_a_time_is_cut_off() -> None:
    array, bad = array_of([1_000_000, 1_000_001], pa.field("x", pa.timestamp("ms")), ["ns", "ns"])
    assert array.cast(pa.int64()).to_pylist() == [1, None]
    assert bad == {1: "column 'x': 1000001 is no timestamp[ms], which counts ms"}


def test_units_from_the_schema_and_from_the_caller() -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us")), ("price", pa.decimal128(9, 2))])
    after = {"id": 1, "at": MS, "price": base64.b64encode((150).to_bytes(2, "big")).decode()}
    fields = [
        {"field": "at", "type": "int64", "name": "io.debezium.time.Timestamp"},
        {"field": "price", "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal"},
    ]
    described = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
    wrapped = json.dumps({"schema": described, "payload": json.loads(line("c", after=after))})
    found = read(wrapped, schema=schema)
    assert found.rows.select(["at", "price"]).to_pylist() == [
        {"at": MOMENT.replace(tzinfo=None), "price": Decimal("1.5")}
    ]
    plain = read(line("c", after={**after, "price": "1.5"}), schema=schema, time_unit="ms")
    assert plain.rows["at"].to_pylist() == [MOMENT.replace(tzinfo=None)]
    with pytest.raises(ArgumentError, match="time_unit='days'"):
        read(schema=schema, time_unit="days")


def test_the_time_of_the_source() -> None:
    found = read(
        line("c", after=row(1), ts_ms=MS + 5, source={"ts_ms": MS}),
        line("c", after=row(2), ts_ms=MS),
        line("d", before=row(3)),
    )
    assert found.rows.sort_by("id")["_time"].to_pylist() == [MOMENT, MOMENT, None]
