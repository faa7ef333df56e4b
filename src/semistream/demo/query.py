"""A streaming query of the demo: followed while it runs, stopped, restarted, and what its batches took."""

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
from semistream.sinks import DeltaSink
from semistream.stats import Stats

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from semistream.demo import Place, Settings
    from semistream.demo.shop import Arrivals
    from semistream.spark import Metrics

WARM_UP = 2  # batches that compile code, start workers and fill caches; they do not count in a rate
_LOOK_SECONDS = 0.25
_PATIENCE_SECONDS = 10.0
_STALLED_SECONDS = 120.0


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

    @property
    def measured(self) -> list[tuple[int, float]]:
        """The batches that count in a rate: all but the first ones."""
        return self.batches[WARM_UP:] or self.batches

    @property
    def rate(self) -> float:
        """Rows in a second while batches run."""
        return sum(rows for rows, _ in self.measured) / max(1e-9, sum(seconds for _, seconds in self.measured))

    @property
    def batch_seconds(self) -> float:
        """The median time of a batch."""
        return statistics.median(seconds for _, seconds in self.measured)


Show = Callable[[Reading], None]


class _Stopped(Exception):  # noqa: N818 - no error
    """Raised inside the query to end it before a batch: from outside, a stop may come in the middle of one."""


class Query:
    """A streaming query into a Delta table, with all that the demo does to it."""

    def __init__(
        self,
        frame: DataFrame,
        outcome: Outcome,
        place: Place,
        settings: Settings,
        arrivals: Arrivals,
        metrics: Metrics | None = None,
    ) -> None:
        self.frame = frame
        self.outcome = outcome
        self.checkpoint = place.checkpoint(outcome.table.name)
        self.log = place.log
        self.settings = settings
        self.arrivals = arrivals
        self.metrics = metrics
        self.sink = DeltaSink(outcome.table, app="sales")
        self.seen = -1
        self.last_batch = time.monotonic()
        self.looked_in_vain = 0
        self.running: Any = None

    def follow(
        self, show: Show, until_rows: int, stop_after: int | None = None, enough_seconds: float = math.inf
    ) -> None:
        """Start the query, show how it does, and stop it when so many rows are through, or after a batch.

        A slow one is stopped when it has run for ``enough_seconds`` and there are batches to judge it by.
        """
        started = time.monotonic()

        def write(batch: Any, batch_id: int) -> None:
            if stop_after is not None and batch_id > stop_after:
                raise _Stopped
            self.sink(batch, batch_id)

        writer = self.frame.writeStream.foreachBatch(write).option("checkpointLocation", str(self.checkpoint))
        self.running = writer.trigger(processingTime=f"{self.settings.trigger_seconds} seconds").start()
        try:
            while self._look(show) < until_rows and self.seen != stop_after:
                self._check()
                if time.monotonic() - started > enough_seconds and len(self.outcome.batches) > WARM_UP:
                    break
                time.sleep(_LOOK_SECONDS)
        except SemistreamError:
            raise
        except Exception as error:
            raise SemistreamError(f"Spark does not answer any more: {error} (more in {self.log})") from error
        finally:
            with contextlib.suppress(Exception):  # it may be gone, and then that is what the user is told
                self.running.stop()

    def _check(self) -> None:
        name, more = self.outcome.name, f"(more in {self.log})"
        if time.monotonic() - self.last_batch > _STALLED_SECONDS:
            raise SemistreamError(f"{name} has finished no batch for {_STALLED_SECONDS:.0f} s {more}")
        if self.arrivals.error is not None:
            raise SemistreamError(f"the sales cannot be written: {self.arrivals.error}")
        failure = self.running.exception()
        if failure is not None and _Stopped.__name__ not in str(failure):
            raise SemistreamError(f"{name} failed: {str(failure).strip().splitlines()[0]} {more}")

    def _look(self, show: Show) -> int:
        batches = self.outcome.batches
        for progress in self.running.recentProgress:
            if progress.batchId > self.seen and progress.numInputRows:
                if not self._counted(len(batches) + 1):
                    break
                self.seen, self.last_batch = progress.batchId, time.monotonic()
                batches.append((progress.numInputRows, progress.durationMs["triggerExecution"] / 1000))
        rows = sum(count for count, _ in batches)
        arrived, done = list(self.arrivals.times), rows // self.settings.rows_per_file
        behind = max(0, len(arrived) - done)
        waiting = time.monotonic() - arrived[done] if behind else 0.0
        stats = self.metrics.last if self.metrics and self.metrics.batches else None
        show(Reading(rows, self.seen, *(batches[-1] if batches else (0, 0.0)), behind, waiting, stats))
        return rows

    def _counted(self, batches: int) -> bool:
        """Have the counters of so many batches come in? They follow a moment after the batch; lost ones, never."""
        if self.metrics is None or self.metrics.batches >= batches:
            self.looked_in_vain = 0
            return True
        self.looked_in_vain += 1
        return self.looked_in_vain * _LOOK_SECONDS > _PATIENCE_SECONDS

    def forget_last_commit(self) -> int:
        """Put the checkpoint back to just before Spark noted the last batch, as a crash leaves it; returns the rows."""
        last = self.seen
        for part, number in (("commits", last), ("offsets", last + 1), ("sources/0", last + 1)):
            for name in (f"{number}", f".{number}.crc"):
                (self.checkpoint / part / name).unlink(missing_ok=True)
        return rows_in(self.outcome.table)


def rows_in(table: Path) -> int:
    """Rows that the Delta table holds, by its log."""
    from deltalake import DeltaTable

    return int(DeltaTable(table).count()) if DeltaTable.is_deltatable(str(table)) else 0
