"""What a join's cost model says of a cell, as a result names it: rate, hit ratio, tuples a read.

Models that count reads alone get their rate from the machine's calibration (`semistream.planner.rates`); older ones
say it themselves.
"""

from __future__ import annotations

import importlib
from typing import Any


def predicted(kind: Any, settings: Any, store: Any, plan: Any, memory_bytes: int, params: dict[str, Any]) -> Any:
    """``predicted_rows_per_second``, ``predicted_hit_ratio`` and ``predicted_tuples_per_read``, which may be None."""
    contracts: Any = importlib.import_module("semistream.contracts")
    if hasattr(contracts, "Workload"):
        stream = contracts.Workload(skew=params["skew"], ranked=params.get("layout") == "sorted")
        said = kind.predict(store, plan, memory_bytes, stream, settings)
        costs = importlib.import_module("semistream.planner.rates").current_costs()
        rate = costs.rate(kind.name, said, store)
    else:
        said = kind.predict(store, plan, memory_bytes, params["skew"])
        rate = said.rows_per_second
    return {
        "predicted_rows_per_second": rate,
        "predicted_hit_ratio": said.hit_ratio,
        "predicted_tuples_per_read": getattr(said, "tuples_per_read", None),
    }
