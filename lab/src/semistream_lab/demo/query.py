"""The streams of the demo: followed while they run, stopped, restarted, and what their batches took."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semistream.errors import SemistreamError
from semistream.stats import Stats
from semistream.warehouse import DeltaSink
from semistream_lab.demo.lag import Lag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from semistream.pipeline import Decision, Pipeline, Running
    from semistream_lab.demo import Place, Settings
    from semistream_lab.demo.shop import Arrivals

WARM_UP = 2  # batches that compile code, start workers and fill caches, at least; they do not count in a rate
MEASURED = 4  # batches that do, the last that are full
_LOOK_SECONDS = 0.25
_STALLED_SECONDS = 600.0  # the first batch compiles code, and the machine may be busy


@dataclass(frozen=True)
class Reading:
    """One look at a running query."""

    rows: int
    batch: int
    batch_rows: int
    batch_seconds: float
    files_behind: int
    seconds_behind: float
    stats: Stats | None = None


@dataclass
class Outcome:
    """What a query did: rows and seconds of its batches, and for ours the counters."""

    name: str
    table: Path
    batches: list[tuple[int, float]] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    replayed: int = 0
    customers: Path | None = None  # the table of those that were made
    lag: Lag = field(default_factory=Lag)

    @property
    def measured(self) -> list[tuple[int, float]]:
        """The batches that count in a rate: the last that are full."""
        full = max((rows for rows, _ in self.batches), default=0)
        return [one for one in self.batches[WARM_UP:] if one[0] == full][-MEASURED:] or self.batches

    @property
    def rate(self) -> float:
        """Rows per second while batches run."""
        return sum(rows for rows, _ in self.measured) / max(1e-9, sum(seconds for _, seconds in self.measured))

    @property
    def batch_seconds(self) -> float:
        """The median time of a batch."""
        return statistics.median(seconds for _, seconds in self.measured)


Show = Callable[[Reading], None]


class Query:
    """A streaming query, with all that the demo does to it. How it is begun and ended is for those below."""

    def __init__(self, outcome: Outcome, place: Place, settings: Settings, arrivals: Arrivals) -> None:
        self.outcome = outcome
        self.place = place
        self.settings = settings
        self.arrivals = arrivals
        self.seen = -1
        self.last_batch = time.monotonic()
        self.running: Any = None

    def follow(
        self,
        show: Show,
        until_rows: int,
        stop_after: int | None = None,
        enough_seconds: float = math.inf,
        replays: int = 0,
    ) -> None:
        """Start the query, show how it does, and stop it when so many rows are through, or after a batch.

        Not before so many batches were sent again: all rows may have been through when it was stopped before.
        A slow one is stopped when it has run for ``enough_seconds`` and there are batches to judge it by.
        """
        started = self.last_batch = time.monotonic()
        self._begin()
        try:
            while (self._look(show) < until_rows or self.outcome.replayed < replays) and (
                stop_after is None or self.seen < stop_after
            ):
                self._check()
                if time.monotonic() - started > enough_seconds and len(self.outcome.batches) > WARM_UP:
                    break
                time.sleep(_LOOK_SECONDS)
        except SemistreamError:
            raise
        except Exception as error:
            raise SemistreamError(f"Spark does not answer any more: {error} (more in {self.place.log})") from error
        finally:
            with contextlib.suppress(Exception):  # it may be gone, and then that is what the user is told
                self._end()

    def _begin(self) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        self.running.stop()

    def _check(self) -> None:
        name, more = self.outcome.name, f"(more in {self.place.log})"
        if time.monotonic() - self.last_batch > _STALLED_SECONDS:
            raise SemistreamError(f"{name} has finished no batch for {_STALLED_SECONDS:.0f} s {more}")
        if self.arrivals.error is not None:
            raise SemistreamError(f"the sales cannot be written: {self.arrivals.error}")
        failure = self.running.exception()
        if failure is not None:
            raise SemistreamError(f"{name} failed: {str(failure).strip().splitlines()[0]} {more}")

    def _look(self, show: Show) -> int:
        batches = self.outcome.batches
        for progress in self.running.recentProgress:
            if progress.batchId > self.seen and progress.numInputRows:
                self.seen, self.last_batch = progress.batchId, time.monotonic()
                batches.append((progress.numInputRows, progress.durationMs["triggerExecution"] / 1000))
        rows = self._rows()
        arrived, done = list(self.arrivals.times), rows // self.settings.rows_per_file
        behind = max(0, len(arrived) - done)
        now = time.monotonic()
        waiting = now - arrived[done] if behind else 0.0
        self.outcome.lag.note(now - came for came in arrived[len(self.outcome.lag.seconds) : done])
        show(Reading(rows, self.seen, *(batches[-1] if batches else (0, 0.0)), behind, waiting, self._stats()))
        return rows

    def _rows(self) -> int:
        """Rows that are through."""
        return sum(count for count, _ in self.outcome.batches)

    def _stats(self) -> Stats | None:
        return None


class Native(Query):
    """A query of Spark's own joins into a Delta table."""

    def __init__(self, frame: DataFrame, *rest: Any) -> None:
        super().__init__(*rest)
        self.frame = frame

    def _begin(self) -> None:
        table = self.outcome.table
        writer = self.frame.writeStream.foreachBatch(DeltaSink(table, app="sales"))
        writer = writer.option("checkpointLocation", str(self.place.checkpoint(table.name)))
        self.running = writer.trigger(processingTime=f"{self.settings.trigger_seconds} seconds").start()


