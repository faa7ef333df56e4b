"""How `sweep` divides its budget: the line between cache and window, where the cost model draws it, how a run moves it.

A byte more of cache saves misses, a byte more of window lets the others share pages; the split goes to where both save
as much.
"""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from semistream.joins.contract import Prediction, Scenario
from semistream.joins.costs import Master, Popularity, Swept, swept
from semistream.joins.output import MOST_ROWS
from semistream.joins.sizes import output_row_bytes, projected, row_charge, waiting_bytes
from semistream.joins.sweep.cache import TupleCache, key_cell
from semistream.lookup.bind import LookupPlan
from semistream.stores.contract import PLAN_BYTES, StoreFacts

if TYPE_CHECKING:
    from semistream.joins.sweep.join import SweepJoin, SweepSettings

_BUFFER = 1 << 20  # a few of the longest requests; more only takes memory from the cache
_DIRECT_BUFFER = 4 << 20  # past the page cache, reads in flight need places
_OUTPUT = 3 << 20
_OUTPUT_PART = 12  # of a small budget: every piece of the stream has a cost of its own, so pieces must not be tiny
_LANE_ROWS = 1024  # of a piece: with fewer, another thread costs more than it does
MISS_SECONDS = 0.45e-6  # what a miss costs beside the read: waiting, sorting, searching the page
_LEAST_CACHE, _LEAST_WINDOW = 1 / 16, 1 / 32  # of what both share
# What a cache costs a row of the stream: admitting rows, cutting pieces into hits and misses (1 M rows out of the page
# cache, 10 %, skews 0 and 0.5: hits of 0.09 lost a fifth of the rate, 0.31 neither lost nor gained).
_KEEP_SECONDS = 0.13e-6
_LITTLE = 1.05
_DAMPING = 0.3  # of a step towards where the split should be
_TRY_AGAIN = 50  # sweeps after which a closed cache is opened again
_TRIED, _CLOSER = 16, 2
_STEEPEST, _HALVINGS = 4.0, 30  # of the exponents that may explain the hits
_LOST = 0.1  # of the hits that a perfect LFU cache has, what the sketch loses for each share of misses
_HARDLY = 0.9  # of the window: filled less, it is worth a word
_GATHER_SECONDS = 0.17e-6  # a row of the stream until it has left or waits (5.8 M rows/s, R of 100 M rows, skew 1)
_NEAR_BYTES = 4 << 20  # of the cells that are asked for most: they stay in the processor's own caches
_ROUND = 0.5  # of what a piece of the stream costs: planning the reads of some keys, and ending a sweep (0.4 seen)


