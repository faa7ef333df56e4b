"""``algorithm="auto"``: the join with the best predicted rate among those that the budget allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from semistream.contracts import Join, JoinPlan, Prediction, Workload
from semistream.errors import ArgumentError, MemoryBudgetError, choose
from semistream.joins import JOINS
from semistream.planner.rates import Costs, current_costs

# Left to those who ask for them: inl and pcsrj have other joins' work to do, partition lets rows wait without end.
CANDIDATES = tuple(name for name in JOINS if name not in ("inl", "pcsrj", "partition"))
# `sweep` keeps its cache between the tasks of Spark, the papers' joins do not.
SPARK_CANDIDATES = ("reference", "sweep")
_ADVANTAGE = 1.25  # another join must promise so much more than `sweep`: models err


@dataclass(frozen=True)
class Choice:
    """The algorithm chosen, why, what its model predicts, and the rate of a core that follows."""

    join: type[Join]
    reason: str
    prediction: Prediction
    rows_per_second: float


def choose_algorithm(
    algorithm: str,
    store: Any,
    plan: JoinPlan,
    memory_bytes: int,
    *,
    copies: int = 1,
    workload: Workload | None = None,
    candidates: Sequence[str] = CANDIDATES,
    costs: Costs | None = None,
) -> Choice:
    """Resolve ``algorithm``; with "auto", a master that takes less than half of the budget is simply held whole.

    ``copies`` joins share the budget. A master that is held whole is shared by them: at most two versions at once.
    """
    choose("algorithm", algorithm, ("auto", *JOINS))
    able = [name for name, kind in JOINS.items() if _suits(kind, plan)]
    if algorithm not in ("auto", *able):
        what = "join on a condition" if plan.condition is not None else "keep the stream's order"
        raise ArgumentError(f"algorithm={algorithm!r} cannot {what}; these can: {', '.join(able)}")
    workload, costs = workload or Workload(), costs or current_costs()
    if algorithm != "auto":
        kind = JOINS[algorithm]
        _check_memory(kind, store, plan, memory_bytes, min(copies, 2) if kind.name == "reference" else copies)
        return _chosen(kind, "asked for", store, plan, memory_bytes, workload, costs)
    whole = JOINS["reference"].least_bytes(store, plan)
    if "reference" in able and whole <= memory_bytes // 2:
        reason = f"the columns needed take about {whole:,} bytes, which fits: the master is simply held whole"
        return _chosen(JOINS["reference"], reason, store, plan, memory_bytes, workload, costs)
    names = [name for name in candidates if name in able and name != "reference"] or able[:1]
    first = JOINS["sweep" if "sweep" in names else names[0]]
    _check_memory(first, store, plan, memory_bytes, copies)
    fitting = [name for name in names if JOINS[name].least_bytes(store, plan) * copies <= memory_bytes]
    ranked = list(_ranked(fitting, store, plan, memory_bytes, workload, costs))
    return _best(ranked, first, f"the columns needed take about {whole:,} bytes, more than half of {memory_bytes:,}")


def _ranked(
    names: Sequence[str], store: Any, plan: JoinPlan, memory_bytes: int, workload: Workload, costs: Costs
) -> Iterator[Choice]:
    for name in names:
        yield _chosen(JOINS[name], "", store, plan, memory_bytes, workload, costs)


def _best(choices: list[Choice], first: type[Join], because: str) -> Choice:
    """The quickest; `sweep`, or what stands first, unless another promises much more."""
    quickest = max(choices, key=lambda choice: choice.rows_per_second)
    usual = next((choice for choice in choices if choice.join is first), quickest)
    if quickest.rows_per_second < _ADVANTAGE * usual.rows_per_second or quickest is usual:
        return Choice(usual.join, f"{because}: {usual.join.idea}", usual.prediction, usual.rows_per_second)
    more = quickest.rows_per_second / usual.rows_per_second
    reason = f"{because}; {more:.1f} times the rate that {usual.join.name} promises: {quickest.join.idea}"
    return Choice(quickest.join, reason, quickest.prediction, quickest.rows_per_second)


def _chosen(
    kind: type[Join], reason: str, store: Any, plan: JoinPlan, memory_bytes: int, workload: Workload, costs: Costs
) -> Choice:
    said = kind.predict(store, plan, memory_bytes, workload)
    rate = costs.rate(kind.name, said, store) if kind.name in costs.joins else float("nan")
    return Choice(kind, reason, said, rate)


def _suits(kind: type[Join], plan: JoinPlan) -> bool:
    return (plan.condition is None or kind.takes_conditions) and (not plan.ordered or kind.keeps_order)


def _check_memory(kind: type[Join], store: Any, plan: JoinPlan, memory_bytes: int, copies: int) -> None:
    least = kind.least_bytes(store, plan) * copies
    if least > memory_bytes:
        raise MemoryBudgetError(
            f"memory={memory_bytes:,} bytes is too small for {kind.name} with this master; "
            f"give more memory, at least {least:,} bytes"
        )
