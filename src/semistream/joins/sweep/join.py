"""SWEEP: hot keys from memory at once, all others gathered and met by one sweep over the pages they need.

Idea
    1. Every batch probes the cache H_R, vectorised; hits leave at once.
    2. Misses wait in the window. When it is full, its deadline has passed (every batch looks, with rows or without) or
       the input ends, their distinct keys are sorted by page and read by a plan: a gap is read through when its bytes
       cost less than a new request, several requests are in flight, the next chunk loads while this one is joined.
       Few misses make point reads, many one sequential scan: INLJ, HYBRIDJOIN, SSIJ and MESHJOIN are its corners.
    3. Every arrival is counted, in the cell of a cached key or in a decaying sketch. A key is cached when that saves
       more window than it takes, and when it is more frequent than what must go for it.
    4. Keys absent from the master are remembered as such in the cache and, when many of the reads find nothing, told
       by a Bloom filter of the master's keys.

Budget: index + read buffer + rows taken from it + output piece; the rest is cache and window. Their split begins where
    the cost model has it for a Zipf stream, since a large window is swept too seldom to find it by trying, and follows
    the marginal gain, from the counts of the last sweep (`split.Balance`).

The inequality. With m the miss ratio, W the window's bytes, k its rows of v_S bytes and r(k) the cost of reading for
    one miss, the cost of a stream tuple is m·(c + r(k)). A byte of cache saves f/v_R·(c + r), a byte of window
    m·r·e/W, where e is the elasticity of r: near 0 for point reads (a miss costs the same however many wait), 1 for a
    scan. Hence cache key j when f_j·span·v_S·(c + r) > e·r·v_R, with span the arrivals between two sweeps. For e = 1
    and c = 0 this is MOIJ's rule; its factor 2 is not needed here, since all rows of a sweep wait for the same moment.

New: no published semi-stream join counts every arrival for admission, nor moves between point reads and a scan.
"""

import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from semistream.budget import Budget
from semistream.errors import ArgumentError, InvariantError
from semistream.joins.contract import Join, JoinSettings, Prediction, Scenario
from semistream.joins.output import pieces
from semistream.joins.sizes import charge, output_row_bytes, projected, row_charge
from semistream.joins.sweep.cache import WARMING_SECONDS, TupleCache, key_cell
from semistream.joins.sweep.hot import HotKeys
from semistream.joins.sweep.lane import AbsentKeys, Arrived, Lane
from semistream.joins.sweep.split import Balance, Division, predict_sweep
from semistream.joins.threads import Ahead, piece_rows, side_by_side
from semistream.joins.window import SHARES, Window, shares_of
from semistream.lookup.bind import LookupPlan
from semistream.lookup.pacing import WAIT_SECONDS, check_wait_seconds
from semistream.stats import ReadCounters, Stats
from semistream.stores.contract import PLAN_BYTES, Store, StoreFacts


@dataclass(frozen=True)
class SweepSettings(JoinSettings):
    """What can be set; the defaults suit most streams."""

    wait_seconds: float = WAIT_SECONDS
    cache_share: float = 0.9  # at most, and from the start where it does not adapt
    adapt: bool = True
    reads_in_flight: int = 8
    hot_keys: str | os.PathLike[str] | None = None  # the file in which they are kept between runs

    def __post_init__(self) -> None:
        if not 0 <= self.cache_share < 1:
            raise ArgumentError(f"cache_share={self.cache_share} must be at least 0 and below 1")
        check_wait_seconds(self.wait_seconds)
        if not 1 <= self.reads_in_flight <= 16:
            raise ArgumentError(f"reads_in_flight={self.reads_in_flight} must be from 1 to 16")


