"""How `sweep` divides its budget, for one reader or for several that share a cache."""

from __future__ import annotations

from dataclasses import dataclass

from semistream.joins.sizes import output_row_bytes, row_charge
from semistream.lookup.bind import LookupPlan
from semistream.stores.contract import PLAN_BYTES, StoreFacts

_BUFFER = 1 << 20  # a few of the longest requests; more only takes memory from the cache
_DIRECT_BUFFER = 4 << 20  # past the page cache, reads in flight need places
_OUTPUT = 3 << 20
_OUTPUT_PART = 12  # of a small budget: every piece of the stream has a cost of its own, so pieces must not be tiny
_LANE_ROWS = 1024  # of a piece: with fewer, another thread costs more than it does


@dataclass(frozen=True)
class Division:
    """The budget in parts, in bytes."""

    index: int
    buffer: int  # of a lane: pages read, and the rows taken from them, half each
    plan: int  # of a lane's reads
    output: int  # of a piece
    cache: int
    window: int
    lanes: int = 1  # threads that have a reader each
    pieces: int = 1  # of output that are there at once: one that leaves while each lane makes another

    @staticmethod
    def of(facts: StoreFacts, plan: LookupPlan, total: int, share: float, tasks: int = 1) -> Division:
        """Divide a budget; ``tasks`` readers with a buffer, an output piece and a window each share one cache.

        A plan for several threads gets as many lanes as there is room for.
        """
        return next(
            made
            for lanes in range(plan.threads if tasks == 1 else 1, 0, -1)
            if (made := _divided(facts, plan, total, share, tasks, lanes)) is not None
        )


def _divided(facts: StoreFacts, plan: LookupPlan, total: int, share: float, tasks: int, lanes: int) -> Division | None:
    """The division for so many lanes, if their pieces are not too small."""
    page = facts.largest_page
    row = output_row_bytes(facts, plan)
    waiting = row_charge(plan.stream)
    index, pieces = facts.index_bytes * tasks, 1 if lanes == 1 else lanes + 1
    spare = max(0, total - index - tasks * (lanes * (2 * page + PLAN_BYTES) + pieces * row + waiting))
    # Two lanes have two thirds of what one would have, each: tiny pieces cost more than a smaller cache.
    part = 2 * spare // (tasks * (lanes + 1))
    most = min(_DIRECT_BUFFER if facts.direct else _BUFFER, part // 24)
    buffer = page + most // page * page
    reads = PLAN_BYTES + most
    output = row + min(_OUTPUT, part // _OUTPUT_PART)
    rest = total - index - tasks * (lanes * (2 * buffer + reads) + pieces * output)
    if lanes > 1 and (output < _LANE_ROWS * row or rest < waiting):
        return None
    cache = int(max(0, rest - tasks * waiting) * share)
    window = (rest - cache) // tasks
    return Division(index, 2 * buffer, reads, output, cache, window, lanes, pieces)