@dataclass(frozen=True)
class Division:
    """The budget in parts, in bytes."""

    index: int
    buffer: int  # of a lane: pages read, and the rows taken from them, half each
    plan: int  # of a lane's reads
    output: int  # of a piece
    cache: int
    window: int
    lanes: int = 1  # threads that have a reader each
    pieces: int = 1  # of output that are there at once: one that leaves while each lane makes another

    @staticmethod
    def of(facts: StoreFacts, plan: LookupPlan, total: int, share: float, tasks: int = 1, lanes: int = 0) -> "Division":
        """Divide a budget; ``tasks`` readers with a buffer, an output piece and a window each share one cache. A plan
        for several threads gets as many ``lanes`` as there is room for, at most so many if a number is given.
        """
        page = facts.largest_page
        row = output_row_bytes(facts, plan)
        waiting = row_charge(plan.stream)
        index = facts.index_bytes * tasks
        most_lanes = total // (2 * page + PLAN_BYTES + _LANE_ROWS * row)  # with more, one has less than it needs
        lanes = max(1, min(lanes or (plan.threads if tasks == 1 else 1), most_lanes))
        while True:
            pieces = 1 if lanes == 1 else lanes + 1
            spare = max(0, total - index - tasks * (lanes * (2 * page + PLAN_BYTES) + pieces * row + waiting))
            # Two lanes have two thirds of what one would have, each: tiny pieces cost more than a smaller cache.
            part = 2 * spare // (tasks * (lanes + 1))
            most = min(_DIRECT_BUFFER if facts.direct else _BUFFER, part // 24)
            buffer = page + most // page * page
            reads = PLAN_BYTES + most
            output = row + min(_OUTPUT, part // _OUTPUT_PART)
            rest = total - index - tasks * (lanes * (2 * buffer + reads) + pieces * output)
            if lanes == 1 or (output >= _LANE_ROWS * row and rest >= waiting):
                break
            lanes -= 1
        cache = int(max(0, rest - tasks * waiting) * share)
        window = (rest - cache) // tasks
        return Division(index, 2 * buffer, reads, output, cache, window, lanes, pieces)


def elasticity(density: float, read_seconds: float, facts: StoreFacts, longest_request: int) -> float:
    """By how much the cost of a miss falls when the window grows by a little: the more is shared, the more.

    ``density`` is the touched share of all pages, ``read_seconds`` what reading costs a miss. A sweep that reads
    through its gaps costs the same however many wait, although it touches few pages.
    """
    pages = max(1, facts.pages)
    if density <= 0 or read_seconds <= 0:
        return 0.0
    touched = -math.log(max(1e-9, 1 - min(density, 1 - 1e-9))) * pages  # keys, if they fell at random

    def cost(keys: float) -> float:
        return Swept.of(keys, pages, facts, longest_request).seconds(facts)

    slope = math.log(cost(touched * _LITTLE) / cost(touched)) / math.log(_LITTLE)
    return min(1.0, max(0.0, 1 - slope)) * read_seconds / (read_seconds + MISS_SECONDS)


def request_pages(facts: StoreFacts, buffer: int) -> int:
    """Pages of the longest request of a sweep: one half of the reader's buffer loads, the other is used."""
    return min(Master.of(facts, buffer // 2).request_pages, max(1, buffer // 4 // facts.page_bytes))


def cache_share(miss_ratio: float, elastic: float, cached: float, keys: float) -> float:
    """The cache's share of what both have: cells : window = s : m·e, with m the miss ratio and e the elasticity.

    s is what hits gain when the cache of C keys grows by a factor of 2.718: C^(1-z)/H_N(z) on a Zipf stream over N
    keys, with the exponent z at which C keys have as many hits as were seen.
    """
    keys = max(1.0, keys)
    cached = min(max(1.0, cached), keys)
    low, high = 0.0, _STEEPEST
    for _ in range(_HALVINGS):
        skew = (low + high) / 2
        below = _harmonic(cached, skew) < (1 - miss_ratio) * _harmonic(keys, skew)
        low, high = (skew, high) if below else (low, skew)
    gain = cached ** (1 - low) / _harmonic(keys, low)
    return gain / max(1e-12, gain + miss_ratio * elastic)


def _harmonic(keys: float, skew: float) -> float:
    """The sum of k^-skew over so many keys, by Euler and Maclaurin."""
    log = math.log(keys)
    integral = math.expm1((1 - skew) * log) / (1 - skew) if abs(1 - skew) > 1e-9 else log
    return integral + (1 + math.exp(-skew * log)) / 2 + skew / 12


def worth_keeping(hits: float, read_seconds: float, closed_seconds: float | None = None) -> bool:
    """Does a cache save more than it costs? Without it a miss costs ``closed_seconds`` to read, or as much as now."""
    closed = MISS_SECONDS + (read_seconds if closed_seconds is None else closed_seconds)
    return (1 - hits) * (MISS_SECONDS + read_seconds) + _KEEP_SECONDS <= closed


def cache_bounds(room: int, row: int) -> tuple[int, int]:
    """The least and the most that the cache may get; rows that wait take ``row`` bytes each."""
    return int(room * _LEAST_CACHE), room - min(room // 2, max(row * 64, int(room * _LEAST_WINDOW)))


@dataclass(frozen=True)
class At:
    """A split, and what follows from it on a Zipf stream."""

    cached: float  # keys
    hits: float
    far: float  # share of the stream that waits for memory: for a cached row, or to have its own admitted
    window: float  # rows in it when it is swept
    filled: float  # the share of the window that they are
    waiting: float  # keys in it
    read: Swept  # by its sweep
    read_seconds: float  # for a miss


class Split:
    """What the two sides of a budget are worth, for a Zipf stream of some exponent whose rows may wait so long."""

    def __init__(
        self, facts: StoreFacts, plan: LookupPlan, parts: Division, skew: float = 1.0, wait_seconds: float = math.inf
    ) -> None:
        self._cell, _ = key_cell(facts, projected(facts, plan))
        self._facts, self._parts, self._skew, self._wait_seconds = facts, parts, skew, wait_seconds
        self._master = replace(Master.of(facts, parts.buffer // 2), request_pages=request_pages(facts, parts.buffer))
        self._popularity = Popularity(self._master.keys, skew)
        self._near = self._popularity.head(_NEAR_BYTES / self._cell / self._master.rows_per_key)
        self._row, self._waiting = row_charge(plan.stream), waiting_bytes(plan.stream)
        self.room = parts.cache + parts.window
        self.has_cache = TupleCache.holds_anything(parts.cache, self._cell)
        # The cache's tables are made for the most it may get, and stay when it shrinks.
        self.tables = TupleCache.geometry(parts.cache, self._cell)[-1] if self.has_cache else parts.cache

    def at(self, cache: float) -> At:
        """With so many bytes for the cache."""
        master = self._master
        cached = min(float(master.keys), max(0.0, (cache - self.tables) / self._cell) / master.rows_per_key)
        best = 1.0 if cached >= master.keys else self._popularity.head(cached)
        hits = best * (1 - _LOST * (1 - best)) if self._skew else best
        far = 1 - min(hits, self._near) if cached else 0.0
        whole = max(1.0, (self.room - cache) / self._waiting)
        gathered = (1 - hits) * self._wait_seconds / _GATHER_SECONDS if hits < 1 else whole  # before the deadline
        window = max(1.0, min(gathered, whole))
        others = self._popularity.without(min(cached, master.keys - 1.0))
        waiting = others.distinct(window)
        read = swept(waiting, master, self._facts)
        seconds = read.seconds(self._facts)
        return At(cached, hits, far, window, window / whole, waiting, read, seconds / window)

    def rest(self) -> float:
        """Where the split should come to rest: the cache's bytes at the least cost."""
        most = float(self._parts.cache)
        if not self.has_cache:
            return most
        least, highest = cache_bounds(self.room, self._row)
        low, high = min(max(float(least), self.tables), most), min(float(highest), most)
        best = low
        for _ in range(_CLOSER):  # there may be two valleys, so the whole range is looked at first
            tried = np.linspace(low, max(low, high), _TRIED)
            best = float(tried[int(np.argmin([self.seconds(cache) for cache in tried]))])
            step = (high - low) / (_TRIED - 1)
            low, high = max(low, best - step), min(high, best + step)
        return min(best, min(self.tables, most), key=self.seconds)  # or closed: only its tables stay

    def seconds(self, cache: float) -> float:
        """What a stream tuple costs with so many bytes for the cache, as far as the split can change it."""
        then = self.at(cache)
        return (1 - then.hits) * (MISS_SECONDS + then.read_seconds) + (_KEEP_SECONDS if then.cached else 0.0)


def predict_sweep(scenario: Scenario, settings: "SweepSettings") -> Prediction:
    """Zipf hits of the cache and the reads of a window, full or at its deadline, where their split comes to rest."""
    facts, plan, profile = scenario.facts, scenario.plan, scenario.profile
    parts = Division.of(facts, plan, scenario.memory_bytes, settings.cache_share)
    split = Split(facts, plan, parts, profile.skew, settings.wait_seconds)
    cache = split.rest() if settings.adapt else float(parts.cache)
    then = split.at(cache)
    shown = {
        "index": parts.index,
        "read buffer": parts.lanes * (parts.buffer + parts.plan),
        "output": parts.pieces * parts.output,
        "cache": int(cache),
        "window": split.room - int(cache),
    }
    tuples, requests = then.window / max(1e-9, 1 - then.hits), then.read.requests
    words = f"for a Zipf stream of exponent {profile.skew:g}"
    if then.filled < _HARDLY:
        words += f"; a deadline of {settings.wait_seconds:g} s leaves the window {1 - then.filled:.0%} empty"
    piece = max(1, min(MOST_ROWS, parts.output // output_row_bytes(facts, plan)))
    rounds = max(1.0, then.waiting / (parts.plan // PLAN_BYTES))  # a sweep plans its reads for some keys at a time
    rows = 1 / (1 / piece + _ROUND * (1 + rounds) / tuples)
    return Prediction(
        then.hits,
        tuples / requests,
        then.read.pages / requests,
        shown,
        words,
        piece_rows=max(1, int(rows)),
        gap_pages=then.read.gaps / requests,
        far_ratio=then.far,
    )


class Balance:
    """How many of the bytes that cache and window of a running join have together are the cache's."""

    def __init__(self, join: "SweepJoin", cache: TupleCache | None, room: int) -> None:
        """``cache`` is the join's own, if it has one: what several share is divided once and for all."""
        facts, plan, parts = join.facts, join.plan, join.parts
        self._facts, self._cache, self._room, self._most = facts, cache, room, parts.cache
        self._adapt = join.settings.adapt
        self._bounds = cache_bounds(room, row_charge(plan.stream))
        self._request_pages = request_pages(facts, parts.buffer)
        self.elastic = 0.0
        self.closed_for = 0  # sweeps since the cache was closed
        self._filled = False  # was the cache full before these arrivals? It fills while a sweep reads
        self.limit = parts.cache if cache is not None else 0
        if cache is not None and self._adapt:
            self._set(int(Split(facts, plan, parts, wait_seconds=join.settings.wait_seconds).rest()))
        self._opening = self.limit

    def learn(self, density: float, read_seconds: float, *, filled: bool) -> None:
        """What a sweep read. Not ``filled``: more room for the window would have been of no use."""
        self.elastic = elasticity(density, read_seconds, self._facts, self._request_pages) if filled else 0.0

    def move(self, miss_ratio: float, read_seconds: float, taken: int) -> None:
        """Move towards the split where a byte more of cache saves as much as a byte more of window. A cache that costs
        more than it saves is closed, and tried again much later. ``taken`` bytes are neither side's.
        """
        cache = self._cache
        if cache is None or not self._adapt:
            return
        filled, self._filled = self._filled, cache.full
        if not filled:  # these misses are those of a cold start
            return
        low, high = self._bounds[0], self._bounds[1] - taken
        if self.closed_for:
            self.closed_for = (self.closed_for + 1) % _TRY_AGAIN
            if not self.closed_for:
                self._set(min(self._opening, high))
                self._filled = False
        else:
            share = cache_share(miss_ratio, self.elastic, cache.rows, self._facts.rows)
            rest = cache.table_bytes + share * (self._room - cache.table_bytes)
            limit = min(max(self.limit + int(_DAMPING * (rest - self.limit)), low), high)
            moves = abs(limit - self.limit) > self._room // 50  # each move costs a pass over the cache
            closed = None if moves else self._closed_seconds(cache, read_seconds)
            if not worth_keeping(1 - miss_ratio, read_seconds, closed):
                self.closed_for = 1
                self._set(0)
            elif moves:
                self._set(limit)

    def give_way(self, size: int) -> bool:
        """Leave the window so many bytes of the cache's, for a row that is wider than it; did it get them?"""
        before = self.limit
        if self._cache is not None and self._adapt:
            self._set(before - size)
        return before - self.limit >= size

    def _closed_seconds(self, cache: TupleCache, read_seconds: float) -> float:
        """What reading would cost a miss if the window had the cache's bytes too, but for the tables."""
        share = (self._room - self.limit) / max(1, self._room - cache.table_bytes)
        elastic = self.elastic * (1 + MISS_SECONDS / max(1e-12, read_seconds))  # of reading alone
        return float(read_seconds * min(1.0, share) ** min(1.0, elastic))

    def _set(self, limit: int) -> None:
        assert self._cache is not None
        self.limit = self._cache.limit_bytes(min(limit, self._most))
