"""Rows that were shed, joined and loaded after all, each exactly once.

Batch by batch: the shed rows of a batch are joined as the stream's own rows were, with the version of the master that
their batch read, and appended to the Delta table in one commit with the batch's number (`DeltaSink`). Killed at any
moment and started again, it passes over the batches that the table holds. Only batches that are over are taken: those
before the newest, the newest too when the checkpoint says that Spark has committed it. Shed rows of a pipeline are in
a table of its warehouse instead; `semistream.pipeline.running` sends them through the steps as one more batch.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from semistream.budget import Budget, check_bytes, parse_bytes
from semistream.errors import (
    ArgumentError,
    OtherVersionError,
    SchemaError,
    SheddingError,
    StoreNotFoundError,
    UnmatchedRowError,
    local_path,
)
from semistream.lookup.bind import bind
from semistream.lookup.choose import choose_algorithm
from semistream.lookup.run import open_store
from semistream.shedding.log import ShedPart, batches_in, read_part, read_rows
from semistream.stores.paged.manifest import StoreVersion
from semistream.stores.paged.store import MasterStore, Progress
from semistream.warehouse.delta import DeltaSink, open_table, query_of
from semistream.warehouse.schemas import stored_schema

_KEPT_BATCHES = 2  # what a running stream needs to know its rate


@dataclass(frozen=True)
class Reconciled:
    """What was done: batches loaded and their shed rows, batches that the table held, batches that may still run."""

    batches: int
    rows: int
    skipped: int
    waiting: tuple[int, ...]


def reconcile(
    shed: str | os.PathLike[str],
    table: str | os.PathLike[str],
    *,
    master: str | os.PathLike[str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    memory: int | str = "256MB",
    latest: bool = False,
    transform: Callable[[pa.Table], pa.Table] | None = None,
    remove: bool = False,
    progress: Progress | None = None,
) -> Reconciled:
    """Join the rows in the directory ``shed`` and append them to the Delta table.

    ``master`` is the store, by default where it was when the rows were shed. ``checkpoint`` is the query's: with it the
    newest batch is loaded too, once Spark has committed it. ``latest`` joins with the newest version of the master
    instead of the one that the batch read. ``transform`` turns the joined rows into the table's, where the stream's
    rows were changed after ``enrich`` too. ``remove`` deletes the files of batches that the table holds. Weights of
    rows that are loaded here are 0: sums with weights stay estimates of all rows, sums without become exact.
    """
    root, target = local_path("shed", shed), local_path("table", table)
    check_bytes(memory)
    master = None if master is None else local_path("master", master)
    read_to = None if checkpoint is None else local_path("checkpoint", checkpoint)
    if not root.is_dir():
        raise ArgumentError(f"there is no directory {root}; give the one that Shed(to=...) named")
    parts = {batch: [read_part(path) for path in paths] for batch, paths in batches_in(root).items()}
    waiting = _waiting(parts, read_to)
    ready = [batch for batch in parts if batch not in waiting]
    sinks: dict[str, DeltaSink] = {}
    rows = 0
    for number, batch in enumerate(ready):
        some = [part for part in parts[batch] if part.rows]
        if some:
            query, *others = sorted({part.query for part in some})
            if others:
                raise SheddingError(
                    f"{some[0].path.parent} holds rows of several queries ({', '.join([query, *others])}); move those "
                    "of one to a directory of their own"
                )
            sink = sinks.setdefault(query, DeltaSink(target, f"shed-{query}"))
            before = sink.written

            def load(some: list[ShedPart] = some) -> pa.Table:
                joined = _joined(some, _store(some[0], master, latest=latest), memory)
                return _fitted(joined if transform is None else transform(joined), target)

            sink.load(load, batch, query, gaps=True)
            rows += sum(part.rows for part in some) * (sink.written - before)
        if progress is not None:
            progress("reconcile", number + 1, len(ready))
    if remove:
        for batch in set(ready).intersection(list(parts)[:-_KEPT_BATCHES]):
            shutil.rmtree(root / f"batch={batch}")
    loaded, skipped = (sum(getattr(sink, name) for sink in sinks.values()) for name in ("written", "skipped"))
    return Reconciled(loaded, rows, skipped, tuple(waiting))


def _waiting(parts: dict[int, list[ShedPart]], checkpoint: Path | None) -> list[int]:
    """The newest batch of a Spark query, unless Spark has committed it: a task of it may still be at work."""
    newest = max(parts, default=-1)
    about = next(iter(parts.get(newest, [])), None)
    if newest < 0 or (about is not None and about.source == "join"):
        return []
    if checkpoint is None:
        return [newest]
    query = query_of(checkpoint)
    if about is not None and about.query != query:
        raise ArgumentError(f"checkpoint={str(checkpoint)!r} is of query {query}, the shed rows are of {about.query}")
    return [] if (checkpoint / "commits" / str(newest)).exists() else [newest]


def _store(about: ShedPart, master: Path | None, *, latest: bool) -> MasterStore:
    """The master as the batch read it, or its newest version."""
    place = about.store if master is None else master
    if latest:
        return open_store(place)
    try:
        store = MasterStore.open(place, about.master_version)
        if about.digest is not None:
            StoreVersion(about.store_id, about.master_version, about.digest).check(store.manifest, store.path)
        return open_store(store)
    except (StoreNotFoundError, OtherVersionError) as error:
        raise type(error)(
            f"batch {about.batch} was shed with version {about.master_version} of the master: {error}. Restore it, "
            "name where it is with --master, or use --latest to join with the newest version"
        ) from error


def _joined(parts: list[ShedPart], store: MasterStore, memory: int | str) -> pa.Table:
    """The rows of one batch, as the stream's own were joined."""
    about = parts[0]
    schema = next(read_rows(about.path)).schema
    plan = bind(about.spec, schema, store, ignore_case=about.ignore_case)
    memory_bytes = parse_bytes(memory, whole=store.bytes)
    read = plan.reads(store)
    join = choose_algorithm("auto", read, plan, memory_bytes).join(read, plan, Budget(memory_bytes))
    rows = (batch.cast(schema) for part in parts for batch in read_rows(part.path))
    joined = pa.Table.from_batches(join.join(rows), plan.output)
    join.check()
    if about.on_miss == "fail" and join.stats.unmatched:
        raise UnmatchedRowError(
            f"on_miss='fail': {join.stats.unmatched:,} of {join.stats.rows_in:,} shed rows of batch {about.batch} "
            f"have no match in {store.path} (version {store.version}), for example "
            f"{', '.join(map(repr, join.unmatched_sample))}; add them to the master and use --latest"
        )
    if about.weight is not None:
        joined = joined.add_column(len(schema), about.weight, pa.repeat(pa.scalar(0.0), joined.num_rows))
    return joined


def _fitted(joined: pa.Table, path: Path) -> pa.Table:
    """The columns that the table has, in its order, in the types that Delta keeps."""
    if (table := open_table(path)) is not None:
        names = [field.name for field in table.schema().fields]
        missing = [name for name in names if name not in joined.column_names]
        if missing:
            raise SchemaError(
                f"{path} has a column {missing[0]!r} which the join does not give; its columns are "
                f"{joined.column_names}. Call semistream.warehouse.reconcile(..., transform=...) from Python, with "
                "what is done to the stream's rows after enrich"
            )
        joined = joined.select(names)
    return joined.cast(stored_schema(joined.schema))
