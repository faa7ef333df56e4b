"""A pipeline at work in one driver: laid out (keys seen, memory, order, schemas, tables), recovered, started, ended."""

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from semistream.changes.duplicates import SeenKeys
from semistream.errors import ArgumentError
from semistream.pipeline.batch import Batches, BatchId
from semistream.pipeline.decision import WAITED, Decision, Masters, find_newest
from semistream.pipeline.layout import Layout, analyse
from semistream.pipeline.ledger import BATCHES, SIDE, Ledger
from semistream.pipeline.memory import arrange
from semistream.pipeline.probe import is_local, probe
from semistream.pipeline.relief import RECENT, Relief, share_of
from semistream.pipeline.routes import PREFIX
from semistream.pipeline.sources import FILES, Source, check_drift, check_not_moved, input_of
from semistream.pipeline.status import at_work, stopped
from semistream.pipeline.steps import check_steps
from semistream.spark.frames import arrow_schema, quoted
from semistream.warehouse import query_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from semistream.pipeline.pipeline import Pipeline

_LOOK_SECONDS = 0.5
_LOOK_SECONDS_ONCE = 0.05  # who waits for the end learns of it at once
OnDecision = Callable[[Decision], None]


class _EndedError(Exception):
    """Raised in a batch that has not begun when the pipeline ends: Spark gives it again at the next start."""


@dataclass(eq=False)
class Running:
    """A pipeline at work."""

    pipeline: "Pipeline"
    ledger: Ledger
    once: bool
    replaces: str | None  # the query whose place this one may take
    on_decision: OnDecision
    source: Source | None  # of the frame, unless the user made it
    frame: "DataFrame"
    batches: Batches
    last: Decision | None
    error: BaseException | None = None
    query: "StreamingQuery | None" = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ending: bool = False

    def recover(self) -> None:
        """Carry out what was decided last, which a crash may have cut short; remove files of batches that were not."""
        for decision in self.ledger.latest():
            self.pipeline.sink.check(decision.writes.app, decision.writes.query, self.replaces)
            self.batches.carry_out(decision)
        shutil.rmtree(self.ledger.root / "staging", ignore_errors=True)
        query = self.ledger.owner
        if query is None:
            return  # whatever lies beside the tables is not ours
        for kind in (BATCHES, SIDE):
            following = self._next(kind, query)
            for table in map(self.batches.layout.table_of, self.batches.schemas.tables):
                place, used = self.pipeline.sink.place(table), self.pipeline.sink.files(table)
                for path in place.glob(f"{following.prefix}-*.parquet"):
                    if path.name not in used:
                        path.unlink(missing_ok=True)

    def _next(self, kind: str, query: str) -> BatchId:
        """What comes after all that is decided: work beside Spark's batches has numbers of its own, for each query."""
        app = self.pipeline.name if kind == BATCHES else f"{self.pipeline.name}.side.{query[:8]}"
        return BatchId(kind, self.ledger.next(kind), app, query)

    def start(self) -> None:
        """Let the batches come."""
        writer = self.frame.writeStream.foreachBatch(self._one).queryName(self.pipeline.name)
        writer = writer.option("checkpointLocation", str(self.pipeline.checkpoint))
        if self.once:
            writer = writer.trigger(availableNow=True)
        elif self.pipeline.trigger:
            writer = writer.trigger(processingTime=self.pipeline.trigger)
        self.query = writer.start()

    def _one(self, batch: "DataFrame", number: int) -> None:
        try:
            with self._lock:
                if self._ending:
                    raise _EndedError
                query = query_of(self.pipeline.checkpoint)
                if self.last is None or self.last.writes.query != query:
                    self.ledger.owned_by(query, replaces=self.replaces)
                    self.pipeline.sink.check(self.pipeline.name, query, self.replaces)
                self.ledger.check_input(number, input_of(self.pipeline.checkpoint, number))
                if self.source is not None:
                    check_drift(self.source, self.pipeline.checkpoint, number, self.pipeline.new_columns)
                share, shed = 1.0, self.pipeline.shed
                if shed is not None and not self.once:  # nobody waits for the end of a stream
                    share = share_of(shed, self.ledger.before(number, RECENT), self.pipeline.most_seconds)
                batch_id = BatchId(BATCHES, number, self.pipeline.name, query)
                with at_work(self.ledger.root, f"batch {number}"):
                    self.last = self.batches.run(batch, batch_id, share=share)
            self.on_decision(self.last)
        except BaseException as error:
            self.error = error  # Spark passes on only its text
            raise

    def _side(self, frame: "DataFrame", again: str = "") -> Decision:
        """Work beside Spark's batches; the caller has the lock."""
        query = query_of(self.pipeline.checkpoint)
        try:
            with at_work(self.ledger.root, f"rows {again or 'released'}"):
                self.last = self.batches.run(frame, self._next(SIDE, query), again=again)
        except BaseException as error:
            self.error = error
            if not isinstance(error, Exception):
                raise
            raise stopped(self.pipeline.name, error, error, self.pipeline.log)  # noqa: B904 - it has its cause
        return self.last

    def release(self) -> Decision | None:
        """Let held rows go whose master rows have arrived, although no new rows came in."""
        with self._lock:
            # What failed may be decided and not carried out: nothing is built on it before the next start.
            latest = self.ledger.latest()
            if self.error is not None or not latest:
                return None
            last, newest = latest[-1], find_newest(self.batches.layout.lookups, None)
            if not self.batches.held(last).due(newest, last.read, self.pipeline.clock()):
                return None
            done = self._side(self.frame.sparkSession.createDataFrame([], self.frame.schema))
        self.on_decision(done)
        return done

    def retry(self) -> Decision | None:
        """See `Pipeline.retry`."""
        layout = self.batches.layout
        if not layout.redirects:
            raise ArgumentError(f"no lookup of {self.pipeline.name!r} redirects rows, so there is nothing to try again")
        return self._again("retried", layout.carried)

    def reconcile(self) -> Decision | None:
        """See `Pipeline.reconcile`."""
        layout = self.batches.layout
        if layout.relief is None:
            raise ArgumentError(f"{self.pipeline.name!r} sheds no rows (it has no shed=), so there is nothing to load")
        return self._again("reconciled", layout.original)

    def _again(self, how: str, columns: list[str]) -> Decision | None:
        """Send all rows of a route's table through the steps; those that must go there again take their place."""
        with self._lock:  # from reading to writing: a batch in between may put more rows aside
            rows = self._waiting(WAITED[how], columns)
            if rows.isEmpty():
                return None
            done = self._side(rows, again=how)
        self.on_decision(done)
        return done

    def _waiting(self, route: str, columns: list[str]) -> "DataFrame":
        """A route's table: its files, which may be many, read by Spark, or what the database sends."""
        sink, spark, table = self.pipeline.sink, self.frame.sparkSession, self.batches.layout.table_of(route)
        files = [str(sink.place(table) / name) for name in sorted(sink.files(table))]
        if files:
            from pyspark.sql.pandas.types import from_arrow_schema

            schema = from_arrow_schema(self.batches.schemas.tables[route])
            return spark.read.schema(schema).parquet(*files).select(*map(quoted, columns))
        return spark.createDataFrame(sink.read(table).select(columns))

    @property
    def is_active(self) -> bool:
        """Whether batches may still come."""
        return self.query is not None and bool(self.query.isActive)

    def wait(self, seconds: float | None = None) -> None:
        """Until the stream ends or so much time has passed; raises what stopped it."""
        end = None if seconds is None else time.monotonic() + seconds
        while self.is_active and (end is None or time.monotonic() < end):
            time.sleep(_LOOK_SECONDS_ONCE if self.once else _LOOK_SECONDS)
            if self.is_active and not self.once and not self._lock.locked():
                self.release()
        failure = None if self.query is None else self.query.exception()
        if failure is not None and not isinstance(self.error, _EndedError):
            raise stopped(self.pipeline.name, self.error, failure, self.pipeline.log)
        if self.once and not self.is_active:
            self.release()

    def stop(self) -> None:
        """End the stream and give the state back."""
        try:
            self._ending = True
            with self._lock:  # a batch that has begun is finished
                pass
            if self.query is not None:
                self.query.stop()
        finally:
            self.ledger.close()


