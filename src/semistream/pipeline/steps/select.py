"""``select``: the table's columns."""

from dataclasses import dataclass

from semistream.errors import ArgumentError
from semistream.pipeline.memory import Memory
from semistream.pipeline.steps.contract import Known, Step, StepForm


@dataclass(frozen=True)
class Select(Step):
    """The columns of the table, in this order; by default all that there are. They are taken when rows are written."""

    columns: dict[str, str]  # name in the table: column

    @property
    def table(self) -> dict[str, str]:
        return self.columns

    def check(self, known: Known) -> None:
        known.need((name for name in self.columns.values() if name not in known.given_later), "select")
        if not known.last:
            raise known.error("select", "select says what the table gets, so it must be the last step")

    def describe(self, memory: Memory) -> list[str]:
        renamed = (name if name == column else f"{name} = {column}" for name, column in self.columns.items())
        return [f"select {', '.join(renamed)}"]


def select(*columns: str, **renamed: str) -> Select:
    """The columns of the table: ``select("sale_id", "product_sk", amount="revenue")``."""
    chosen = {**{name: name for name in columns}, **renamed}
    if not chosen or len(chosen) < len(columns) + len(renamed):
        raise ArgumentError("select() must name each column of the table once")
    return Select(chosen)


FORM = StepForm("select", lambda value, _: select(**value) if isinstance(value, dict) else select(*value))
