"""A stream's later batches, which find a warm cache, have the same rows as its first: options that decide rows, both
transports.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from semistream import MasterStore
from semistream.spark import enrich
from semistream.spark.spec import Transport
from tests.spark.streams import SMALL, gather, stream
from tests.tables import assert_same_rows, model_join

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = 400
MOMENT = pa.timestamp("us", "UTC")
OPTIONS: dict[str, dict[str, Any]] = {
    "semi-error": {"how": "semi", "multiple": "error"},
    "anti-error": {"how": "anti", "multiple": "error"},
    "inner-error": {"how": "inner", "multiple": "error"},
    "semi-error-as_of": {"how": "semi", "multiple": "error", "as_of": "at"},
    "left-first-as_of": {"multiple": "first", "as_of": "at", "status": "found", "defaults": {"price": -1.0}},
}


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[MasterStore, pa.Table, pa.Table]:
    """Unique keys of fixed width, two thirds of them valid at the stream's moments."""
    at = list(range(KEYS))
    master = pa.table(
        {
            "id": pa.array(at, pa.int64()),
            "price": pa.array([None if n % 7 == 3 else n / 2 for n in at], pa.float64()),
            "valid_from": pa.array([1_000 * (n % 3) for n in at], pa.int64()).cast(MOMENT),
            "valid_to": pa.array([None if n % 5 else 3_000 for n in at], pa.int64()).cast(MOMENT),
        }
    )
    ids = [None if n % 50 == 49 else (n * n) % (2 * KEYS) for n in range(1_500)]
    rows = pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "at": pa.array([500 + n % 3_000 for n in range(1_500)], pa.int64()).cast(MOMENT),
            "n": pa.array(range(1_500), pa.int64()),
        }
    )
    return MasterStore.build(master, tmp_path_factory.mktemp("warm") / "s", key="id"), master, rows


@pytest.mark.parametrize("transport", ["rows", "keys"])
@pytest.mark.parametrize("name", OPTIONS)
def test_every_batch_as_the_first(
    spark: SparkSession, tmp_path: Path, sides: tuple[MasterStore, pa.Table, pa.Table], name: str, transport: Transport
) -> None:
    store, master, rows = sides
    options = OPTIONS[name]
    df = stream(spark, tmp_path / "in", [rows] * 3)
    joined = enrich(
        df, store, on="id", columns=["price"], memory=SMALL, algorithm="sweep", transport=transport, **options
    )
    batches = gather(joined, tmp_path / "checkpoint")
    times = ("at", "valid_from", "valid_to") if "as_of" in options else None
    expected = model_join(rows, master, "id", columns=["price"], **{**options, "as_of": times})
    assert sorted(batches) == [0, 1, 2]
    for batch in batches.values():
        assert_same_rows(batch, expected)
