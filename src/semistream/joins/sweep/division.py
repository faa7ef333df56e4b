"""How `sweep` divides its budget, for one reader or for several that share a cache."""

from __future__ import annotations

from dataclasses import dataclass

from semistream.joins.sizes import output_row_bytes
from semistream.joins.window import row_charge
from semistream.lookup.bind import LookupPlan
from semistream.stores.contract import PLAN_BYTES, StoreFacts

_BUFFER = 1 << 20  # a few of the longest requests; more only takes memory from the cache
_DIRECT_BUFFER = 4 << 20  # past the page cache, reads in flight need places
_OUTPUT = 3 << 20
_OUTPUT_PART = 12  # of a small budget: every piece of the stream has a cost of its own, so pieces must not be tiny


@dataclass(frozen=True)
class Division:
    """The budget in parts, in bytes."""

    index: int
    buffer: int  # pages read, and the rows taken from them: half each
    plan: int  # of the reads
    output: int
    cache: int
    window: int

    @staticmethod
    def of(facts: StoreFacts, plan: LookupPlan, total: int, share: float, tasks: int = 1) -> Division:
        """Divide a budget; ``tasks`` readers with a buffer, an output piece and a window each share one cache."""
        page = facts.largest_page
        row = output_row_bytes(facts, plan)
        waiting = row_charge(plan.stream)
        index = facts.index_bytes * tasks
        spare = max(0, total - index - tasks * (2 * page + PLAN_BYTES + row + waiting))
        most = min(_DIRECT_BUFFER if facts.direct else _BUFFER, spare // (24 * tasks))
        buffer = page + most // page * page
        reads = PLAN_BYTES + most
        output = row + min(_OUTPUT, spare // (_OUTPUT_PART * tasks))
        rest = total - index - tasks * (2 * buffer + reads + output)
        cache = int(max(0, rest - tasks * waiting) * share)
        window = (rest - cache) // tasks
        return Division(index, 2 * buffer, reads, output, cache, window)
