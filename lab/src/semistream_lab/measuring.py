"""Measuring a join while its stream flows: a warm-up, then segments; counters and clock are read as rows go in.

So neither an empty start nor the end, when everybody leaves, is in the figures. A join that lets its tuples gather and
then reads for all of them is measured over whole rounds of that: part of one would show it too fast or too slow.
Segments of one run give a confidence interval. Making a batch is not the join's work, so the clock stands still
meanwhile. With an arrival rate, rows come at their own pace on a clock that skips the time in which a join would only
wait; how long they stood in front of it is noted.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import pyarrow as pa

from semistream.joins.contract import Join
from semistream.joins.papers.meeting import Meeting, Waits
from semistream.joins.papers.pcsrj import Node, ParallelCacheJoin
from semistream.joins.papers.waiting_join import WaitingJoin
from semistream.stats import Stats

SEGMENTS = 8
BATCH = 20_000
MOST_WARM, MOST_MEASURED = 20_000_000, 4_000_000
_MOST_A_SECOND = 4_000_000
_PATIENCE = 2.0  # times the measured seconds, to wait for a round's end


@dataclass(frozen=True)
class Limits:
    """How long a run warms up and is measured: by rows, and for slow joins by seconds."""

    warm_rows: int
    rows: int
    warm_seconds: float
    seconds: float
    batch_rows: int = BATCH

    @staticmethod
    def of(params: dict[str, Any]) -> Limits:
        """As a cell's parameters say."""
        seconds = params["seconds"]
        return Limits(
            warm_rows=params.get("warm_rows", min(MOST_WARM, 3 * params["rows"])),
            rows=params.get("measured_rows", int(min(MOST_MEASURED, _MOST_A_SECOND * seconds))),
            warm_seconds=params["warm_seconds"],
            seconds=seconds,
            batch_rows=params.get("stream_batch", BATCH),
        )

    def batches(self, load: Any) -> Iterator[pa.RecordBatch]:
        """The stream of a workload, as long as it may be needed."""
        for start in range(0, self.warm_rows + self.rows, self.batch_rows):
            yield load.stream(start, self.batch_rows)


def endless(load: Any, batch_rows: int = BATCH) -> Iterator[pa.RecordBatch]:
    """The stream of a workload, never the same rows again: a large cache would come to hold all that they ask for."""
    return (load.stream(start, batch_rows) for start in itertools.count(0, batch_rows))


@dataclass(frozen=True)
class Moment:
    """Counters and clock at a point of the stream."""

    stats: Stats
    rows: int
    seconds: float
    cpu: float


