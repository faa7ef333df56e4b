"""In which order the lookups of a pipeline come.

Lookups that stand side by side and do not need each other's columns are put in the order that costs least: one that
takes time t and lets a share p of its rows go on comes before another when t / (1 − p) is smaller, the rule for
filters; those that let all rows through come last, quickest first. Shares are those of the batches so far. Where a row
that several masters lack would fare differently, the strictest comes first, so that cost never decides what becomes of
a row: those that quarantine NULL keys, then fail, redirect, drop, hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from semistream.errors import SemistreamError
from semistream.pipeline.memory import Memory
from semistream.pipeline.steps.contract import Step
from semistream.pipeline.steps.lookup import Lookup
from semistream.stores import MasterStore

_STRICT = ("fail", "redirect", "drop", "hold")
_PASSES = 0.95  # of the rows, when nothing is known of a lookup that lets some go


def arrange(steps: Sequence[Step], memory: Memory, passing: Mapping[str, float]) -> list[Step]:
    """The steps, with lookups that stand side by side in the order that costs least."""
    result: list[Step] = []
    run: list[Lookup] = []
    for step in steps:
        if not step.lookups or any(_needs(one, run) for one in step.lookups):
            result += _cheapest_first(run, memory, passing)
            run = []
        run += step.lookups
        if not step.lookups:
            result.append(step)
    return result + _cheapest_first(run, memory, passing)


def _needs(step: Lookup, before: Sequence[Lookup]) -> bool:
    """Does a lookup use columns that others of this run add?"""
    wanted = set(step.asks)
    for one in before:
        try:
            store = MasterStore.open(one.store)
        except SemistreamError:
            return True
        names = one.columns if one.columns is not None else store.schema.names
        if wanted & {one.new_name(name) for name in names}:
            return True
    return False


def _cheapest_first(run: list[Lookup], memory: Memory, passing: Mapping[str, float]) -> list[Lookup]:
    def rank(step: Lookup) -> tuple[bool, int, float, float]:
        seconds = memory[step.name].seconds
        lets_go = step.on_miss in ("drop", "redirect", "hold")
        share = passing.get(step.name, _PASSES) if lets_go else 1.0
        strict = _STRICT.index(step.on_miss) if step.on_miss in _STRICT else len(_STRICT)
        cost = seconds / (1 - share) if share < 1 else math.inf
        return (step.on_null != "quarantine", strict, cost, seconds)

    return sorted(run, key=rank)
