"""Columns of a master that Spark has no type for."""

import pyarrow as pa
import pytest

from semistream.spark.frames import fitted, spark_arrow


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_nanoseconds_are_cut_off(zone: str | None) -> None:
    column = pa.array([1_999, -1, 0, None], pa.timestamp("ns", zone))
    kind = spark_arrow(column.type)
    assert fitted(column, kind).equals(pa.array([1, -1, 0, None], kind))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([7, None], pa.timestamp("s")),
        pa.array([7, None], pa.timestamp("ms", "UTC")),
        pa.array(["text", None], pa.large_string()),
        pa.array([b"four", None], pa.binary(4)),
    ],
    ids=["s", "ms", "text", "bytes"],
)
def test_nothing_else_changes(column: pa.Array) -> None:
    assert fitted(column, spark_arrow(column.type)).to_pylist() == column.to_pylist()
