"""``enrich``: a streaming or batch DataFrame in, the same rows with the master's columns out.

A pure function from DataFrame to DataFrame: it works in any query, in foreachBatch and in batch jobs, and changes no
configuration.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from semistream.budget import format_bytes
from semistream.joins.sweep.division import Division
from semistream.joins.sweep.join import SweepJoin
from semistream.lookup.spec import asks
from semistream.spark.frames import partition_by_key
from semistream.spark.lookups import enrich_by_keys
from semistream.spark.operator import CACHE_SHARE, lend
from semistream.spark.prepare import FrameFacts, Prepared, prepare
from semistream.spark.spec import EnrichSpec
from semistream.spark.whole_rows import enrich_by_rows
from semistream.stores import MasterStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@asks(EnrichSpec)
def enrich(df: DataFrame, store: MasterStore | str | os.PathLike[str], spec: EnrichSpec) -> DataFrame:
    """Join a streaming or batch DataFrame with a master store.

    ``memory`` is the total for all Python workers of a host together ("256MB", or "10%" of the master). ``on`` is a
    column name, several, or {stream column: master column}. ``on_miss`` says what becomes of a row without a match:
    "null" (default), "drop" or "fail"; ``defaults`` fill the master's columns of such rows. A match rate under
    ``min_match_rate`` in a task fails the batch (tasks of fewer than ``min_match_rows`` rows are judged together).
    ``as_of`` is the stream's column with a moment: of a key's rows only those match with ``valid_from`` <= moment <
    ``valid_to`` (NULL is no bound). ``multiple`` is for rows with several matches: "all" of them, the "first" in the
    store's order of the key's rows, or an "error" that names the key. ``status`` names a last column that says
    "matched" or "unmatched".
    ``refresh`` is "every_batch", "never" or a time such as "5 minutes"; a batch that is replayed reads the version it
    read before. ``shed`` relieves a join whose stream is too fast: see `semistream.Shed`.
    """
    p = prepare(FrameFacts.of(df), store, spec)
    if p.operator.algorithm == "pcsrj":  # a partition is a node: it sees its own keys
        df = partition_by_key(df, p.operator.tasks, p.plan)
    if p.transport == "rows":
        return enrich_by_rows(df, p.operator, p.plan, spec.metrics)
    return enrich_by_keys(df, p, spec.metrics)


@asks(EnrichSpec)
def explain(df: DataFrame, store: MasterStore | str | os.PathLike[str], spec: EnrichSpec) -> str:
    """What `enrich` with the same arguments would do: algorithm, transport, why, budget split, predicted rate."""
    p = prepare(FrameFacts.of(df), store, spec)
    prediction = p.choice.prediction
    lines = [
        f"enrich with {p.store.path} (version {p.store.version}, {p.store.rows:,} rows, {format_bytes(p.store.bytes)})",
        f"  algorithm   {p.choice.join.name}: {p.choice.reason}",
        f"  transport   {p.transport}: {p.why_transport}",
        f"  memory      {format_bytes(p.operator.memory_bytes)} in total a host for {p.operator.tasks} tasks at once",
        *(f"              {name:<12} {format_bytes(size)}" for name, size in _parts(p).items()),
        f"  predicted   hit ratio {prediction.hit_ratio:.2f}, {p.choice.rows_per_second:,.0f} rows/s a core",
        f"              in the join alone, {prediction.remark}",
        f"  output      {', '.join(p.plan.output.names)}",
        f"  no match    {spec.on_miss}; refresh {spec.refresh}",
    ]
    if p.plan.as_of is not None:
        lines.append(f"  as of       {p.plan.as_of}")
    if spec.multiple != "all":
        several = "only the first match of a row" if spec.multiple == "first" else "a row with two matches fails"
        lines.append(f"  multiple    {spec.multiple}: {several}")
    shed = p.operator.spec.shed
    if shed is not None:
        rate = shed.max_rows_per_second
        above = "the rate of the batch before" if rate is None else f"{rate:,.0f} rows/s"
        lines.append(f"  shedding    {shed.strategy}: {shed.kind.idea}; above {above} the others")
        lines.append(
            f"              go to {shed.directory}; takes {format_bytes(p.operator.shed_bytes)} beside the join"
        )
    return "\n".join(lines)


def _parts(p: Prepared) -> dict[str, int]:
    """How the budget is divided among all tasks of a host together."""
    if p.choice.join is not SweepJoin:
        return p.choice.prediction.parts
    tasks = p.operator.tasks
    parts = Division.of(p.store.facts, p.plan, p.operator.memory_bytes, CACHE_SHARE, tasks)
    answers = 0
    if p.transport == "keys":
        parts, answers = lend(parts, p.operator.memory_bytes // tasks, p.store, p.plan)
    return {
        "index": parts.index,
        "read buffer": (parts.buffer + parts.plan) * tasks,
        "output": parts.output * tasks,
        "cache": parts.cache,
        "window": parts.window * tasks,
        **({"answers": answers * tasks} if answers else {}),
    }
