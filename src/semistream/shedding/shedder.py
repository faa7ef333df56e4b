"""The operator in front of a join: rows that must wait are chosen, taken out of the stream and kept on disk."""

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from semistream.keys import KeyCodec
from semistream.lookup.bind import LookupPlan
from semistream.lookup.spec import LookupSpec
from semistream.shedding.intervals import MOST_ROWS, Interval, TimedIntervals
from semistream.shedding.log import PartWriter, ShedPart, check_storable
from semistream.shedding.row_counts import RowCounts
from semistream.shedding.settings import Shed
from semistream.shedding.strategy import Numbers
from semistream.stores import MasterStore

_ROW_BYTES = 48  # that choosing takes per row: its code, its count, its place in the order, and flags
_SHARE = 8  # shedding takes at most one part in so many of the memory: half to choose, half for the counts
_LEAST_ROWS = 1024

Column = Callable[[str], pa.Array]  # of an interval, by name
Log = Callable[[pa.RecordBatch, int], None]  # takes rows shed of so many, before what is kept of these goes on


@dataclass(frozen=True)
class Matches:
    """f_R of one lookup: the rows of output that it makes of each row. Of a history these are the most it can give."""

    codec: KeyCodec
    on: dict[str, str]
    counts: RowCounts
    several: bool  # all matches of a row are given, not one
    leaves: bool  # a row without a match gives none

    def of(self, column: Column) -> Numbers:
        """For every row of an interval."""
        codes, valid = self.codec.encode([column(name) for name in self.codec.stream_columns(self.on)])
        found = np.where(valid, self.counts.rows(codes), 0.0)
        return np.clip(found, 0.0 if self.leaves else 1.0, np.inf if self.several else 1.0)


@dataclass
class Chooser:
    """Chooses interval after interval, for `join`, `enrich` and pipelines; the same intervals give the same rows."""

    shed: Shed
    matches: Sequence[Matches]
    seeds: Sequence[int]
    _number: int = 0

    def weigh(self, rows: int, most: int, column: Column) -> pa.Array:
        """The weights of the next interval's rows that may go on, ``most`` at most; NULL for those that must wait."""
        chance = np.random.default_rng([self.shed.seed, *self.seeds, self._number])
        self._number += 1
        counts: Numbers | None = None
        if self.shed.kind.needs_counts and rows > most:
            counts = np.ones(rows)
            for one in self.matches:
                counts *= one.of(column)
        kept = self.shed.kind().keep(rows, most, counts, chance)
        weights, others = np.zeros(rows), np.ones(rows, np.bool_)
        weights[kept.rows], others[kept.rows] = kept.weights, False
        return pa.array(weights, mask=others)


@dataclass
class IntervalLog:
    """A file per interval, durable before the interval's rows are joined; numbered on from what is there."""

    root: Path
    about: ShedPart
    _next: int = 0

    def add(self, rows: pa.RecordBatch, rows_in: int) -> None:
        if rows.num_rows == 0:
            return
        while True:  # who makes the directory has the number
            try:
                (self.root / f"batch={self._next}").mkdir(parents=True, mode=0o700)
                break
            except FileExistsError:
                self._next += 1
        writer = PartWriter(self.root, replace(self.about, batch=self._next), rows.schema)
        with contextlib.closing(writer):
            writer.add(rows, rows_in)
            writer.publish()
        self._next += 1


@dataclass
class Shedder:
    """Keeps of every interval what its strategy chooses; writes the others to the log."""

    shed: Shed
    plan: LookupPlan  # the join's, with the weight among the stream's columns
    intervals: Callable[[Iterable[pa.RecordBatch]], Iterator[Interval]]
    log: Log
    counts: RowCounts | None
    seeds: Sequence[int] = ()  # tell streams apart
    count: int = 0

    def __post_init__(self) -> None:
        plan, keys, counts = self.plan, self.plan.spec.keys, self.counts
        several, leaves = plan.multiple == "all" and plan.how != "semi", plan.how != "left"
        matches = [] if counts is None else [Matches(plan.codec, keys, counts, several=several, leaves=leaves)]
        self._chooser = Chooser(self.shed, matches, self.seeds)

    def kept(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that go on, as the join's plan wants them; those of an interval when its others are in the log."""
        weighs, joined = self.shed.weight is not None, self.plan.stream
        stream = joined.remove(len(joined) - 1) if weighs else joined
        for interval, most in self.intervals(batches):
            rows = interval.num_rows
            if rows == 0:  # nothing came for a while, which the join must know
                yield interval
                continue
            if not interval.schema.equals(stream):  # columns of views, which Arrow cannot take rows from
                interval = interval.cast(stream)
            weights = self._chooser.weigh(rows, most, interval.column)
            self.log(interval.filter(weights.is_null()), rows)
            self.count += weights.null_count
            if weights.null_count:
                interval, weights = interval.filter(weights.is_valid()), weights.drop_null()
            if interval.num_rows:
                yield pa.RecordBatch.from_arrays([*interval.columns, *([weights] if weighs else [])], schema=joined)


def memory_of(shed: Shed, memory_bytes: int, tasks: int = 1) -> tuple[int, int, int]:
    """How much of a join's memory shedding takes: (bytes in all, of these for the counts, rows of an interval)."""
    rows = max(_LEAST_ROWS, min(MOST_ROWS, memory_bytes // (2 * _SHARE * _ROW_BYTES * tasks)))
    work = min(rows * _ROW_BYTES * tasks, memory_bytes // (2 * _SHARE))
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
        spec=plan.spec.copy_to(LookupSpec, columns=plan.columns),
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
    log = IntervalLog(shed.directory, describe(shed, plan, store))
    return Shedder(shed, plan, intervals, log.add, counts)
