"""Steps are checked as far as columns are known."""

from __future__ import annotations

import pyarrow as pa
import pytest

from semistream.pipeline import Step, compute, select
from semistream.pipeline.checks import StepError, check_steps

STEPS: list[Step] = [compute(revenue="quantity * price"), select("sale_id", "revenue")]


def test_a_source_whose_columns_only_spark_knows() -> None:
    check_steps(STEPS, None)
    with pytest.raises(StepError, match="there is a column 'revenue' already"):
        check_steps([STEPS[0], compute(revenue="price")], None)


def test_a_source_whose_columns_are_known() -> None:
    with pytest.raises(StepError, match="step 2: there is no column 'sale_id' here"):
        check_steps(STEPS, pa.schema({"quantity": pa.int32(), "price": pa.float64()}))
