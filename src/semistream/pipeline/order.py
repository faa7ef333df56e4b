"""Several masters in one pipeline: what memory each lookup gets, and in which order they come.

Memory is divided so that a row's expected time in all lookups together is least, by the cost models of the planner: a
small master is held whole, the rest goes where it saves most. Lookups that stand side by side and do not need each
other's columns are put in the order that costs least: one that takes time t and lets a share p of its rows go on comes
before another when t / (1 − p) is smaller, the rule for filters; those that let all rows through come last, quickest
first. Shares are those of the batches so far. Where a row that several masters lack would fare differently, the
strictest comes first, so that cost never decides what becomes of a row: those that quarantine NULL keys, then fail,
redirect, drop, hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from semistream.budget import format_bytes, parse_bytes
from semistream.errors import MemoryBudgetError, SemistreamError
from semistream.lookup.bind import bind
from semistream.lookup.choose import SPARK_CANDIDATES, choose_algorithm
from semistream.lookup.spec import LookupSpec
from semistream.pipeline.steps import Compute, Deduplicate, Keep, Lookup, Step
from semistream.planner.capacity import stream_schema
from semistream.stores import MasterStore

SEEN = "_seen"  # the name under which `deduplicate` gets its memory
_UNITS = 32  # in which memory is divided
_GROWING = 4  # of these, what a master gets at least that grows while the pipeline runs
_STREAM_ROW = 64  # bytes of a row that waits, as far as the planner is concerned
_STRICT = ("fail", "redirect", "drop", "hold")
_PASSES = 0.95  # of the rows, when nothing is known of a lookup that lets some go


@dataclass(frozen=True)
class Asked:
    """One lookup as the planner sees it: a step, or the keys that `deduplicate` looks up."""

    name: str
    store: MasterStore
    columns: tuple[str, ...] | None
    algorithm: str = "auto"
    memory: str | None = None
    grows: bool = False  # by the pipeline's own work: it will need more than it does now

    def seconds(self, memory_bytes: int, tasks: int) -> tuple[float, str]:
        """Expected seconds a row and the algorithm; infinitely many when the memory is too small."""
        schema = stream_schema(self.store, _STREAM_ROW)
        on = dict(zip(self.store.key, self.store.key, strict=True))
        columns: Sequence[str] | None = [] if self.store.rows == 0 else self.columns
        plan = bind(LookupSpec(on=on, columns=columns, suffix="_master"), schema, self.store)
        try:
            choice = choose_algorithm(
                self.algorithm, self.store, plan, memory_bytes, copies=tasks, candidates=SPARK_CANDIDATES
            )
        except MemoryBudgetError:
            return math.inf, ""
        rate = choice.rows_per_second
        return (1 / rate if rate > 0 else 1e-6), choice.join.name


@dataclass(frozen=True)
class Share:
    """What a lookup gets, and what is expected of it."""

    memory_bytes: int
    seconds: float
    algorithm: str


def divide(asked: Sequence[Asked], memory: int, tasks: int) -> dict[str, Share]:
    """Memory for each; those that name their own get it, the others share the rest by least expected time."""
    if not asked:
        return {}
    shares: dict[str, Share] = {}
    left = memory
    for one in asked:
        if one.memory is not None:
            size = parse_bytes(one.memory, whole=one.store.bytes)
            left -= size
            shares[one.name] = Share(size, *one.seconds(size, tasks))
    free = [one for one in asked if one.memory is None]
    if left < 0 or (free and left == 0):
        named = ", ".join(f"{name} {format_bytes(share.memory_bytes)}" for name, share in shares.items())
        raise MemoryBudgetError(f"memory={format_bytes(memory)} is less than the lookups ask for by name ({named})")
    if not free:
        return shares
    unit = max(1, left // max(_UNITS, len(free)))
    least = min(_GROWING, _UNITS // len(free))
    costs = [
        [
            (math.inf, "") if one.grows and units < least else one.seconds(units * unit, tasks)
            for units in range(1, _UNITS + 1)
        ]
        for one in free
    ]
    # best[u]: the least time of the lookups so far in u units, and how they divide them
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for cost in costs:
        following: dict[int, tuple[float, list[int]]] = {}
        for used, (time, taken) in best.items():
            for units, (seconds, _) in enumerate(cost, 1):
                total = used + units
                if total <= _UNITS and seconds < math.inf and time + seconds < following.get(total, (math.inf, []))[0]:
                    following[total] = (time + seconds, [*taken, units])
        best = following
    if not best:
        needs = "; ".join(f"{one.name} has {format_bytes(one.store.bytes)}" for one in free)
        raise MemoryBudgetError(
            f"memory={format_bytes(memory)} is too small for {len(free)} lookups at once ({needs}); give more"
        )
    _, taken = min(best.values(), key=lambda item: item[0])
    spare = (_UNITS - sum(taken)) // len(free)  # nobody gains by it, but caches grow with the stream's needs
    for one, units, known in zip(free, taken, costs, strict=True):
        units += spare
        shares[one.name] = Share(units * unit, *known[units - 1])
    return shares


def ordered(steps: Sequence[Step], shares: Mapping[str, Share], passing: Mapping[str, float]) -> list[Step]:
    """The steps, with lookups that stand side by side in the order that costs least."""
    result: list[Step] = []
    run: list[Lookup] = []
    for step in steps:
        if isinstance(step, Lookup) and not _needs(step, run):
            run.append(step)
            continue
        result += _cheapest_first(run, shares, passing)
        run = [step] if isinstance(step, Lookup) else []
        if not run:
            result.append(step)
    return result + _cheapest_first(run, shares, passing)


def _needs(step: Lookup, before: Sequence[Lookup]) -> bool:
    """Does a lookup use columns that others of this run add?"""
    wanted = {*step.on, *([step.as_of] if step.as_of else [])}
    for one in before:
        try:
            store = MasterStore.open(one.store)
        except SemistreamError:
            return True
        names = one.columns if one.columns is not None else store.schema.names
        if wanted & {one.rename.get(name, name) for name in names}:
            return True
    return False


def _cheapest_first(run: list[Lookup], shares: Mapping[str, Share], passing: Mapping[str, float]) -> list[Lookup]:
    def rank(step: Lookup) -> tuple[bool, int, float, float]:
        seconds = shares[step.name].seconds
        lets_go = step.on_miss in ("drop", "redirect", "hold")
        share = passing.get(step.name, _PASSES) if lets_go else 1.0
        strict = _STRICT.index(step.on_miss) if step.on_miss in _STRICT else len(_STRICT)
        cost = seconds / (1 - share) if share < 1 else math.inf
        return (step.on_null != "quarantine", strict, cost, seconds)

    return sorted(run, key=rank)


def described(steps: Sequence[Step], shares: Mapping[str, Share]) -> list[str]:
    """Lines for people: each step in its order, with memory and algorithm."""
    lines = []
    for step in steps:
        if isinstance(step, Lookup):
            share = shares[step.name]
            lines.append(
                f"lookup {step.name} on {', '.join(step.on)}: {share.algorithm or 'to be chosen'} in "
                f"{format_bytes(share.memory_bytes)}, misses: {step.on_miss}"
            )
        elif isinstance(step, Deduplicate):
            lines.append(f"deduplicate by {', '.join(step.key)}")
        elif isinstance(step, Compute):
            lines.extend(f"compute {name} = {expression}" for name, expression in step.columns.items())
        elif isinstance(step, Keep):
            lines.append(f"keep where {step.condition}")
        else:
            renamed = (name if name == column else f"{name} = {column}" for name, column in step.columns.items())
            lines.append(f"select {', '.join(renamed)}")
    return lines
