"""The checksum does not depend on order, and sees a single wrong value."""

from __future__ import annotations

import pyarrow as pa
import pytest

from semistream_lab.checks import Checksum

ROWS = {"at": [1, 2, 3], "price": [0.5, None, 1.5], "name": ["a", "", None], "day": pa.array([1, 2, None], pa.date32())}


def checksum(*batches: pa.RecordBatch) -> str:
    total = Checksum()
    for batch in batches:
        total.add(batch)
    return total.text


def test_order_and_batches_do_not_matter() -> None:
    batch = pa.record_batch(ROWS)
    assert checksum(batch) == checksum(batch.slice(2), batch.slice(0, 2)) == checksum(batch.take(pa.array([2, 0, 1])))


@pytest.mark.parametrize(
    "column, values",
    [
        ("at", [1, 2, 4]),
        ("price", [0.5, 0.0, 1.5]),
        ("price", [None, 0.5, 1.5]),  # the same values, but with another row
        ("name", ["a", None, ""]),
        ("name", ["b", "", None]),
    ],
)
def test_a_wrong_value_shows(column: str, values: list[object]) -> None:
    assert checksum(pa.record_batch({**ROWS, column: values})) != checksum(pa.record_batch(ROWS))


def test_a_row_twice_shows() -> None:
    batch = pa.record_batch(ROWS)
    assert checksum(batch, batch.slice(0, 1)) != checksum(batch)
