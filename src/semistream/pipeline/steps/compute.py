"""``compute``: columns by Spark SQL."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from semistream.errors import ArgumentError
from semistream.pipeline.decision import Masters
from semistream.pipeline.memory import Memory
from semistream.pipeline.steps.contract import Known, Step, StepForm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from semistream.pipeline.layout import Layout


@dataclass(frozen=True)
class Compute(Step):
    """Add columns computed by Spark SQL expressions."""

    columns: dict[str, str]

    def check(self, known: Known) -> None:
        for name, expression in self.columns.items():
            known.need_used(expression, name)
            known.add(name, None, name)

    def describe(self, memory: Memory) -> list[str]:
        return [f"compute {name} = {expression}" for name, expression in self.columns.items()]

    def apply(self, frame: "DataFrame", layout: "Layout", masters: Masters) -> "DataFrame":
        from pyspark.sql import functions as F

        return frame.withColumns({name: F.expr(expression) for name, expression in self.columns.items()})


def compute(**columns: str) -> Compute:
    """Add columns: ``compute(revenue="quantity * price")``, in Spark SQL."""
    for name, expression in columns.items():
        if not isinstance(expression, str) or not expression.strip():
            said = "give an expression in SQL, such as 'quantity * price'"
            raise ArgumentError(f"compute({name}={expression!r}): {said}")
    if not columns:
        raise ArgumentError("compute() adds no column; name some, as in compute(revenue='quantity * price')")
    return Compute(dict(columns))


FORM = StepForm("compute", lambda value, _: compute(**value))