class Load(Query):
    """Our pipeline."""

    def __init__(self, pipeline: Pipeline, spark: SparkSession, *rest: Any) -> None:
        super().__init__(*rest)
        self.pipeline = pipeline
        self.spark = spark
        self.decided: dict[int, Decision] = {}  # by batch
        self._work: Running | None = None

    def _begin(self) -> None:
        self._work = self.pipeline.start(self.spark, told=self._told)
        self.running = self._work.query

    def _end(self) -> None:
        assert self._work is not None
        self._work.stop()

    def _told(self, decision: Decision) -> None:
        number = decision.writes.batch
        self.last_batch = time.monotonic()
        self.outcome.replayed += number in self.decided
        self.decided[number] = decision

    def _check(self) -> None:
        assert self._work is not None
        if isinstance(self._work.error, SemistreamError):
            raise self._work.error
        super()._check()

    def _rows(self) -> int:
        """By the decisions: Spark tells of no rows in a batch that comes again, nor of one that it was stopped in."""
        return sum(one.counts["rows_in"] for one in list(self.decided.values()))

    def _stats(self) -> Stats:
        """The sales and their products, by the decisions of all batches."""
        decided = list(self.decided.values())
        parts = [Stats(rows_in=one.counts["rows_in"], **one.lookups["products"]) for one in decided]
        return sum(parts, Stats())

    def finished(self) -> Outcome:
        """The outcome, with its counters."""
        self.outcome.stats = self._stats()
        return self.outcome

    def forget_last_commit(self) -> tuple[int, int]:
        """Put the checkpoint back to just before Spark noted the last batch, as a crash leaves it.

        Returns that batch, and the rows that the table holds.
        """
        last = max(self.decided)
        for part, number in (("commits", last), ("offsets", last + 1), ("sources/0", last + 1)):
            for name in (f"{number}", f".{number}.crc"):
                (self.pipeline.checkpoint / part / name).unlink(missing_ok=True)
        return last, rows_in(self.outcome.table)


def rows_in(table: Path) -> int:
    """Rows that the Delta table holds, by its log."""
    from deltalake import DeltaTable

    return int(DeltaTable(table).count()) if DeltaTable.is_deltatable(str(table)) else 0
