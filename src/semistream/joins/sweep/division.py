"""How `sweep` divides its budget, for one reader or for several that share a cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from semistream.joins.window import row_charge, stream_row_bytes
from semistream.lookup.bind import LookupPlan
from semistream.rows import Projection
from semistream.stores.paged.store import PLAN_BYTES

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
    def of(store: Any, plan: LookupPlan, total: int, share: float, tasks: int = 1) -> Division:
        """Divide a budget; ``tasks`` readers with a buffer, an output piece and a window each share one cache."""
        page = store.largest_page
        row = output_row_bytes(store, plan)
        waiting = row_charge(plan.stream)
        index = store.index_bytes * tasks
        spare = max(0, total - index - tasks * (2 * page + PLAN_BYTES + row + waiting))
        most = min(_DIRECT_BUFFER if store.direct else _BUFFER, spare // (24 * tasks))
        buffer = page + most // page * page
        reads = PLAN_BYTES + most
        output = row + min(_OUTPUT, spare // (_OUTPUT_PART * tasks))
        rest = total - index - tasks * (2 * buffer + reads + output)
        cache = int(max(0, rest - tasks * waiting) * share)
        window = (rest - cache) // tasks
        return Division(index, 2 * buffer, reads, output, cache, window)


def output_row_bytes(store: Any, plan: LookupPlan) -> int:
    """What a row of output takes while it is made, with the copy of the cached row."""
    layout = Projection(store.layout, plan.needed).target
    text = 0.0 if layout.fixed else max(0.0, store.row_bytes - 12 - store.layout.head)
    return int(2 * stream_row_bytes(plan.stream) + 2 * layout.head + text + 64)
