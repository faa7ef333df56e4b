"""``algorithm="auto"``: the join with the best predicted rate among those that the budget allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from semistream.contracts import Join, JoinPlan, Prediction
from semistream.errors import ArgumentError, MemoryBudgetError, choose
from semistream.joins import JOINS


@dataclass(frozen=True)
class Choice:
    """The algorithm chosen, why, and what its model predicts."""

    join: type[Join]
    reason: str
    prediction: Prediction


def choose_algorithm(
    algorithm: str, store: Any, plan: JoinPlan, memory_bytes: int, *, copies: int = 1, skew: float = 1.0
) -> Choice:
    """Resolve ``algorithm``; with "auto", a master that takes less than half of the budget is simply held whole.

    ``copies`` joins share the budget. A master that is held whole is shared by them: at most two versions at once.
    """
    choose("algorithm", algorithm, ("auto", *JOINS))
    able = [name for name, kind in JOINS.items() if _suits(kind, plan)]
    if algorithm not in ("auto", *able):
        what = "join on a condition" if plan.condition is not None else "keep the stream's order"
        raise ArgumentError(f"algorithm={algorithm!r} cannot {what}; these can: {', '.join(able)}")
    if algorithm == "auto" and len(able) < len(JOINS):
        algorithm = able[0]
    if algorithm != "auto":
        kind = JOINS[algorithm]
        _check_memory(kind, store, plan, memory_bytes, min(copies, 2) if kind.name == "reference" else copies)
        return Choice(kind, "asked for", kind.predict(store, plan, memory_bytes, skew))
    whole = JOINS["reference"].least_bytes(store, plan)
    sweep = JOINS["sweep"]
    if whole <= memory_bytes // 2:
        kind = JOINS["reference"]
        reason = f"the columns needed take about {whole:,} bytes, which fits: the master is simply held whole"
        return Choice(kind, reason, kind.predict(store, plan, memory_bytes, skew))
    _check_memory(sweep, store, plan, memory_bytes, copies)
    return Choice(
        sweep,
        f"the columns needed take about {whole:,} bytes, more than half of the budget of {memory_bytes:,}: "
        "hot rows are cached, the others read by planned sweeps",
        sweep.predict(store, plan, memory_bytes, skew),
    )


def _suits(kind: type[Join], plan: JoinPlan) -> bool:
    return (plan.condition is None or kind.takes_conditions) and (not plan.ordered or kind.keeps_order)


def _check_memory(kind: type[Join], store: Any, plan: JoinPlan, memory_bytes: int, copies: int) -> None:
    least = kind.least_bytes(store, plan) * copies
    if least > memory_bytes:
        raise MemoryBudgetError(
            f"memory={memory_bytes:,} bytes is too small for {kind.name} with this master; "
            f"give more memory, at least {least:,} bytes"
        )
