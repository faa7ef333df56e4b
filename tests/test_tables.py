"""The comparison and the model that all other tests rely on, tried on cases that are right by eye."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.tables import assert_same_rows, model_join

NAN = float("nan")


def test_order_does_not_count_duplicates_do() -> None:
    one = pa.table({"a": [1, 2, 2, None], "b": [NAN, 0.0, 0.0, None]})
    assert_same_rows(one.take([3, 1, 0, 2]), one)
    with pytest.raises(AssertionError, match="missing"):
        assert_same_rows(one.take([0, 1, 3, 0]), one)
    with pytest.raises(AssertionError, match="3 rows instead of 4"):
        assert_same_rows(one.take([0, 1, 3]), one)


@pytest.mark.parametrize(
    "other",
    [
        pa.table({"b": ["x"], "a": [1]}),
        pa.table({"a": pa.array([1], pa.int32()), "b": ["x"]}),
        pa.table({"a": [1], "c": ["x"]}),
        pa.table({"a": [1], "b": pa.array(["x"], pa.large_string())}),
        pa.table({"a": [1], "b": [None]}, schema=pa.schema([("a", pa.int64()), ("b", pa.string())])),
    ],
)
def test_differences_are_seen(other: pa.Table) -> None:
    with pytest.raises(AssertionError):
        assert_same_rows(other, pa.table({"a": [1], "b": ["x"]}))


@pytest.mark.parametrize(
    "how, rows",
    [
        ("left", [(1, 10), (1, 11), (None, None), (3, None)]),
        ("inner", [(1, 10), (1, 11)]),
        ("semi", [(1,)]),
        ("anti", [(None,), (3,)]),
    ],
)
def test_model(how: str, rows: list[tuple[int | None, ...]]) -> None:
    stream = pa.table({"k": [1, None, 3]})
    master = pa.table({"id": [1, 2, 1, None], "v": [10, 20, 11, 99]})
    joined = model_join(stream, master, {"k": "id"}, how)
    assert list(zip(*joined.to_pydict().values(), strict=True)) == rows


def test_model_key_equality() -> None:
    stream = pa.table({"s": ["a", "a", "a", None], "f": [NAN, -0.0, 1.0, NAN]})
    master = pa.table({"s": ["a", "a", None], "f": [NAN, 0.0, NAN], "v": [1, 2, 3]})
    assert model_join(stream, master, ["s", "f"]).column("v").to_pylist() == [1, 2, None, None]


def test_model_names_and_defaults() -> None:
    stream = pa.table({"k": [1, 2], "v": ["x", "y"]})
    master = pa.table({"k": [1], "v": pa.array([None], pa.string()), "w": [7]})
    joined = model_join(stream, master, "k", "left", ["v", "k"], "_m", {"v_m": "none"})
    assert joined.to_pydict() == {"k": [1, 2], "v": ["x", "y"], "v_m": [None, "none"], "k_m": [1, None]}