class SweepJoin(Join):
    """Cache, window and planned sweeps; see the module."""

    name = "sweep"
    idea = "hot keys from memory, all others by planned sweeps over the pages they need"
    settings_type = SweepSettings
    settings: SweepSettings

    def __init__(
        self,
        store: Store,
        plan: LookupPlan,
        budget: Budget,
        settings: JoinSettings | None = None,
        *,
        cache: TupleCache | None = None,
        divide: Callable[[float], Division] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(store, plan, budget, settings)
        facts = self.facts
        share = self.settings.cache_share
        self._divide = divide or (lambda times: Division.of(facts, plan, int(budget.total * times), share))
        self.parts = parts = self._divide(1.0)
        budget.require("index", facts.index_bytes)
        budget.require("buffer", parts.buffer * parts.lanes)
        budget.require("plan", parts.plan * parts.lanes)
        budget.require("output", parts.output * parts.pieces)
        layout = projected(facts, plan)
        cell, simple = key_cell(facts, layout)
        self.cache = cache
        self._shared = cache is not None
        self._room = budget.free  # for cache and window together
        if cache is None and TupleCache.holds_anything(parts.cache, cell):
            self.cache = TupleCache.private(parts.cache, layout, cell, simple=simple)
        self._own = None if self._shared else self.cache
        self.balance = Balance(self, self._own, self._room)
        self.window = Window(plan.stream, budget)
        self.absent = AbsentKeys(store, budget)
        offering = threading.Lock()
        self.lanes = [Lane(self, offering) for _ in range(parts.lanes)]
        self.output = self.lanes[0].output
        for lane in self.lanes:
            lane.output.unmatched_sample = self.unmatched_sample
        self._ahead: Ahead[Arrived] = Ahead()
        self._clock = clock
        hot = self.settings.hot_keys
        self.hot = HotKeys(hot, store.codec.fields, budget) if hot is not None else None
        self._swept_at = 0
        self._account()

    def _run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self._warm_up()
        try:
            for batch in batches:
                yield from self._arrive(batch)
                if batch.num_rows == 0 and self.due() <= 0:
                    yield from self._sweep(full=True)
            yield from self._sweep(full=False)
        finally:
            self._ahead.stop()

    def due(self) -> float:
        since = self.window.since
        return math.inf if since is None else since + self.settings.wait_seconds - self._clock()

    def _start_afresh(self) -> None:
        super()._start_afresh()
        self.window.take()
        self.window.release()

    @property
    def window_limit(self) -> int:
        if self._shared:
            return self.parts.window
        return self._room - self.absent.bytes - self.balance.limit

    def _arrive(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Look a batch up, piece by piece; with several lanes some at once, all of which are done when it ends."""
        rows, lanes = batch.num_rows, self.parts.lanes
        most = piece_rows(rows, self.output.most_rows, lanes)
        if lanes == 1 or most >= rows:
            for piece in pieces(batch, most, self.plan.stream, self.parts.output):
                yield from self._leave(self.lanes[0].arrive(piece, self.stats))
            return
        for number, piece in enumerate(pieces(batch, most, self.plan.stream, self.parts.output)):
            before = self._ahead.next() if len(self._ahead) == lanes else None
            if self.cache is not None and not self.cache.sound:
                self._ahead.seen()  # nobody looks at a damaged cache while it is made anew
            self._ahead.start(partial(self.lanes[number % lanes].arrive, piece, Stats()))
            if before is not None:
                yield from self._leave(before)
        while len(self._ahead):
            yield from self._leave(self._ahead.next())

    def _leave(self, arrived: Arrived) -> Iterator[pa.RecordBatch]:
        """Give out what leaves at once; let the others wait; go on to the rows that were too much."""
        yield from arrived.leave(self.stats)
        yield from self._wait(arrived)
        if self.due() <= 0:
            yield from self._sweep(full=True)
        for piece in arrived.more:
            self._ahead.seen()  # a lane is needed
            yield from self._leave(self.lanes[0].arrive(piece, self.stats))

    def _wait(self, arrived: Arrived) -> Iterator[pa.RecordBatch]:
        """Let misses wait, as many at a time as the window has room for; sweep whenever it is full."""
        rows, codes = arrived.rows, arrived.codes
        while rows.num_rows:
            room = self.window_limit - self.window.bytes
            count = max(1, min(rows.num_rows, int(room * rows.num_rows / charge(rows))))
            while True:
                # A part of them is copied too: it must not keep the others.
                some = rows if count == arrived.rows.num_rows else rows.take(pa.array(np.arange(count)))
                size = charge(some)
                fits = size <= room and self.window.can_hold(some)
                if fits or count == 1:
                    break
                count //= 2  # text may be longer than the average
            if fits:
                self.window.add(some, codes[:count], self._clock(), size)
                rows, codes = rows.slice(count), codes[count:]
                self.stats.peak_bytes = self.budget.peak
            elif self.window.rows == 0:
                for other in self._ahead.seen():  # nobody may look at the cache
                    yield from other.leave(self.stats)
                if not self.balance.give_way(size - room):
                    raise self.budget.too_small_for_row(size, self._row_room)
                self._account()
            if rows.num_rows:
                yield from self._sweep(full=True)

    def _row_room(self, times: float) -> int:
        """Bytes that one row would have for certain, with so many times the memory."""
        parts = self._divide(times)
        # A filter may take half of the window; of what a cache leaves, its tables may keep as much.
        return parts.window if self._shared else (parts.window + parts.cache * self.settings.adapt) // 3

    def _sweep(self, *, full: bool) -> Iterator[pa.RecordBatch]:
        """Steps 2 and 3: meet all waiting rows, offer what was read to the cache."""
        if self.window.rows == 0:
            return
        for arrived in self._ahead.seen():  # lanes are needed, and nobody may look at the cache
            yield from arrived.leave(self.stats)
        used = self.window.bytes
        before = self._counters()
        stream, codes = self.window.take()
        matched = np.zeros(len(codes), np.bool_)
        lanes = self.parts.lanes
        shares = shares_of(codes, lanes, self.window_limit * len(codes) // (used * SHARES * lanes))
        least = self._least_frequency() if full else 0
        met = iter(shares)
        yield from self._in_lanes([lane.meet(met, stream, codes, matched, least) for lane in self.lanes[: len(shares)]])
        self._account()
        filled = used >= self.window_limit // 2
        cuts = np.linspace(0, len(codes), min(len(shares), self.parts.lanes) + 1).astype(np.int64)
        yield from self._in_lanes(
            [
                lane.output.settled(stream.slice(start, end - start), matched[start:end])
                for lane, (start, end) in zip(self.lanes, itertools.pairwise(cuts.tolist()), strict=False)
            ]
        )
        rows = len(codes)
        del stream, codes, matched
        self.window.release()
        keys, absent = sum(share.keys for share in shares), sum(share.absent for share in shares)
        self._learn(before, rows, keys, absent, filled=filled, full=full)

    def _in_lanes(self, works: list[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """What each lane makes, in the order in which it comes; work for one is done here."""
        if len(works) == 1:
            self.output.stats = self.stats
            yield from works[0]
            return
        for lane in self.lanes:
            lane.output.stats = Stats()
        try:
            yield from side_by_side(works)
        finally:
            for lane in self.lanes:
                lane.output.stats.move_to(self.stats)

    def _counters(self) -> ReadCounters:
        all_of = [lane.reader.counters for lane in self.lanes]
        return ReadCounters(*(sum(getattr(one, name) for one in all_of) for name in ("pages", "requests", "bytes")))

    def _least_frequency(self) -> int:
        """The corrected inequality as a count: keys seen less often than this are not worth their bytes."""
        if self.cache is None:
            return 0
        span = max(1, self.stats.rows_in - self._swept_at)
        waiting_bytes = span * row_charge(self.plan.stream)
        least = int(min(255, self.balance.elastic * self.cache.cell_cost * self.cache.arrivals_counted / waiting_bytes))
        return max(least, 2) if self.cache.full else least  # most keys seen once are never seen again

    def _learn(self, before: ReadCounters, misses: int, keys: int, absent: int, *, filled: bool, full: bool) -> None:
        """Count the reads, load the filter when many keys were absent, move the split between cache and window. Not
        ``filled``: the deadline came first, or the end, and more room for the window would have been of no use.
        """
        counters, stats, facts = self._counters(), self.stats, self.facts
        stats.sweeps += 1
        stats.count_reads(counters)
        seconds = facts.device.seconds(counters.requests - before.requests, counters.bytes - before.bytes)
        arrivals = stats.rows_in - self._swept_at
        self._swept_at = stats.rows_in
        density = (counters.pages - before.pages) / max(1, facts.pages)
        read_seconds = seconds / max(1, misses)
        self.balance.learn(density, read_seconds, filled=filled)
        if not self._shared:
            self.absent.learn(keys, absent, self.window_limit)
        if self._own is not None:
            stats.cached_rows, stats.cached_bytes = self._own.rows, self._own.used_bytes
            if full:
                self.balance.move(misses / max(1, arrivals), read_seconds, self.absent.bytes)
        self._account()
        if self.hot is not None and self.cache is not None and self.cache.warm:
            self.hot.save(self.cache, self.window_limit)

    def _warm_up(self) -> None:
        """Fill an empty cache with the rows of keys that were hot in an earlier run, the most frequent first. It ends
        early rather than keep the first rows waiting for long, or read more than the store has.
        """
        if self.hot is None or self.cache is None or not self.cache.take_warming():
            return
        done, over, ends = False, False, self._clock() + min(self.settings.wait_seconds, WARMING_SECONDS / 2)
        most_bytes = self._counters().bytes + self.facts.bytes
        try:
            for piece in self.hot.load(self.window_limit, self.cache.free_cells):
                for _ in self.lanes[0].warm_up(*piece):
                    self._account()
                    if over := self._clock() >= ends or self._counters().bytes >= most_bytes:
                        break
                if over or self.cache.full:
                    break
            done = True
        finally:
            self.cache.end_warming(done=done)

    def _account(self) -> None:
        """Take of the budget what the cache really holds now."""
        if self._own is not None and not self.budget.resize("cache", self._own.used_bytes):
            raise InvariantError(f"sweep: a cache of {self._own.used_bytes:,} bytes does not fit {self.budget.parts}")
        self.stats.peak_bytes = self.budget.peak

    def check(self) -> None:
        super().check()
        if self.cache is not None:
            with self.cache.reading() as usable:
                if usable:
                    self.cache.check()
        waiting = self.window.rows
        self._ensure(holds=waiting == 0, said=f"{waiting} rows still wait after the end of the input")

    @classmethod
    def least_bytes(cls, facts: StoreFacts, plan: LookupPlan) -> int:
        waiting = row_charge(plan.stream)
        return int(facts.index_bytes + 2 * facts.largest_page + PLAN_BYTES + output_row_bytes(facts, plan) + waiting)

    @classmethod
    def model(cls, scenario: Scenario) -> Prediction:
        return predict_sweep(scenario, SweepSettings.of(scenario.settings))