def read_source(pipeline: "Pipeline", spark: "SparkSession") -> "tuple[DataFrame, Source | None]":
    """Declare to Spark what is read, nothing is yet; with the source, unless the user made the DataFrame."""
    source = pipeline.source
    if isinstance(source, Source):
        # Parquet files bring their columns: those of the first one hold for the whole run.
        fixed = replace(source, schema=source.columns()) if source.format in FILES else source
        check_not_moved(fixed, pipeline.checkpoint)
        return fixed.read(spark), fixed
    frame = cast("DataFrame", source) if hasattr(source, "writeStream") else source(spark)
    if not getattr(frame, "isStreaming", False):
        raise ArgumentError(f"source={source!r} must be a streaming DataFrame (spark.readStream), or make one")
    return frame, None


def make_batches(pipeline: "Pipeline", ledger: Ledger, frame: "DataFrame") -> Batches:
    """Everything that a batch needs; the warehouse's tables are there afterwards."""
    warehouse, last = pipeline.sink, ledger.newest()
    columns = pa.schema([item for item in arrow_schema(frame)[0] if not item.name.startswith(PREFIX)])
    if pipeline.columns() is None:  # only now the source's columns are known
        check_steps(pipeline.steps, columns)
    seen = None
    if key := next((step.remembers for step in pipeline.steps if step.remembers), None):
        schema = pa.schema([columns.field(name) for name in key])
        seen = SeenKeys(ledger.root / "seen", schema, pipeline.driver_memory)
    asked = {name: (one["matched"], one["unmatched"]) for name, one in (last.lookups if last else {}).items()}
    passing = {name: matched / (matched + missed) for name, (matched, missed) in asked.items() if matched + missed}
    tasks = max(1, int(frame.sparkSession.sparkContext.defaultParallelism))
    memory = pipeline.divide_memory(seen, tasks)
    shed = pipeline.shed
    layout = Layout(
        table=pipeline.table,
        steps=tuple(arrange(pipeline.steps, memory, passing)),
        memory=memory,
        original=columns.names,
        required=pipeline.required,
        max_bad_rate=pipeline.max_bad_rate,
        tasks=tasks,
        driver_memory=pipeline.driver_memory,
        dimensions=pipeline.mirrored(),
        relief=None if shed is None else Relief.of(shed, pipeline.steps, columns.names, pipeline.memory, tasks),
        limits=warehouse.limits,
        hot_keys=ledger.root / "hot",
    )
    newest = {name: one.number for name, one in find_newest(layout.lookups, seen).items()}
    path = None if seen is None else seen.store.path
    schemas = analyse(layout, frame, Masters(newest, path, stores={}, many=False))
    tables = {layout.table_of(route): schema for route, schema in schemas.tables.items()}
    for table, schema in tables.items():
        warehouse.prepare(table, schema)
    batches = Batches(layout, schemas, ledger, warehouse, seen, pipeline.clock)
    batches.check_dimensions()
    if not is_local(frame.sparkSession):
        stores = {*(one.store for one in layout.lookups), *layout.dimensions.values()}
        probe(frame.sparkSession, [ledger.root, *map(warehouse.place, tables)], stores)
    return batches