class Feed:
    """Hands batches to a join and notes where the measured part begins, its segments, and where it ends."""

    def __init__(
        self, join: Join, batches: Iterable[pa.RecordBatch], limits: Limits, arrival: float | None = None
    ) -> None:
        self.join, self.limits, self.arrival = join, limits, arrival
        self.moments: list[Moment] = []
        self._batches = iter(batches)
        self.fed = 0
        self._making = 0.0  # seconds in which batches were made
        self._idle = 0.0  # seconds in which the join would have waited for the stream
        self._stood = 0.0  # seconds in front of the join, over all rows
        self._rounds = 0  # that have ended
        self._round: Moment | None = None  # when the last one did

    def stream(self) -> Iterator[pa.RecordBatch]:
        """The stream, warm-up and measured part in one."""
        limits, started, origin, warm = self.limits, self._clock(), 0.0, None
        while (batch := self._next()) is not None:
            now = self._clock()
            ended = self._round_ended()
            if not self.moments:
                if warm is None and (self.fed >= limits.warm_rows or now - started > limits.warm_seconds):
                    warm = now
                if warm is not None and (ended or now - warm > limits.seconds):
                    self._note()
                    origin = now
                    for one in meetings(self.join):
                        one.waits = Waits()
            elif now - self.moments[0].seconds > limits.seconds * (1 if ended else _PATIENCE):
                break
            elif (
                now - self.moments[-1].seconds > limits.seconds / SEGMENTS
                or self.fed - self.moments[-1].rows >= limits.rows / SEGMENTS
            ):
                self._note()
            if self.moments and self.arrival:
                self._arrive(batch.num_rows, now, origin)
            yield batch
            self.fed += batch.num_rows
        self._finish()

    def in_two_streams(self) -> int:
        """As `stream`, but everybody has left before the measured part begins, and before it ends; returns the rows
        that came out.
        """
        limits = self.limits

        def take(seconds: float, most: int) -> Iterator[pa.RecordBatch]:
            until = time.perf_counter() + seconds
            while self.fed < most and time.perf_counter() < until and (batch := self._next()) is not None:
                self.fed += batch.num_rows
                yield batch

        rows = sum(out.num_rows for out in self.join.join(take(limits.warm_seconds, limits.warm_rows)))
        self._note()
        rows += sum(out.num_rows for out in self.join.join(take(limits.seconds, self.fed + limits.rows)))
        self._note()
        return rows

    def _round_ended(self) -> bool:
        """Has a round just ended, or is there nothing to wait for?"""
        rounds = sum(part.stats.sweeps for part in parts(self.join))
        if rounds == self._rounds:
            return rounds == 0 or self.arrival is not None
        self._rounds = rounds
        self._round = self._moment()
        return True

    def _finish(self) -> None:
        """The end, or the end of the last whole round, if that is most of what was measured."""
        now, last = self._moment(), self._round
        if self.moments and last is not None and self.arrival is None:
            begin = self.moments[0]
            if 2 * (last.rows - begin.rows) > now.rows - begin.rows:
                self.moments = [one for one in self.moments if one.rows < last.rows]
                now = last
        self.moments.append(now)

    def _next(self) -> pa.RecordBatch | None:
        before = time.perf_counter()
        batch = next(self._batches, None)
        self._making += time.perf_counter() - before
        return batch

    def _arrive(self, rows: int, now: float, origin: float) -> None:
        """A batch is there when its last row has come; its rows came one after the other."""
        assert self.arrival is not None
        complete = origin + (self.fed + rows - self.moments[0].rows) / self.arrival
        self._idle += max(0.0, complete - (now + self._idle))
        self._stood += rows * (now + self._idle - complete + rows / self.arrival / 2)

    def _clock(self) -> float:
        return time.perf_counter() - self._making

    def _note(self) -> None:
        self.moments.append(self._moment())

    def _moment(self) -> Moment:
        counted = reduce(add, (part.stats.copy() for part in parts(self.join)))
        return Moment(counted, self.fed, self._clock(), time.process_time() - self._making)

    def figures(self) -> dict[str, Any]:
        """The measured part in figures."""
        begin, end = self.moments[0], self.moments[-1]
        counted, seconds = end.stats.since(begin.stats), end.seconds - begin.seconds
        fed = end.rows - begin.rows
        return {
            "rows_per_second": fed / seconds,
            "batch_seconds": seconds / max(1, fed // self.limits.batch_rows),
            "rows": fed,
            "warm_rows": begin.rows,
            "tuples_per_read": _over(fed, counted.read_requests),
            "tuples_per_page": _over(fed, counted.pages_read),
            "bytes_per_tuple": counted.bytes_read / fed,
            "hit_ratio": counted.hit_ratio,
            "matched": counted.matched,
            "pages_read": counted.pages_read,
            "bytes_read": counted.bytes_read,
            "read_requests": counted.read_requests,
            "cores_used": (end.cpu - begin.cpu) / seconds,
            "segments": self._segments(),
            **self._standing(fed, seconds),
        }

    def _standing(self, fed: int, seconds: float) -> dict[str, float]:
        """Waiting time before the join; a join that was never idle does not keep up, and its time has no end."""
        if not self.arrival:
            return {}
        idle = self._idle / (seconds + self._idle)
        return {"idle_share": idle, **({"waiting_seconds": self._stood / fed} if idle > 0.01 else {})}

    def _segments(self) -> dict[str, list[float]]:
        """The same figures for each segment; the last one may be short, so it joins its neighbour."""
        edges = [*self.moments[:-2], self.moments[-1]] if len(self.moments) > 3 else self.moments
        found: dict[str, list[float]] = {"rows_per_second": [], "tuples_per_read": [], "tuples_per_page": []}
        for one, other in itertools.pairwise(edges):
            rows, counted = other.rows - one.rows, other.stats.since(one.stats)
            found["rows_per_second"].append(rows / (other.seconds - one.seconds))
            for name, reads in (("tuples_per_read", counted.read_requests), ("tuples_per_page", counted.pages_read)):
                if reads:
                    found[name].append(rows / reads)
        return found if statistics.fmean(map(len, found.values())) > 1 else {}


@dataclass(frozen=True)
class Measured:
    """What the measured part of a stream took."""

    rows: int
    seconds: float
    stats: Stats

    @property
    def rows_per_second(self) -> float:
        """The service rate."""
        return self.rows / self.seconds

    @property
    def tuples_per_page(self) -> float | None:
        """Stream tuples per page read; None when nothing was read."""
        return _over(self.rows, self.stats.pages_read)


def measure(
    join: Join, batches: Iterable[pa.RecordBatch], *, warm_rows: int, warm_seconds: float, seconds: float
) -> Measured:
    """Join a stream to its end, or until it was measured for some seconds."""
    feed = Feed(join, batches, Limits(warm_rows, MOST_MEASURED, warm_seconds, seconds))
    for _ in join.join(feed.stream()):
        pass
    begin = feed.moments[0] if len(feed.moments) > 1 else Moment(Stats(), 0, feed.moments[-1].seconds, 0.0)
    end = feed.moments[-1]
    return Measured(end.rows - begin.rows, max(1e-9, end.seconds - begin.seconds), end.stats.since(begin.stats))


def parts(join: Join) -> Sequence[Node | Join]:
    """The join itself, or its nodes."""
    return join.nodes if isinstance(join, ParallelCacheJoin) else [join]


def meetings(join: Join) -> list[Meeting]:
    """Where tuples wait, in the joins that make them wait by themselves."""
    return [part.meeting for part in parts(join) if isinstance(part, WaitingJoin)]


def waits(join: Join) -> dict[str, float]:
    """How long tuples waited in the join."""
    found = [one.waits for one in meetings(join)]
    tuples = sum(one.tuples for one in found)
    if not tuples:
        return {}
    return {
        "wait_iterations": sum(one.iterations for one in found) / tuples,
        "longest_wait_iterations": max(one.longest for one in found),
        "wait_seconds": sum(one.seconds for one in found) / tuples,
        "longest_wait_seconds": max(one.longest_seconds for one in found),
    }


def _over(rows: int, reads: int) -> float | None:
    return rows / reads if reads else None
