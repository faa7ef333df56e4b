"""One cell of a paper's figure in this process: a join on a stream, a search for memory, or a shedding strategy.

Joins are measured as in `bench joins`. A search builds the join again and again, each time with a budget nearer to the
one at which it serves the wanted number of stream tuples per page.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from semistream_lab import arms_joins
from semistream_lab.cells import Cell
from semistream_lab.papers import shedding
from semistream_lab.papers.figures import STORE_ROW_BYTES
from semistream_lab.papers.models import tuned_model
from semistream_lab.papers.workload import LabData, load_of

_STEPS = 7
_NEAR = 0.02
_MOST_SHARE = 0.6  # of the store: above it nothing is saved


def run(cell: Cell, root: Path) -> dict[str, Any]:
    """The result of one cell."""
    if cell.arm in shedding.ARMS:
        return shedding.run(cell)
    data = LabData(root, cell.params["rows"], cell.params)
    return _least_memory(cell, data) if "target" in cell.params else _measured(cell, data)


def prepare(params: dict[str, Any], root: Path) -> None:
    """Make a cell's data, unless they are there."""
    if "layout" in params:
        LabData(root, params["rows"], params).store()


def _measured(cell: Cell, data: LabData) -> dict[str, Any]:
    plain = cell.params["workload"] == "zipf"
    result = arms_joins.run(cell, data, load_of(cell.params, data.root), one_match=plain, sampled=False)
    if cell.arm == "tuned_xhybrid" and cell.params["layout"] == "sorted":
        result |= tuned_model(cell, data, result)
    return result


def _least_memory(cell: Cell, data: LabData) -> dict[str, Any]:
    """The least memory at which the join serves ``target`` tuples per page: steps on the line through the last two."""
    target, store_bytes = cell.params["target"], data.rows * STORE_ROW_BYTES
    tried: list[tuple[float, float]] = []
    memory, result = 0.05 * store_bytes, {}
    for _ in range(_STEPS):
        step = Cell(cell.suite, cell.arm, {**cell.params, "memory": int(memory)}, cell.repetition)
        result = _measured(step, data)
        seen = result["tuples_per_page"] or math.inf
        tried.append((math.log(memory), math.log(seen)))
        if abs(seen / target - 1) < _NEAR or memory >= _MOST_SHARE * store_bytes:
            break
        memory = min(_MOST_SHARE * store_bytes, max(memory / 4, math.exp(_crossing(tried, math.log(target)))))
    reached = max(value for _, value in tried) >= math.log(target * (1 - _NEAR))
    out_of_reach = not reached and max(size for size, _ in tried) >= math.log(0.99 * _MOST_SHARE * store_bytes)
    found = None if out_of_reach else math.exp(_crossing(tried, math.log(target)))
    return {
        **result,
        "memory_bytes": found,
        "memory_share": found / store_bytes if found else None,
        "tried": [[math.exp(m), math.exp(v)] for m, v in tried],
    }


def _crossing(tried: list[tuple[float, float]], wanted: float) -> float:
    """Where the line through the two tries nearest to the target meets it; as steep as 1 where there is only one."""
    near = sorted(tried, key=lambda one: abs(one[1] - wanted))[:2]
    slope = 1.0
    if len(near) == 2 and near[0][0] != near[1][0]:
        slope = (near[1][1] - near[0][1]) / (near[1][0] - near[0][0])
    return near[0][0] + (wanted - near[0][1]) / (slope if slope > 0.2 else 1.0)
