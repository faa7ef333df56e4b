"""Wrong settings are named when they are made; wrong combinations before the first row."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import semistream
from semistream import MasterStore, Shed, make_join
from semistream.errors import ArgumentError, SchemaError
from semistream.joins.conditions import Band

STREAM = pa.schema({"product": pa.int64(), "quantity": pa.int64()})


@pytest.fixture
def store(tmp_path: Path) -> MasterStore:
    return MasterStore.build(pa.table({"id": [1, 2], "price": [1.5, 2.5]}), tmp_path / "store", key="id")


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"strategy": "best"}, "strategy='best'.*'keep_w', 'sample_w', 'topw', 'cluster_sample'"),
        ({"strategy": None}, "strategy=None"),
        ({"strategy": "optimal_offline"}, "choose one of 'keep_w', .*'cluster_sample'$"),
        ({"max_rows_per_second": 0}, "max_rows_per_second=0 must be a number above 0"),
        ({"max_rows_per_second": -5.0}, "max_rows_per_second=-5.0"),
        ({"max_rows_per_second": float("nan")}, "max_rows_per_second=nan"),
        ({"max_rows_per_second": float("inf")}, "max_rows_per_second=inf"),
        ({"max_rows_per_second": "fast"}, "max_rows_per_second='fast'"),
        ({"max_rows_per_second": True}, "max_rows_per_second=True"),
        ({"to": ""}, "to=''"),
        ({"to": 5}, "to=5"),
        ({"to": "s3://bucket/shed"}, "'s3://bucket/shed' is remote"),
        ({"to": __file__}, "is a file; give a directory"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 1.5}, "seed=1.5"),
        ({"weight_column": ""}, "weight_column=''"),
    ],
    ids=str,
)
def test_settings(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        Shed(**({"strategy": "topw", "to": "shed"} | wrong))


def test_public_and_frozen(tmp_path: Path) -> None:
    assert "Shed" in dir(semistream)
    shed = Shed("topw", max_rows_per_second=5, to=tmp_path)
    with pytest.raises(AttributeError):
        shed.seed = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    "arguments, kind, words",
    [
        ({"shed": "topw"}, ArgumentError, r"shed='topw' must be a semistream.Shed, for example Shed\('topw'"),
        ({"shed": Shed("topw")}, ArgumentError, "to=None.*give to= a directory.*reconcile"),
        ({"shed": Shed("topw", to="x"), "how": "anti"}, ArgumentError, "'topw'.*how='anti'.*'keep_w' or 'sample_w'"),
        (
            {"shed": Shed("keep_w", to="x"), "on": None, "condition": Band("quantity", "price", 1.0, 1.0)},
            ArgumentError,
            "shed= goes with on=, not with condition=",
        ),
        (
            {"shed": Shed("sample_w", to="x", weight_column="quantity")},
            SchemaError,
            "has a column 'quantity' already.*weight_column=",
        ),
        ({"shed": Shed("sample_w", to="x", weight_column="price")}, SchemaError, "'price' is on both sides"),
    ],
    ids=lambda value: "" if not isinstance(value, str) else value[:20],
)
def test_combinations(store: MasterStore, arguments: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=re.compile(words)):
        make_join(STREAM, store, **({"on": {"product": "id"}} | arguments))


def test_a_column_that_parquet_cannot_hold(store: MasterStore, tmp_path: Path) -> None:
    stream = STREAM.append(pa.field("span", pa.month_day_nano_interval()))
    with pytest.raises(SchemaError, match="'span' of type month_day_nano_interval cannot be shed"):
        make_join(stream, store, on={"product": "id"}, shed=Shed("keep_w", to=tmp_path / "shed"))
