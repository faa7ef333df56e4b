"""What a task must know to shed, as it is shipped to the workers, and what is checked before that."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from semistream.budget import format_bytes
from semistream.errors import ArgumentError, SchemaError
from semistream.shedding import Shed
from semistream.shedding.log import check_storable
from semistream.shedding.settings import checked
from semistream.shedding.shedder import memory_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from semistream.spark.prepare import FrameFacts
    from semistream.spark.spec import EnrichSpec


@dataclass(frozen=True)
class ShedPlan:
    """Load shedding of one enrichment."""

    shed: Shed
    stream: pa.Schema  # without the weight
    bytes: int  # of the host's memory, for all tasks
    counts_bytes: int  # of these, for the rows a key has

    @staticmethod
    def make(shed: Shed, stream: pa.Schema, memory_bytes: int, tasks: int) -> ShedPlan:
        """Settings with a path that means the same everywhere, and what they take of the memory."""
        taken, counts_bytes, _ = memory_of(shed, memory_bytes, tasks)
        return ShedPlan(replace(shed, to=shed.directory.resolve(), clock=time.monotonic), stream, taken, counts_bytes)

    def explained(self) -> list[str]:
        """Lines for `explain`."""
        shed, rate = self.shed, self.shed.max_rows_per_second
        above = "the rate of the batch before" if rate is None else f"{rate:,.0f} rows/s"
        return [
            f"  shedding    {shed.strategy}: {shed.kind.idea}; above {above} the others",
            f"              go to {shed.directory}; takes {format_bytes(self.bytes)} beside the join",
        ]


def check_shed(about: FrameFacts, spec: EnrichSpec) -> None:
    """Refuse what cannot be shed, before the stream runs."""
    checked(spec.shed).check_how(spec.how)
    if spec.transport == "keys":
        raise ArgumentError(
            "transport='keys' does not go with shed=: whole rows must come to Python to be shed; use 'rows' or 'auto'"
        )
    if about.foreign:
        name, kind = next(iter(about.foreign.items()))
        raise SchemaError(
            f"stream column {name!r} of type {kind} cannot cross to Python, so its rows cannot be shed; cast it, or "
            "leave it out of the stream"
        )
    check_storable(about.schema)
    if spec.algorithm == "pcsrj":
        raise ArgumentError(
            "algorithm='pcsrj' shuffles the stream, and a replay might shed other rows; use another with shed="
        )
    if not about.df.isStreaming and _is_batch_job(about.df):
        raise ArgumentError("shed= needs a stream: a batch job is never late; leave shed= out for batch DataFrames")


def _is_batch_job(df: DataFrame) -> bool:
    """Not within foreachBatch either, as far as Spark tells."""
    try:
        return df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") is None
    except Exception:  # noqa: BLE001 - Spark Connect has no context to ask; the task will
        return False
