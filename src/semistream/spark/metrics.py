"""Counters at the driver: a log line, a JSON-lines run log, and ``last`` and ``total`` for programs.

Counters travel in a carrier column, NULL in all rows but one per task (one row more where whole rows cross: a task may
have none to give out). Spark's ``observe`` collects them, so a retried task counts once; a listener adds them up. A
pipeline reads the same column in the tasks that write its rows (`semistream.pipeline.staging`).
"""

import json
import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from semistream.errors import ArgumentError, local_path
from semistream.spark.pins import running_attempt
from semistream.stats import Stats

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession

CARRIER = "_semistream"  # the column in which counters travel
_log = logging.getLogger("semistream")
_PATIENCE_MILLISECONDS = 120_000  # a busy machine is no reason to lose an observation


def write_report(stats: Mapping[str, Stats]) -> str:
    """The counters of a task's lookups, by name, as they travel; which task it was tells equal reports apart."""
    return json.dumps({"task": running_attempt(), "lookups": {name: one.as_dict() for name, one in stats.items()}})


def add_reports(reports: Iterable[str]) -> dict[str, Stats]:
    """The sum for each lookup. A report counts once, also where a row that carries it became several."""
    found: dict[str, Stats] = {}
    for report in set(reports):
        for name, counters in json.loads(report)["lookups"].items():
            found[name] = found.get(name, Stats()) + Stats(**counters)
    return found


class Metrics:
    """Collects the counters of one or several enrichments. Give it to ``enrich(..., metrics=handle)``. ``handle.last``
    is the last batch, ``handle.total`` everything so far; for batch DataFrames, call ``handle.collect()`` after the
    action.
    """

    def __init__(self, spark: "SparkSession", run_log: str | os.PathLike[str] | None = None) -> None:
        if not hasattr(spark, "streams"):
            raise ArgumentError(f"spark={spark!r} is not a SparkSession")
        log = None if run_log is None else local_path("run_log", run_log)
        if log is not None and not log.parent.is_dir():
            raise ArgumentError(f"run_log={str(run_log)!r}: there is no directory {log.parent}; make it first")
        self.last = Stats()
        self.total = Stats()
        self.batches = 0
        self.problem: Exception | None = None
        self._run_log = log
        self._lock = threading.Lock()
        self._names: set[str] = set()
        self._observations: list[Observation] = []
        self._listener = _listener(self)
        self._spark = spark
        spark.streams.addListener(self._listener)

    def watch(self, frame: "DataFrame", identity: str, carrier: "Column") -> "DataFrame":
        """Have Spark collect the reports in column ``carrier`` of a frame."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        reports = F.collect_list(carrier).alias("reports")
        name = f"semistream-{identity}"
        if frame.isStreaming:
            self._names.add(name)
            return frame.observe(name, reports)
        observation = Observation(name)
        with self._lock:
            self._observations.append(observation)
        return frame.observe(observation, reports)

    def collect(self) -> Stats:
        """Take in the counters of batch DataFrames whose action has run; the others stay for a later call."""
        context = getattr(self._spark, "_jsc", None)
        if context is not None:  # Spark hands them over in the background; Spark Connect with the result
            context.sc().listenerBus().waitUntilEmpty(_PATIENCE_MILLISECONDS)
        with self._lock:
            over = [one for one in self._observations if _has_run(one)]
            self._observations = [one for one in self._observations if one not in over]
        for observation in over:
            self.take(observation.get["reports"], {"query": "batch", "batch": self.batches, "seconds": None})
        return self.total

    def take(self, reports: list[str], about: dict[str, Any]) -> None:
        """Add the reports of one batch: check the accounting, log, remember."""
        stats, seconds = sum(add_reports(reports).values(), Stats()), about["seconds"]
        rate = f", {stats.rows_in / seconds:,.0f} rows/s" if seconds else ""
        shed = f", {stats.shed:,} shed" if stats.shed else ""
        said = (
            f"batch {about['batch']}: {stats.rows_in:,} rows{rate}, {stats.matched:,} matched, "
            f"{stats.unmatched:,} unmatched{shed}, hit ratio {stats.hit_ratio:.3f}, {stats.pages_read:,} pages read, "
            f"master version {stats.master_version}"
        )
        _log.info("%s", said)
        if self._run_log is not None:
            line = {"time": time.time(), **about, **stats.as_dict(), "hit_ratio": round(stats.hit_ratio, 6)}
            with self._run_log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        with self._lock:  # last: who waits for a batch finds its line in the log
            self.last = stats
            self.total = self.total + stats
            self.batches += 1
        stats.check(f"batch {about['batch']}")

    def on_progress(self, progress: Any) -> None:
        """Called by the listener when a batch has finished."""
        for name in self._names & set(progress.observedMetrics):
            reports = progress.observedMetrics[name]["reports"] or []
            if not reports and progress.numInputRows == 0:
                continue
            duration = (progress.durationMs or {}).get("triggerExecution")
            about = {"query": str(progress.id), "run": str(progress.runId), "batch": progress.batchId, "operator": name}
            try:
                self.take(reports, about | {"seconds": duration / 1000 if duration else None})
            except Exception as error:  # noqa: BLE001 - Spark's listener bus would swallow it
                self.problem = error
                _log.error("%s", error)

    def close(self) -> None:
        """Stop listening."""
        self._spark.streams.removeListener(self._listener)


def _has_run(observation: Any) -> bool:
    """Would ``observation.get`` return at once? It waits for ever when nobody ran the DataFrame."""
    java = getattr(observation, "_jo", None)
    if java is None:
        return getattr(observation, "_result", None) is not None
    return bool(java.future().isCompleted())


def _listener(metrics: Metrics) -> Any:
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Listener(StreamingQueryListener):
        def onQueryProgress(self, event: Any) -> None:
            metrics.on_progress(event.progress)

        def onQueryStarted(self, event: Any) -> None: ...

        def onQueryTerminated(self, event: Any) -> None: ...

    return Listener()
