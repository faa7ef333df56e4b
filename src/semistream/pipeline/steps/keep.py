"""``keep``: rows for which a condition holds."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from semistream.errors import ArgumentError
from semistream.pipeline.decision import Masters
from semistream.pipeline.memory import Memory
from semistream.pipeline.routes import FILTERED, leave
from semistream.pipeline.steps.contract import Known, Step, StepForm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from semistream.pipeline.layout import Layout


@dataclass(frozen=True)
class Keep(Step):
    """Keep the rows for which a Spark SQL condition holds; the others are counted and gone."""

    condition: str

    def check(self, known: Known) -> None:
        known.need_used(self.condition, "keep")

    def describe(self, memory: Memory) -> list[str]:
        return [f"keep where {self.condition}"]

    def apply(self, frame: "DataFrame", layout: "Layout", masters: Masters) -> "DataFrame":
        from pyspark.sql import functions as F

        holds = F.coalesce(F.expr(self.condition).cast("boolean"), F.lit(False))
        return leave(frame, ~holds, FILTERED)


def keep(condition: str) -> Keep:
    """Keep the rows for which a condition in Spark SQL holds: ``keep("quantity > 0")``."""
    if not isinstance(condition, str) or not condition.strip():
        raise ArgumentError(f"keep({condition!r}): give a condition in SQL, such as 'quantity > 0'")
    return Keep(condition)


FORM = StepForm("keep", lambda value, _: keep(value))
