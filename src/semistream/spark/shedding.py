"""Load shedding inside Spark's tasks: the same rows are shed however often a batch is run.

A batch's first task decides what share of it is kept (`share_of_batch`) and pins it in ``batch=N/_keep.json``, for the
other tasks and a replay. It goes by the batches before: their rows, as their files say, and the time from a pin to the
last file, the sink's work included. A task keeps that share of each block, with chance seeded by query, batch and
partition; its other rows are in ``batch=N/part-P.parquet`` before it ends, hence before the batch commits.
"""

import dataclasses
import hashlib
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.durable import create_once, read_once
from semistream.errors import ArgumentError, SheddingError
from semistream.lookup.bind import LookupPlan
from semistream.shedding.intervals import PastBatch, share_of_batch, share_of_blocks
from semistream.shedding.log import PartWriter, batches_in, read_part
from semistream.shedding.row_counts import RowCounts
from semistream.shedding.shedder import Shedder, describe
from semistream.spark.area import area
from semistream.spark.operator import Operator, Task, open_content
from semistream.spark.pins import running_batch
from semistream.spark.shared import shared_table
from semistream.stores import MasterStore

BLOCK_ROWS = 8192  # the same whatever Spark's Arrow batches are: a replay under another setting sheds the same rows
_PIN = "_keep.json"


def pinned_share(root: Path, query: str, batch: int, rate: float | None, now: float | None = None) -> float:
    """The share of this batch that is kept; decided by the first task that asks. No ``rate``: what was managed."""
    while (found := _pin(root, batch)) is None:
        path = root / f"batch={batch}" / _PIN
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        at = time.time() if now is None else now
        create_once(path, {"share": _share(root, batch, rate, at), "at": at, "query": query, "batch": batch})
    if found["query"] != query:
        raise SheddingError(
            f"{root} holds batch {batch} of query {found['query']}, this is query {query}: was its checkpoint deleted? "
            "Reconcile what is there, and give this query a directory of its own"
        )
    return float(found["share"])


def _share(root: Path, batch: int, rate: float | None, now: float) -> float:
    files = batches_in(root)
    pins = [pin for number in files if number < batch and (pin := _pin(root, number))]
    if not pins:
        return 1.0
    past = [PastBatch(float(pin["at"])) for pin in reversed(pins[-2:])]
    last = files[pins[-1]["batch"]]
    parts = [read_part(path, whole=False) for path in last]
    rows, shed = sum(part.rows_in for part in parts), sum(part.rows for part in parts)
    ended = max((path.stat().st_mtime for path in last), default=past[0].began)
    past[0] = PastBatch(past[0].began, rows, rows - shed, ended - past[0].began)
    # As before where nothing is known: a stream that was too fast is not loaded whole because a clock was set back.
    return share_of_batch(past, rate, now=now, unknown=float(pins[-1]["share"]))


def _pin(root: Path, batch: int) -> dict[str, Any] | None:
    remedy = "have it decided again, if no task of the batch has ended"
    return read_once(root / f"batch={batch}" / _PIN, ("share", "at", "batch"), remedy)


@contextmanager
def _part(operator: Operator, plan: LookupPlan, store: MasterStore, schema: pa.Schema) -> Iterator[PartWriter]:
    """The file of the running task, for rows with this schema, durable at the end; nothing half-written stays."""
    from pyspark import TaskContext

    context, found, shed = TaskContext.get(), running_batch(), operator.spec.shed
    assert shed is not None
    if context is None or found is None:
        raise ArgumentError(
            "shed= needs a stream: rows are shed when a stream is too fast, and a batch job is never late. Leave shed= "
            "out for batch DataFrames"
        )
    about = dataclasses.replace(
        describe(shed, plan, store),
        query=found[0],
        batch=found[1],
        part=context.partitionId(),
        source="enrich",
        on_miss=operator.spec.on_miss,
        ignore_case=operator.ignore_case,
    )
    with closing(PartWriter(shed.directory, about, schema)) as writer:
        yield writer
        writer.publish()


@contextmanager
def shed_in_front(task: Task, stream: pa.Schema) -> Iterator[None]:
    """Put the operator that sheds, if there is one, in front of a task's join."""
    operator, plan, shed = task.operator, task.join.plan, task.operator.spec.shed
    if shed is None:
        yield
        return
    with _part(operator, plan, task.store, stream) as writer:
        about, counts = writer.about, None
        share = pinned_share(shed.directory, about.query, about.batch, shed.max_rows_per_second)
        if shed.kind.needs_counts:
            counts = shared_counts(task.store, operator.counts_bytes, operator.application)
        blocks = partial(share_of_blocks, share=share, block_rows=BLOCK_ROWS)
        seeds = (uuid.UUID(about.query).int, about.batch, about.part)
        task.join.front = Shedder(shed, plan, blocks, writer.add, counts, seeds)
        yield


def publish_nothing(operator: Operator, stream: pa.Schema) -> None:
    """An empty partition says so too: a replay that finds rows in it, or none where there were some, is told apart."""
    if operator.spec.shed is not None:
        store = open_content(operator)
        with _part(operator, operator.plan(operator.spec.shed.widened(stream), store), store, stream):
            pass


def shared_counts(store: MasterStore, most_bytes: int, application: str) -> RowCounts:
    """Rows per key, in memory that all workers of the host map; the first one of a version reads the store."""
    name = hashlib.sha256(f"{store.path}:{most_bytes}".encode()).hexdigest()[:12] + "-counts"
    with area(application, most_bytes, name) as here:
        return RowCounts(store, most_bytes, partial(shared_table, here, name, store.manifest.identity))
