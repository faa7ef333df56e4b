"""Values that a warehouse cannot keep: their rows go to quarantine with a reason, the others are loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from semistream import MasterStore
from semistream.dimensions.dimension import Dimension
from semistream.pipeline import Pipeline, assign_keys, compute, lookup, select, source
from semistream.pipeline.steps.contract import Step
from semistream.warehouse.contract import Warehouse
from semistream.warehouse.delta_tables import DeltaWarehouse
from semistream.warehouse.postgres import PostgresWarehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = {"id": "bigint", "at": "timestamp", "local": "timestamp_ntz", "day": "date", "text": "string", "x": "double"}
GOOD = {"at": "2026-01-01T10:00:00Z", "local": "2026-01-01T10:00:00", "day": "2026-01-01", "text": "fine", "x": 1.5}
FIT: list[dict[str, Any]] = [
    {},
    {"at": "0001-01-01T00:00:00Z", "local": "0001-01-01T00:00:00", "day": "0001-01-01"},
    {"at": "9999-12-31T23:59:59.999999Z", "local": "9999-12-31T23:59:59.999999", "day": "9999-12-31"},
    {"x": "NaN"},
    {"x": "-Infinity"},
    {"x": 5e-324},
    {"text": ""},
    {"text": None, "at": None, "local": None, "day": None},
]
UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"at": "0000-06-01T00:00:00Z"}, "at is outside of the years 1 to 9999"),
    ({"at": "-0044-03-15T00:00:00Z"}, "at is outside of the years 1 to 9999"),
    ({"at": "+10000-01-01T00:00:00Z"}, "at is outside of the years 1 to 9999"),
    ({"at": "0001-01-01T00:00:00+05:00"}, "at is outside of the years 1 to 9999"),
    ({"local": "0000-12-31T23:59:59"}, "local is outside of the years 1 to 9999"),
    ({"local": "+12345-01-01T00:00:00"}, "local is outside of the years 1 to 9999"),
    ({"day": "0000-12-31"}, "day is outside of the years 1 to 9999"),
    ({"day": "-0044-03-15"}, "day is outside of the years 1 to 9999"),
    ({"day": "+10000-01-01"}, "day is outside of the years 1 to 9999"),
    ({"text": "a\0b"}, "text holds a NUL character"),
]
KINDS = ("delta", "postgres")


def opened(kind: str, root: Path, request: pytest.FixtureRequest) -> Warehouse:
    if kind == "postgres":
        address = request.getfixturevalue("postgres")
        return PostgresWarehouse(address, staging=root / "staging", schema=root.name)
    return DeltaWarehouse(root / "warehouse")


def run(root: Path, spark: SparkSession, sink: Warehouse, steps: list[Step], lines: list[Any]) -> dict[str, int]:
    incoming = root / "incoming"
    incoming.mkdir(exist_ok=True)
    texts = [line if isinstance(line, str) else json.dumps(GOOD | line) for line in lines]
    (incoming / "0.json").write_text("\n".join(texts) + "\n", encoding="utf-8")
    made = Pipeline(
        source("json", incoming, schema=SCHEMA, allowNonNumericNumbers=True),
        steps,
        sink,
        table="events",
        state=root / "state",
        max_bad_rate=1.0,
    )
    done = made.run(spark, once=True)
    assert done is not None
    return done.totals


@pytest.mark.parametrize("kind", KINDS)
def test_from_the_source(kind: str, tmp_path: Path, spark: SparkSession, request: pytest.FixtureRequest) -> None:
    sink = opened(kind, tmp_path, request)
    fit = [{"id": number, **row} for number, row in enumerate(FIT)]
    unfit = [{"id": 100 + number, **row} for number, (row, _) in enumerate(UNFIT)]
    broken = ['{"id": 1, "text": "raw \0 NUL"', "\0\1"]
    totals = run(tmp_path, spark, sink, [], [*fit, *unfit, *broken])
    refused = len(UNFIT) if kind == "postgres" else 0
    assert (totals["enriched"], totals["quarantined"]) == (len(fit) + len(UNFIT) - refused, refused + len(broken))
    found = sink.read("events")
    assert set(found["id"].to_pylist()) >= {row["id"] for row in fit}
    assert found.num_rows == totals["enriched"]
    bad = sink.read("events_quarantine").to_pylist()
    if kind == "postgres":
        reasons = {
            json.loads(row["record"])["id"]: row["reason"] for row in bad if "cannot be read" not in row["reason"]
        }
        assert {number: reason.partition(",")[0] for number, reason in reasons.items()} == {
            100 + number: reason for number, (_, reason) in enumerate(UNFIT)
        }


def test_from_the_steps(tmp_path: Path, spark: SparkSession, request: pytest.FixtureRequest) -> None:
    """What is computed or looked up is checked too; what no table gets is not."""
    sink = opened("postgres", tmp_path, request)
    master = pa.table({"text": ["fine", "nul"], "note": ["ok", "n\0l"]})
    MasterStore.build(master, tmp_path / "notes", key="text")
    steps: list[Step] = [
        lookup(tmp_path / "notes", on="text"),
        compute(
            later="CASE WHEN id = 2 THEN timestamp_micros(253402300800000000) ELSE at END",
            bytes="CASE WHEN id = 3 THEN CAST(X'FF' AS STRING) ELSE 'fine' END",
        ),
        select("id", "note", "later", "bytes"),
    ]
    rows = [{"id": 0, "day": "-0044-03-15"}, {"id": 1, "text": "nul"}, {"id": 2}, {"id": 3}]
    totals = run(tmp_path, spark, sink, steps, rows)
    assert (totals["enriched"], totals["quarantined"]) == (1, 3)
    reasons = {
        json.loads(row["record"])["id"]: row["reason"].partition(",")[0]
        for row in sink.read("events_quarantine").to_pylist()
    }
    assert reasons == {
        1: "note holds a NUL character",
        2: "later is outside of the years 1 to 9999",
        3: "bytes is not UTF-8",
    }


def test_rows_put_aside_and_members_that_are_made(
    tmp_path: Path, spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    """Unmatched rows have a table too, and so have members: neither may get what the database cannot keep."""
    sink = opened("postgres", tmp_path, request)
    MasterStore.build(pa.table({"x": [1.5], "rate": [2]}), tmp_path / "rates", key="x")
    Dimension.create(
        tmp_path / "texts",
        key=pa.schema({"name": pa.string()}),
        attributes=pa.schema({"about": pa.string()}),
        surrogate="text_sk",
    )
    steps: list[Step] = [
        lookup(tmp_path / "rates", on="x", on_miss="redirect"),
        compute(name="CASE WHEN id = 4 THEN concat(text, CAST(X'00' AS STRING)) ELSE text END"),
        assign_keys(tmp_path / "texts", on="name", infer_members=True),
        select("id", "text_sk"),
    ]
    rows: list[Any] = [
        {"id": 0},
        {"id": 1, "x": 9.0},
        {"id": 2, "x": 9.0, "day": "-0044-03-15"},
        {"id": 3, "text": "a\0b"},
        {"id": 4},
    ]
    totals = run(tmp_path, spark, sink, steps, rows)
    assert (totals["enriched"], totals["unmatched"], totals["quarantined"]) == (1, 1, 3)
    assert sink.read("events_unmatched")["id"].to_pylist() == [1]
    assert [row["name"] for row in sink.read("texts").to_pylist()] == ["fine"]
