"""What a task must know to shed, as it is shipped to the workers."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from semistream.shedding import Shed


@dataclass(frozen=True)
class ShedPlan:
    """Load shedding of one enrichment."""

    shed: Shed
    stream: pa.Schema  # without the weight
    bytes: int  # of the host's memory, for all tasks
    counts_bytes: int  # of these, for the rows a key has
