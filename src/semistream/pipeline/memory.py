"""What memory each lookup of a pipeline gets, so that a row's expected time is least, and in which order they come.

Of lookups that do not need each other's columns, one that takes time t and lets a share p of its rows go on comes
before another when t / (1 − p) is smaller, the rule for filters. Where a row that several masters lack would fare
differently the strictest comes first, so that cost never decides what becomes of a row.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semistream.budget import format_bytes, parse_bytes
from semistream.errors import MemoryBudgetError
from semistream.lookup.bind import bind
from semistream.lookup.choose import SPARK_CANDIDATES, choose_algorithm
from semistream.lookup.spec import LookupSpec
from semistream.planner.capacity import stream_schema
from semistream.stores import MasterStore

if TYPE_CHECKING:
    from semistream.pipeline.steps.contract import Step
    from semistream.pipeline.steps.lookup import Lookup

_UNITS = 32  # in which memory is divided
_GROWING = 4  # of these, what a master gets at least that grows while the pipeline runs
_STREAM_ROW = 64  # bytes of a row that waits, as far as the planner is concerned
_STRICT = ("fail", "redirect", "drop", "hold")  # after those that quarantine NULL keys
_PASSES = 0.95  # of the rows, when nothing is known of a lookup that lets some go


@dataclass(frozen=True)
class Claim:
    """What a step looks up, as the planner sees it: a master, or the keys that were loaded."""

    name: str
    store: MasterStore
    columns: Sequence[str] | None
    algorithm: str = "auto"
    memory: int | str | None = None
    grows: bool = False  # by the pipeline's own work: it will need more than it does now

    def seconds(self, memory_bytes: int, tasks: int) -> tuple[float, str]:
        """Expected seconds per row and the algorithm; infinitely many when the memory is too small."""
        columns = [] if self.store.rows == 0 else self.columns
        spec = LookupSpec(on=self.store.key, columns=columns, suffix="_master")
        plan = bind(spec, stream_schema(self.store, _STREAM_ROW), self.store)
        try:
            choice = choose_algorithm(
                self.algorithm, plan.reads(self.store), plan, memory_bytes, copies=tasks, candidates=SPARK_CANDIDATES
            )
        except MemoryBudgetError:
            return math.inf, ""
        rate = choice.rows_per_second
        return (1 / rate if rate > 0 else 1e-6), choice.join.name


@dataclass(frozen=True)
class Allotment:
    memory_bytes: int
    seconds: float
    algorithm: str


Memory = dict[str, Allotment]  # of each lookup, by its name


def divide(claims: Sequence[Claim], memory: int, tasks: int) -> Memory:
    """Memory for each; those that name their own get it, the others share the rest by least expected time."""
    given: Memory = {}
    left = memory
    for one in claims:
        if one.memory is not None:
            size = parse_bytes(one.memory, whole=one.store.bytes)
            left -= size
            given[one.name] = Allotment(size, *one.seconds(size, tasks))
    free = [one for one in claims if one.memory is None]
    if left < 0 or (free and left == 0):
        named = ", ".join(f"{name} {format_bytes(one.memory_bytes)}" for name, one in given.items())
        raise MemoryBudgetError(
            f"memory={format_bytes(memory)} for lookups is less than the lookups ask for by name ({named})"
        )
    if not free:
        return given
    unit = max(1, left // max(_UNITS, len(free)))
    growing = max(1, min(_GROWING, _UNITS // len(free)))
    ways = []  # of each, by the units that it gets
    for one in free:
        units = range(growing if one.grows else 1, _UNITS + 1)
        ways.append({n: Allotment(n * unit, *one.seconds(n * unit, tasks)) for n in units})
    # best[u]: the least time of the lookups so far in u units, and how they divide them
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for way in ways:
        following: dict[int, tuple[float, list[int]]] = {}
        for used, (time, taken) in best.items():
            for n, allotment in way.items():
                total, seconds = used + n, time + allotment.seconds
                if total <= _UNITS and seconds < following.get(total, (math.inf, []))[0]:
                    following[total] = (seconds, [*taken, n])
        best = following
    if not best:
        needs = "; ".join(f"{one.name} has {format_bytes(one.store.bytes)}" for one in free)
        raise MemoryBudgetError(
            f"memory={format_bytes(memory)} is too small for {len(free)} lookups at once ({needs}); give more"
        )
    _, taken = min(best.values(), key=lambda item: item[0])
    spare = (_UNITS - sum(taken)) // len(free)  # nobody gains by it, but caches grow with the stream's needs
    return given | {one.name: way[n + spare] for one, n, way in zip(free, taken, ways, strict=True)}


def arrange(steps: "Sequence[Step]", memory: Memory, passing: Mapping[str, float]) -> "list[Step]":
    """The steps, with lookups that stand side by side in the order that costs least."""
    result: list[Step] = []
    run: list[Lookup] = []
    added: set[str] = set()  # columns, by the lookups of this run
    for step in steps:
        if not step.lookups or any(not added.isdisjoint(one.inputs) for one in step.lookups):
            result += _cheapest_first(run, memory, passing)
            run, added = [], set()
        for one in step.lookups:
            run.append(one)
            names = MasterStore.open(one.store).schema.names if one.columns is None else one.columns
            added |= {one.new_name(name) for name in names}
        if not step.lookups:
            result.append(step)
    return result + _cheapest_first(run, memory, passing)


def _cheapest_first(run: "list[Lookup]", memory: Memory, passing: Mapping[str, float]) -> "list[Lookup]":
    def rank(step: "Lookup") -> tuple[bool, int, float, float]:
        seconds = memory[step.name].seconds
        lets_go = step.on_miss in ("drop", "redirect", "hold")
        share = passing.get(step.name, _PASSES) if lets_go else 1.0
        strict = _STRICT.index(step.on_miss) if step.on_miss in _STRICT else len(_STRICT)
        cost = seconds / (1 - share) if share < 1 else math.inf
        return (step.on_null != "quarantine", strict, cost, seconds)

    return sorted(run, key=rank)
