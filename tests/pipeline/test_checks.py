"""Steps are checked as far as columns are known; pipelines that could load rows twice are refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from semistream import MasterStore
from semistream.dimensions.dimension import Dimension
from semistream.errors import StepError
from semistream.pipeline import Step, assign_keys, compute, deduplicate, keep, lookup, select
from semistream.pipeline.steps import check_steps
from semistream.pipeline.steps.lookup import OnMiss

SALES = pa.schema({"sale": pa.int64(), "product": pa.string()})


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Several parts a product."""
    table = pa.table({"product": ["p", "p", "q"], "part": ["a", "b", "a"]})
    MasterStore.build(table, tmp_path / "parts", key="product")
    return tmp_path / "parts"


@pytest.fixture
def makers(tmp_path: Path) -> Path:
    MasterStore.build(pa.table({"id": ["a"], "maker": ["x"]}), tmp_path / "makers", key="id")
    return tmp_path / "makers"


@pytest.mark.parametrize("on_miss", ["hold", "redirect"])
def test_copies_of_a_row_that_fare_differently(parts: Path, makers: Path, on_miss: OnMiss) -> None:
    """Of two copies one would be loaded and the other set aside, with the whole row: loaded again when it is tried."""
    several = lookup(parts, on="product", columns=["part"])
    with pytest.raises(StepError, match=f"on_miss='{on_miss}' sets whole rows aside, but 'parts' may give several"):
        check_steps([several, lookup(makers, on={"part": "id"}, on_miss=on_miss)], SALES)
    check_steps([several, lookup(makers, on={"part": "id"}, on_miss="drop")], SALES)
    check_steps([several, lookup(makers, on={"product": "id"}, on_miss=on_miss)], SALES)
    one = lookup(parts, on="product", columns=["part"], multiple="first")
    check_steps([one, lookup(makers, on={"part": "id"}, on_miss=on_miss)], SALES)


def test_deduplicate_after_copies_were_made(parts: Path) -> None:
    several = lookup(parts, on="product", columns=["part"])
    with pytest.raises(StepError, match="'parts' may give several rows for one, all but one of which would go"):
        check_steps([several, deduplicate("sale")], SALES)
    check_steps([deduplicate("sale"), several, keep("part = 'a'")], SALES)


STEPS: list[Step] = [compute(revenue="quantity * price"), select("sale_id", "revenue")]


def test_a_source_whose_columns_only_spark_knows() -> None:
    check_steps(STEPS, None)
    with pytest.raises(StepError, match="there is a column 'revenue' already"):
        check_steps([STEPS[0], compute(revenue="price")], None)


def test_a_source_whose_columns_are_known() -> None:
    with pytest.raises(StepError, match="step 2: there is no column 'sale_id' here"):
        check_steps(STEPS, pa.schema({"quantity": pa.int32(), "price": pa.float64()}))


def test_versions_of_a_member_need_a_moment(tmp_path: Path) -> None:
    Dimension.create(
        tmp_path / "d",
        key=pa.schema({"product": pa.string()}),
        attributes=pa.schema({"price": pa.float64()}),
        surrogate="sk",
        history=True,
    )
    for infers in (False, True):
        with pytest.raises(StepError, match="keeps the versions of its members; say by as_of="):
            check_steps([assign_keys(tmp_path / "d", on="product", infer_members=infers)], SALES)
