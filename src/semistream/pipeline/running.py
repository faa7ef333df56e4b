"""A pipeline at work in one driver: set up, recovered, a batch at a time, ended."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from semistream.errors import ArgumentError
from semistream.pipeline.batch import BATCHES, SIDE, Batches, Job
from semistream.pipeline.checks import check_steps
from semistream.pipeline.columns import PREFIX
from semistream.pipeline.decision import Decision
from semistream.pipeline.dimensions import check_mirror
from semistream.pipeline.held import Held
from semistream.pipeline.inputs import check_drift, check_not_moved, input_of
from semistream.pipeline.ledger import Ledger
from semistream.pipeline.order import ordered
from semistream.pipeline.probe import is_local, probe
from semistream.pipeline.relief import RECENT, share_of
from semistream.pipeline.shape import Mirrored, Shape, shaped
from semistream.pipeline.sources import FILES, Source
from semistream.pipeline.status import at_work
from semistream.pipeline.steps import Deduplicate
from semistream.pipeline.stopping import stopped
from semistream.spark.frames import quoted
from semistream.warehouse import query_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from semistream.changes.duplicates import SeenKeys
    from semistream.pipeline.pipeline import Pipeline

_LOOK_SECONDS = 0.5
Told = Callable[[Decision], None]


class _EndedError(Exception):
    """Raised in a batch that has not begun when the pipeline ends: Spark gives it again at the next start."""


class Running:
    """A pipeline at work."""

    def __init__(
        self,
        pipeline: Pipeline,
        ledger: Ledger,
        spark: SparkSession,
        *,
        once: bool,
        replaces: str | None = None,
        told: Told | None = None,
        start: bool = True,
    ) -> None:
        self.pipeline = pipeline
        self.ledger = ledger
        self.spark = spark
        self.once = once
        self.error: BaseException | None = None
        self.last: Decision | None = ledger.newest()
        self._told = told or (lambda _: None)
        self._replaces = replaces
        self._lock = threading.Lock()
        self._ending = False
        self._source: Source | None = None
        self._frame = self._read()
        if self._source is not None:
            check_not_moved(self._source, pipeline.checkpoint)
        self._originals = [name for name in self._frame.columns if not name.startswith(PREFIX)]
        self._seen = self._open_seen()
        self._batches = self._make_batches()
        if not is_local(spark):
            self._probe()
        self._recover()
        self.query: Any = self._start() if start else None

    # -- setting up --------------------------------------------------------------------------------------------------

    def _read(self) -> DataFrame:
        source = self.pipeline.source
        if isinstance(source, Source):
            # Parquet files bring their columns: those of the first one hold for the whole run.
            self._source = replace(source, schema=source.columns()) if source.format in FILES else source
            return self._source.read(self.spark)
        frame = cast("DataFrame", source) if hasattr(source, "writeStream") else source(self.spark)
        if not getattr(frame, "isStreaming", False):
            raise ArgumentError(f"source={source!r} must be a streaming DataFrame (spark.readStream), or make one")
        return frame

    def _open_seen(self) -> SeenKeys | None:
        step = next((step for step in self.pipeline.steps if isinstance(step, Deduplicate)), None)
        if step is None:
            return None
        from semistream.changes.duplicates import SeenKeys
        from semistream.spark.prepare import arrow_schema

        schema = arrow_schema(self._frame)[0]
        return SeenKeys(self.ledger.root / "seen", pa.schema([schema.field(name) for name in step.key]))

    def _make_batches(self) -> Batches:
        from semistream.spark.prepare import arrow_schema

        pipeline = self.pipeline
        if pipeline.columns() is None:  # only now the source's columns are known
            check_steps(pipeline.steps, arrow_schema(self._frame.select(*map(quoted, self._originals)))[0])
        tasks = max(1, int(self.spark.sparkContext.defaultParallelism))
        shares = pipeline.shares(self._seen, tasks)
        steps = ordered(pipeline.steps, shares, self._passing())
        shape = Shape(
            table=pipeline.table,
            steps=tuple(steps),
            shares=shares,
            original=self._originals,
            required=pipeline.required,
            max_bad_rate=pipeline.max_bad_rate,
            tasks=tasks,
            dimensions=tuple(Mirrored(table, store) for table, store in pipeline.mirrored().items()),
            relief=pipeline.relief(self._originals, tasks),
            limits=pipeline.sink.limits,
        )
        shape = shaped(shape, self._frame, self.ledger.root / "seen" if self._seen is not None else None)
        warehouse = pipeline.sink
        for table, schema in shape.tables.items():
            warehouse.prepare(table, schema)
        for one in shape.dimensions:
            check_mirror(warehouse, one)
        return Batches(shape, self.ledger, warehouse, self._seen, pipeline.clock)

    def _probe(self) -> None:
        shape = self._batches.shape
        places = [self.ledger.root, *(self.pipeline.sink.place(table) for table in shape.tables)]
        probe(self.spark, places, {*(one.store for one in shape.lookups), *(one.store for one in shape.dimensions)})

    def _passing(self) -> dict[str, float]:
        """What share of the rows each lookup let through in the last batch."""
        known = self.last.lookups if self.last else {}
        return {
            name: seen["matched"] / (seen["matched"] + seen["unmatched"])
            for name, seen in known.items()
            if seen["matched"] + seen["unmatched"]
        }

    def _recover(self) -> None:
        """Carry out what was decided last, which a crash may have cut short; remove files of batches that were not."""
        for decision in self.ledger.latest():
            self.pipeline.sink.check(decision.writes.app, decision.writes.query, self._replaces)
            self._batches.carry_out(decision)
        shutil.rmtree(self.ledger.root / "staging", ignore_errors=True)
        query = self.ledger.owner
        if query is None:
            return  # whatever lies beside the tables is not ours
        for kind in (BATCHES, SIDE):
            last = self.ledger.last(kind)
            following = Job(kind, 0 if last is None else last + 1, self._app(kind, query), query)
            for table in self._batches.shape.tables:
                place, used = self.pipeline.sink.place(table), self.pipeline.sink.files(table)
                for path in place.glob(f"{following.prefix}-*.parquet"):
                    if path.name not in used:
                        path.unlink(missing_ok=True)

    def _app(self, kind: str, query: str) -> str:
        """The name of a stream in the warehouse: work beside Spark's batches has numbers of its own, for each query."""
        return self.pipeline.name if kind == BATCHES else f"{self.pipeline.name}.side.{query[:8]}"

    # -- at work -------------------------------------------------------------------------------------------------------

    def _start(self) -> Any:
        writer = self._frame.writeStream.foreachBatch(self._one).queryName(self.pipeline.name)
        writer = writer.option("checkpointLocation", str(self.pipeline.checkpoint))
        if self.once:
            writer = writer.trigger(availableNow=True)
        elif self.pipeline.trigger:
            writer = writer.trigger(processingTime=self.pipeline.trigger)
        return writer.start()

    def _one(self, batch: DataFrame, number: int) -> None:
        """One batch of Spark's."""
        try:
            with self._lock:
                if self._ending:
                    raise _EndedError
                query = query_of(self.pipeline.checkpoint)
                if self.last is None or self.last.writes.query != query:
                    self.ledger.owned_by(query, replaces=self._replaces)
                    self.pipeline.sink.check(self.pipeline.name, query, self._replaces)
                self.ledger.check_input(number, input_of(self.pipeline.checkpoint, number))
                if self._source is not None:
                    check_drift(self._source, self.pipeline.checkpoint, number, self.pipeline.new_columns)
                job = Job(BATCHES, number, self.pipeline.name, query)
                with at_work(self.ledger.root, f"batch {number}"):
                    self.last = self._batches.run(batch, job, share=self._share(number))
            self._told(self.last)
        except BaseException as error:
            self.error = error  # Spark passes on only its text
            raise

    def _share(self, number: int) -> float:
        """How much of a batch goes on; all of it where nobody waits for the end."""
        shed = self.pipeline.shed
        if shed is None or self.once:
            return 1.0
        return share_of(shed, self.ledger.before(number, RECENT), self.pipeline.most_seconds)

    def _side(self, frame: DataFrame, again: str = "") -> Decision:
        """Work beside Spark's batches; the caller has the lock."""
        query = query_of(self.pipeline.checkpoint)
        job = Job(SIDE, self.ledger.next_side(), self._app(SIDE, query), query)
        try:
            with at_work(self.ledger.root, f"rows {again or 'released'}"):
                self.last = self._batches.run(frame, job, again=again)
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
            last, shape = latest[-1], self._batches.shape
            held = Held(last.held, shape.lookups, shape.carried)
            if not held.due(shape.newest(None), last.read, self.pipeline.clock()):
                return None
            done = self._side(self.spark.createDataFrame([], self._frame.schema))
        self._told(done)
        return done

    def retry(self) -> Decision | None:
        """See `Pipeline.retry`."""
        shape = self._batches.shape
        if shape.unmatched is None:
            raise ArgumentError(f"no lookup of {self.pipeline.name!r} redirects rows, so there is nothing to try again")
        return self._again("retried", shape.unmatched_table, shape.carried)

    def reconcile(self) -> Decision | None:
        """See `Pipeline.reconcile`."""
        shape = self._batches.shape
        if shape.shed is None:
            raise ArgumentError(f"{self.pipeline.name!r} sheds no rows (it has no shed=), so there is nothing to load")
        return self._again("reconciled", shape.shed_table, shape.original)

    def _again(self, how: str, table: str, columns: list[str]) -> Decision | None:
        """Send all rows of a table through the steps; those that must go there again take their place."""
        with self._lock:  # from reading to writing: a batch in between may put more rows aside
            rows = self._table(table, columns)
            if rows.isEmpty():
                return None
            done = self._side(rows, again=how)
        self._told(done)
        return done

    def _table(self, table: str, columns: list[str]) -> DataFrame:
        """A table of the warehouse: its files, which may be many, read by Spark, or what the database sends."""
        sink = self.pipeline.sink
        files = [str(sink.place(table) / name) for name in sorted(sink.files(table))]
        if files:
            from pyspark.sql.pandas.types import from_arrow_schema

            schema = from_arrow_schema(self._batches.shape.tables[table])
            return self.spark.read.schema(schema).parquet(*files).select(*map(quoted, columns))
        return self.spark.createDataFrame(sink.read(table).select(columns))

    def wait(self, seconds: float | None = None) -> None:
        """Until the stream ends or so much time has passed; raises what stopped it."""
        end = None if seconds is None else time.monotonic() + seconds
        while self.query.isActive and (end is None or time.monotonic() < end):
            time.sleep(_LOOK_SECONDS)
            if self.query.isActive and not self.once and not self._lock.locked():
                self.release()
        self._raise()
        if self.once and not self.query.isActive:
            self.release()

    def _raise(self) -> None:
        failure = self.query.exception()
        if failure is None or isinstance(self.error, _EndedError):
            return
        raise stopped(self.pipeline.name, self.error, failure, self.pipeline.log)

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
