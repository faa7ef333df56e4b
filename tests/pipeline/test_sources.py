"""Declared sources: what a source cannot use is refused, what it cannot read is put into quarantine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from semistream.errors import ArgumentError
from semistream.pipeline import Pipeline, compute, source
from semistream.pipeline.file import load
from semistream.pipeline.sources import FILES, FORMATS
from semistream.pipeline.steps import check_steps
from semistream.warehouse.delta_tables import DeltaWarehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind not in FILES])
def test_a_schema_that_nobody_would_use(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=rf"schema= .*parquet, csv, json only.*format='{kind}'"):
        source(kind, schema={"product": "string"})
    (tmp_path / "p.toml").write_text(
        'state = "state"\nsink = { delta = "w", table = "t" }\n'
        f'[source]\nformat = "{kind}"\nschema = {{ product = "string" }}\n'
    )
    with pytest.raises(ArgumentError, match=r"line 5: .*schema="):
        load(tmp_path / "p.toml")


def test_what_becomes_of_bad_records_is_not_an_option(tmp_path: Path) -> None:
    for name, value in (("mode", "DROPMALFORMED"), ("columnNameOfCorruptRecord", "bad"), ("MODE", "FAILFAST")):
        with pytest.raises(ArgumentError, match=f"{name}=.* quarantine"):
            source("json", tmp_path, schema={"id": "bigint"}, **{name: value})


def test_records_that_a_step_cannot_parse() -> None:
    """from_json gives a row of NULLs for a broken record: whoever wants that must say so."""
    columns = source("kafka").columns()
    for function in ("from_json", "from_csv"):
        text = f"{function}(CAST(value AS STRING), 'product STRING')"
        with pytest.raises(ArgumentError, match=f"{function} .*'mode', 'FAILFAST'"):
            check_steps([compute(product=f"{text}.product")], columns)
        said = text.replace("')", "', map('mode', 'FAILFAST'))")
        check_steps([compute(product=f"{said}.product")], columns)


BROKEN = {
    "csv": "id,name,price\n1,a,1.5\nx,b,1.5\n3,c\n4,d,1.5,more\n5,e,much\n6,f,2.5\n",
    "json": """{"id": 1, "name": "a", "price": 1.5}
{"id": "x", "name": "b", "price": 1.5}
{"id": 3, "name":
[1, 2]x
{"id": 5, "name": "e", "price": "much"}
{"id": 6, "name": "f", "price": 2.5}
""",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_records_that_cannot_be_read(kind: str, tmp_path: Path, spark: SparkSession) -> None:
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    (incoming / f"0.{kind}").write_text(BROKEN[kind])
    sink = DeltaWarehouse(tmp_path / "warehouse")
    schema = {"id": "bigint", "name": "string", "price": "double"}
    done = Pipeline(
        source(kind, incoming, schema=schema), [], sink, table="t", state=tmp_path / "state", max_bad_rate=1.0
    ).run(spark, once=True)
    assert done is not None
    assert sorted(sink.read("t")["id"].to_pylist()) == [1, 6]
    bad = sink.read("t_quarantine").to_pylist()
    assert len(bad) == done.totals["quarantined"] == 4
    assert {row["reason"] for row in bad} == {"the record cannot be read as it is declared"}
    lines = BROKEN[kind].splitlines()
    assert {row["record"] for row in bad} <= set(lines)
