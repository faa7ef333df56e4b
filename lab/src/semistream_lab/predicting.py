"""What a join's cost model says of a cell, as a result names it: rate, hit ratio, tuples per read and per page."""

from __future__ import annotations

import math
from typing import Any

from semistream.joins.contract import Join, JoinSettings, Profile
from semistream.lookup.bind import LookupPlan
from semistream.planner.rates import current_costs
from semistream.stores.contract import StoreFacts


def predicted(
    kind: type[Join],
    settings: JoinSettings | None,
    facts: StoreFacts,
    plan: LookupPlan,
    memory_bytes: int,
    params: dict[str, Any],
) -> dict[str, Any]:
    """Counts by the model, and the rate that follows from this machine's calibration; None where nothing is read."""
    stream = Profile(skew=params["skew"], ranked=params.get("layout") == "sorted")
    said = kind.predict(facts, plan, memory_bytes, stream, settings)
    reads = math.isfinite(said.tuples_per_read)
    return {
        "predicted_rows_per_second": current_costs().rate(kind.name, said, facts),
        "predicted_hit_ratio": said.hit_ratio,
        "predicted_tuples_per_read": said.tuples_per_read if reads else None,
        "predicted_tuples_per_page": said.tuples_per_page if reads else None,
    }
