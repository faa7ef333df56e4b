"""docs/adding_a_step.md, followed as it is written: its file, its line, and a pipeline that uses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from semistream.pipeline import PipelineFileError, load
from semistream.pipeline.steps import STEPS
from semistream.pipeline.steps.contract import StepForm
from tests.pages import blocks, followed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

[PIPELINE] = blocks("adding_a_step.md", "toml")


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The step, made from the page's own text: the file as a module of the package, the line in its registry."""
    place = tmp_path_factory.mktemp("toy")
    with followed("adding_a_step.md", "semistream.pipeline.steps.reject", place) as (_, line):
        registry: dict[str, Any] = {"_ALL": tuple(STEPS.values())}
        exec(line, registry)
        form: StepForm = registry["_ALL"][-1]
        STEPS[form.word] = form
        yield form
        del STEPS[form.word]


@pytest.fixture
def file(toy: StepForm, tmp_path: Path) -> Path:
    assert toy.settings == ("reason",)
    (tmp_path / "incoming").mkdir()
    path = tmp_path / "sales.toml"
    path.write_text(PIPELINE, encoding="utf-8")
    return path


def test_checked(file: Path) -> None:
    assert load(file).check()[:2] == ["reject where quantity > 1000: more than we have", "keep where quantity > 0"]
    for old, new, line, words in (
        ("quantity > 1000", "quantty > 1000", 10, "did you mean 'quantity'"),
        ("quantity > 1000", "", 10, "give a condition in SQL"),
        ("reason =", "reasons =", 11, "a reject has no setting 'reasons'; it has reason (did you mean 'reason'?)"),
    ):
        file.write_text(PIPELINE.replace(old, new, 1), encoding="utf-8")
        with pytest.raises(PipelineFileError) as error:
            load(file)
        assert f"line {line}: " in str(error.value)
        assert words in str(error.value)


def test_run(file: Path, spark: SparkSession) -> None:
    rows = [{"sale_id": n, "quantity": quantity} for n, quantity in enumerate([1, 2000, 0, None])]
    (file.parent / "incoming" / "0.json").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    pipeline = load(file)
    done = pipeline.run(spark, once=True)
    assert done is not None
    assert {name: rows for name, rows in done.counts.items() if rows} == {
        "rows_in": 4,
        "enriched": 1,
        "quarantined": 1,
        "filtered": 2,
    }
    assert pipeline.sink.read("sales").to_pylist() == [{"sale_id": 0, "quantity": 1}]
    [bad] = pipeline.sink.read("sales_quarantine").to_pylist()
    assert (bad["record"], bad["reason"]) == ('{"sale_id":1,"quantity":2000}', "more than we have")
