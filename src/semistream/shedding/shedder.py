"""The operator in front of a join: takes the rows that must wait out of the stream, and keeps them on disk."""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from semistream.lookup.bind import LookupPlan
from semistream.shedding.choosing import Chooser, Matches
from semistream.shedding.intervals import MOST_ROWS, Interval, TimedIntervals
from semistream.shedding.log import PartWriter, ShedPart, check_storable
from semistream.shedding.row_counts import RowCounts
from semistream.shedding.settings import Shed
from semistream.shedding.strategy import Numbers
from semistream.stores import MasterStore

ROW_BYTES = 48  # what choosing takes a row: its code, its count, its place in the order, and flags
_SHARE = 8  # shedding takes at most one part in so many of the memory: half to choose, half for the counts
_LEAST_ROWS = 1024


class Log(Protocol):
    """Where shed rows go."""

    def add(self, rows: pa.RecordBatch, rows_in: int) -> None:
        """The rows shed of an interval, before what is kept of it goes on."""

    def publish(self) -> None:
        """The stream has ended."""


class IntervalLog:
    """A file an interval, durable before the interval's rows are joined; numbered on from what is there."""

    def __init__(self, root: Path, about: ShedPart) -> None:
        self._root = root
        self._about = about
        self._next = 0

    def add(self, rows: pa.RecordBatch, rows_in: int) -> None:
        """See `Log.add`."""
        if rows.num_rows == 0:
            return
        while True:  # who makes the directory has the number
            try:
                (self._root / f"batch={self._next}").mkdir(parents=True, mode=0o700)
                break
            except FileExistsError:
                self._next += 1
        writer = PartWriter(self._root, dataclasses.replace(self._about, batch=self._next), rows.schema)
        with contextlib.closing(writer):
            writer.add(rows, rows_in)
            writer.publish()
        self._next += 1

    def publish(self) -> None:
        """See `Log.publish`."""


class Shedder:
    """Keeps of every interval what its strategy chooses; writes the others to the log."""

    def __init__(
        self,
        shed: Shed,
        plan: LookupPlan,
        intervals: Callable[[Iterable[pa.RecordBatch]], Iterator[Interval]],
        log: Log,
        counts: RowCounts | None,
        seeds: Sequence[int] = (),
    ) -> None:
        """``plan`` is the join's, with the weight among the stream's columns; ``seeds`` tell streams apart."""
        several, leaves = plan.multiple == "all" and plan.how != "semi", plan.how != "left"
        matches = [] if counts is None else [Matches(plan.codec, plan.on, counts, several=several, leaves=leaves)]
        self._chooser = Chooser(shed, matches, seeds)
        self._weight = shed.weight
        self._intervals = intervals
        self._log = log
        self._stream = plan.stream if shed.weight is None else plan.stream.remove(len(plan.stream) - 1)
        self.count = 0

    def kept(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that go on, as the join's plan wants them; those of an interval when its others are in the log."""
        for interval, most in self._intervals(batches):
            rows = interval.num_rows
            if rows == 0:  # nothing came for a while, which the join must know
                yield interval
                continue
            if not interval.schema.equals(self._stream):  # columns of views, which Arrow cannot take rows from
                interval = interval.cast(self._stream)
            kept = self._chooser.keep(rows, most, interval.column)
            if len(kept.rows) < rows:
                others = np.ones(rows, np.bool_)
                others[kept.rows] = False
                self._log.add(interval.filter(pa.array(others)), rows)
                self.count += rows - len(kept.rows)
                interval = interval.take(pa.array(kept.rows))
            else:
                self._log.add(interval.slice(0, 0), rows)
            if interval.num_rows:
                yield self._weighted(interval, kept.weights)
        self._log.publish()

    def _weighted(self, batch: pa.RecordBatch, weights: Numbers) -> pa.RecordBatch:
        if self._weight is None:
            return batch
        field = pa.field(self._weight, pa.float64(), nullable=False)
        return pa.RecordBatch.from_arrays([*batch.columns, pa.array(weights)], schema=batch.schema.append(field))


def memory_of(shed: Shed, memory_bytes: int, tasks: int = 1) -> tuple[int, int, int]:
    """How much of a join's memory shedding takes: (bytes in all, of these for the counts, rows of an interval)."""
    rows = max(_LEAST_ROWS, min(MOST_ROWS, memory_bytes // (2 * _SHARE * ROW_BYTES * tasks)))
    work = min(rows * ROW_BYTES * tasks, memory_bytes // (2 * _SHARE))
    counts = memory_bytes // (2 * _SHARE) if shed.kind.needs_counts else 0
    return work + counts, counts, rows


def describe(shed: Shed, plan: LookupPlan, store: MasterStore) -> ShedPart:
    """What the log must say of a join, so that its rows can be loaded later."""
    return ShedPart(
        query=str(uuid.uuid4()),
        batch=0,
        part=0,
        source="join",
        strategy=shed.strategy,
        store=str(Path(store.path).resolve()),
        master_version=store.version,
        spec=dataclasses.replace(plan.spec.alone(), columns=plan.columns),
        weight=shed.weight,
        store_id=store.manifest.store_id,
        digest=store.manifest.identity.digest,
    )


def in_front(shed: Shed, plan: LookupPlan, store: MasterStore, memory_bytes: int) -> Shedder:
    """The operator for the embedded engine."""
    check_storable(plan.stream)
    _, most_bytes, rows = memory_of(shed, memory_bytes)
    counts = RowCounts(store, most_bytes) if shed.kind.needs_counts else None
    intervals = TimedIntervals(shed.max_rows_per_second, shed.clock, rows)
    return Shedder(shed, plan, intervals, IntervalLog(shed.directory, describe(shed, plan, store)), counts)
