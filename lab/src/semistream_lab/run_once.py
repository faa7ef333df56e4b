"""One cell in a process of its own: `python -m semistream_lab.run_once DATA '<json cell>'` prints one JSON object.

The result is the last line of standard output; everything else, Spark's log among it, goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from semistream_lab.busy import Watch, verdict
from semistream_lab.cells import Cell
from semistream_lab.data import BenchData


def run_cell(cell: Cell, root: Path) -> dict[str, Any]:
    """The result of one cell, with how busy others kept the machine and how long all of it took."""
    load, start = os.getloadavg()[0], time.perf_counter()
    with Watch() as watch:
        result = _run(cell, root)
    timed = result.pop("timed", None)
    if timed is not None:
        result |= watch.timed(*timed)
    result = {**result, **watch.facts, "load_before": load, "process_seconds": time.perf_counter() - start}
    return {**result, "busy": verdict(result, os.cpu_count() or 1)}


def _run(cell: Cell, root: Path) -> dict[str, Any]:
    data = BenchData(root, cell.params["rows"])
    if cell.suite == "lab":
        from semistream_lab.papers import arms

        return arms.run(cell, root)
    if cell.suite == "spark":
        from semistream_lab import arms_spark

        return arms_spark.run(cell, data)
    if cell.suite == "pipeline":
        from semistream_lab import arms_pipeline

        return arms_pipeline.run(cell, data)
    if cell.suite == "joins":
        from semistream_lab import arms_joins

        return arms_joins.run(cell, data)
    if cell.suite == "peers":
        from semistream_lab.peers import peer

        return peer(cell.arm).run(cell, data)
    if cell.suite == "profile":
        from semistream_lab import profiling

        return profiling.run(cell, data)
    from semistream_lab import arms_core

    return arms_core.run(cell, data)


def main() -> None:
    """Read the cell from the command line, print its result."""
    root, text = sys.argv[1:]
    print(json.dumps(run_cell(Cell.from_json(text), Path(root))), flush=True)


if __name__ == "__main__":
    main()
