"""docs/adding_a_warehouse.md, followed as it is written: its file, its line, the contract, and a pipeline."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from semistream.pipeline import PipelineFileError, load
from semistream.warehouse import WAREHOUSES
from semistream.warehouse.contract import WarehouseForm
from tests.pages import blocks, followed
from tests.spark.conftest import spark
from tests.warehouse import test_warehouses as contract
from tests.warehouse.warehouses import KINDS, Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]
[PIPELINE] = blocks("adding_a_warehouse.md", "toml")
CASES = [
    (group, name)
    for group in (contract.TestExactlyOnce, contract.TestAskedBefore, contract.TestRefused, contract.TestMirror)
    for name, case in inspect.getmembers(group, inspect.isfunction)
    if list(inspect.signature(case).parameters) == ["self", "place"] and not hasattr(case, "pytestmark")
]


@pytest.fixture(scope="module", autouse=True)
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The page's own text: the file as a module of the package, the line in its registry."""
    place = tmp_path_factory.mktemp("toy")
    with followed("adding_a_warehouse.md", "semistream.warehouse.lake", place) as (module, line):
        registry: dict[str, Any] = {"_ALL": tuple(WAREHOUSES.values())}
        exec(line, registry)
        form: WarehouseForm = registry["_ALL"][-1]
        WAREHOUSES[form.word] = form
        KINDS[form.word] = lambda place: module.LakeWarehouse(place.root)
        yield
        del WAREHOUSES[form.word], KINDS[form.word]


@pytest.mark.parametrize("group, name", CASES, ids=[name for _, name in CASES])
def test_it_keeps_the_contract(group: Callable[[], object], name: str, tmp_path: Path) -> None:
    getattr(group(), name)(Place("lake", str(tmp_path / "warehouse"), ""))


def test_checked(tmp_path: Path) -> None:
    file = tmp_path / "sales.toml"
    (tmp_path / "incoming").mkdir()
    for old, new, line, words in (
        ("lake =", "lak =", 11, "the sink is one of delta, postgres, lake"),
        ("table =", "schema = 's'\ntable =", 13, "a lake sink has no setting 'schema'; it has lake, table"),
        ('"warehouse"', '"s3://warehouse"', 12, "s3://warehouse"),
    ):
        file.write_text(PIPELINE.replace(old, new, 1), encoding="utf-8")
        with pytest.raises(PipelineFileError) as error:
            load(file)
        assert f"line {line}: " in str(error.value)
        assert words in str(error.value)


def test_run(tmp_path: Path, spark: SparkSession) -> None:
    file = tmp_path / "sales.toml"
    file.write_text(PIPELINE, encoding="utf-8")
    (tmp_path / "incoming").mkdir()
    rows = [{"sale_id": n, "quantity": quantity} for n, quantity in enumerate([1, 0, None])]
    (tmp_path / "incoming" / "0.json").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    pipeline = load(file)
    pipeline.run(spark, once=True)
    assert pipeline.sink.read("sales").to_pylist() == [{"sale_id": 0, "quantity": 1}]
    assert pipeline.sink.describe() == f"Parquet files in {tmp_path / 'warehouse'}"
