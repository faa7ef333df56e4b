"""What memory each lookup of a pipeline gets.

Memory is divided so that a row's expected time in all lookups together is least, by the cost models of the planner: a
small master is held whole, the rest goes where it saves most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from semistream.budget import format_bytes, parse_bytes
from semistream.errors import MemoryBudgetError
from semistream.lookup.bind import bind
from semistream.lookup.choose import SPARK_CANDIDATES, choose_algorithm
from semistream.lookup.spec import LookupSpec
from semistream.planner.capacity import stream_schema
from semistream.stores import MasterStore

_UNITS = 32  # in which memory is divided
_GROWING = 4  # of these, what a master gets at least that grows while the pipeline runs
_STREAM_ROW = 64  # bytes of a row that waits, as far as the planner is concerned


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
        schema = stream_schema(self.store, _STREAM_ROW)
        on = dict(zip(self.store.key, self.store.key, strict=True))
        columns: Sequence[str] | None = [] if self.store.rows == 0 else self.columns
        plan = bind(LookupSpec(on=on, columns=columns, suffix="_master"), schema, self.store)
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
    """What a lookup gets, and what is expected of it."""

    memory_bytes: int
    seconds: float
    algorithm: str


Memory = dict[str, Allotment]  # of each lookup, by its name


def divide(claims: Sequence[Claim], memory: int, tasks: int) -> Memory:
    """Memory for each; those that name their own get it, the others share the rest by least expected time."""
    if not claims:
        return {}
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
        given[one.name] = Allotment(units * unit, *known[units - 1])
    return given
