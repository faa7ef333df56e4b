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

from semistream_lab.cells import Cell
from semistream_lab.data import BenchData


def run_cell(cell: Cell, root: Path) -> dict[str, Any]:
    """The result of one cell, with how busy the machine was before and how long all of it took."""
    load, start = os.getloadavg()[0], time.perf_counter()
    data = BenchData(root, cell.params["rows"])
    if cell.suite == "lab":
        from semistream_lab.papers import arms

        result = arms.run(cell, root)
    elif cell.suite == "spark":
        from semistream_lab import arms_spark

        result = arms_spark.run(cell, data)
    elif cell.suite == "pipeline":
        from semistream_lab import arms_pipeline

        result = arms_pipeline.run(cell, data)
    elif cell.suite == "joins":
        from semistream_lab import arms_joins

        result = arms_joins.run(cell, data)
    else:
        from semistream_lab import arms_core

        result = arms_core.run(cell, data)
    return {**result, "load_before": load, "process_seconds": time.perf_counter() - start}


def main() -> None:
    """Read the cell from the command line, print its result."""
    root, text = sys.argv[1:]
    print(json.dumps(run_cell(Cell.from_json(text), Path(root))), flush=True)


if __name__ == "__main__":
    main()
