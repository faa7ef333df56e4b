"""``algorithm="auto"``: the join with the best predicted rate among those that the budget allows."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from semistream.budget import Budget
from semistream.errors import ArgumentError, CalibrationError
from semistream.joins import JOINS, choose_join
from semistream.joins.contract import Join, Prediction, Profile
from semistream.lookup.bind import LookupPlan
from semistream.planner.rates import Costs, current_costs, default_costs
from semistream.stores.contract import Store

# Left to those who ask for them: inl and pcsrj have other joins' work to do, partition lets rows wait without end.
CANDIDATES = tuple(name for name in JOINS if name not in ("inl", "pcsrj", "partition"))
# `sweep` keeps its cache between the tasks of Spark, the papers' joins do not.
SPARK_CANDIDATES = ("whole", "sweep")
_ADVANTAGE = 1.25  # another join must promise so much more than `sweep`: models err


@dataclass(frozen=True)
class Choice:
    """The algorithm chosen and why; its model is asked only by those who want to know what it predicts."""

    join: type[Join]
    reason: str
    store: Store
    plan: LookupPlan
    memory_bytes: int
    profile: Profile
    costs: Costs | None = None

    @cached_property
    def prediction(self) -> Prediction:
        return self.join.predict(self.store.facts, self.plan, self.memory_bytes, self.profile)

    @cached_property
    def rows_per_second(self) -> float:
        """The rate of a core that follows; not a number for a join that was never calibrated."""
        costs = self.costs or _costs()
        known = self.join.name in costs.joins
        return costs.rate(self.join.name, self.prediction, self.store.facts) if known else math.nan


def choose_algorithm(
    algorithm: str,
    store: Store,
    plan: LookupPlan,
    memory_bytes: int,
    *,
    given: int | None = None,
    copies: int = 1,
    profile: Profile | None = None,
    candidates: Sequence[str] = CANDIDATES,
    costs: Costs | None = None,
) -> Choice:
    """Resolve ``algorithm`` for ``copies`` joins that share the budget; a master held whole they hold together. The
    budget is what is left of the memory that the user has ``given``.
    """
    algorithm = choose_join("algorithm", algorithm, "auto")
    able = [
        name
        for name, kind in JOINS.items()
        if (plan.condition is None or kind.takes_conditions) and (not plan.ordered or kind.keeps_order)
    ]
    if algorithm not in ("auto", *able):
        what = "join on a condition" if plan.condition is not None else "keep the stream's order"
        raise ArgumentError(f"algorithm={algorithm!r} cannot {what}; these can: {', '.join(able)}")

    def choice(name: str, reason: str = "") -> Choice:
        return Choice(JOINS[name], reason, store, plan, memory_bytes, profile or Profile(), costs)

    def least(name: str, copies: int = 1) -> int:
        return JOINS[name].least_bytes(store.facts, plan) * copies

    def check_memory(name: str, copies: int) -> None:
        Budget(memory_bytes, given=given).check_least(name, least(name, copies))

    if algorithm != "auto":
        check_memory(algorithm, min(copies, 2) if algorithm == "whole" else copies)  # two versions of a master at once
        return choice(algorithm, "asked for")
    able = [name for name in able if JOINS[name].needs <= store.abilities]
    whole = least("whole")
    if "whole" in able and whole <= memory_bytes // 2:
        reason = f"the columns needed take about {whole:,} bytes, which fits: the master is simply held whole"
        return choice("whole", reason)
    names = [name for name in candidates if name in able and name != "whole"] or able[:1]
    usual = "sweep" if "sweep" in names else names[0]
    check_memory(usual, copies)
    because = f"the columns needed take about {whole:,} bytes, more than half of {memory_bytes:,}"
    first = choice(usual, f"{because}: {JOINS[usual].idea}")
    others = [choice(name) for name in names if name != usual and least(name, copies) <= memory_bytes]
    promising = [one for one in others if one.rows_per_second > _ADVANTAGE * first.rows_per_second]
    if not promising:
        return first
    quickest = max(promising, key=lambda one: one.rows_per_second)
    more = quickest.rows_per_second / first.rows_per_second
    return replace(quickest, reason=f"{because}; {more:.1f} times the rate that {usual} promises: {quickest.join.idea}")


def _costs() -> Costs:
    """This machine's; a calibration that cannot be used must not stop a join that only asks which way is quicker."""
    try:
        return current_costs()
    except CalibrationError as error:
        warnings.warn(str(error), stacklevel=2)
        return default_costs()
