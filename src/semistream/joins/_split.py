"""Where `sweep` draws the line between cache and window, and what its cost model makes of that.

A byte more of cache saves misses, a byte more of window lets the others share pages; the split goes to where both save
as much.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from semistream.contracts import JoinPlan, Prediction, Profile
from semistream.joins._cache import TupleCache, cell_bytes
from semistream.joins._costs import Master, settled, swept
from semistream.joins._division import Division, output_row_bytes
from semistream.joins._output import MOST_ROWS
from semistream.joins._popularity import Popularity
from semistream.joins._window import row_charge, waiting_bytes
from semistream.rows import Projection

MISS_SECONDS = 0.45e-6  # what a miss costs beside the read: waiting, sorting, searching the page
_LEAST_CACHE, _LEAST_WINDOW = 1 / 16, 1 / 32  # of what both share
_LOST = 0.1  # of the hits that a perfect LFU cache has, what the sketch loses for each share of misses


def elasticity(density: float, read_seconds: float) -> float:
    """By how much the cost of a miss falls when the window grows: the more pages are touched, the more are shared.

    ``density`` is the touched share of all pages, ``read_seconds`` what reading costs a miss.
    """
    x = -math.log(max(1e-9, 1 - min(density, 1 - 1e-9)))  # misses a page, if they fell at random
    saved = 1 - x * math.exp(-x) / max(1e-12, 1 - math.exp(-x)) if x > 1e-6 else 0.0
    return saved * read_seconds / (read_seconds + MISS_SECONDS)


def cache_share(miss_ratio: float, elastic: float, cached_rows: float) -> float:
    """The cache's share of what both have: cache : window = s : m·e, with m the miss ratio and e the elasticity.

    s is what hits gain when the cache grows by a factor e: (1 - m)/(ln C + 0.58) on a Zipf stream of exponent 1, which
    is taken for granted here.
    """
    gain = (1 - miss_ratio) / (math.log(max(2, cached_rows)) + 0.58)
    return gain / max(1e-12, gain + miss_ratio * elastic)


def window_floor(room: int, row: int) -> int:
    """The least that is left for the window."""
    return min(room // 2, max(row * 64, int(room * _LEAST_WINDOW)))


def cache_bounds(room: int, floor: int) -> tuple[int, int]:
    """The least and the most that the cache may get."""
    return int(room * _LEAST_CACHE), room - floor


def predict_sweep(
    store: Any, plan: JoinPlan, memory_bytes: int, profile: Profile, share: float, *, adapt: bool
) -> Prediction:
    """Zipf hits of the cache and the reads of a full window, where the split between them comes to rest."""
    parts = Division.of(store, plan, memory_bytes, share)
    layout = Projection(store.layout, plan.needed).target
    cell = cell_bytes(store, layout, simple=store.unique and layout.fixed)
    master = Master.of(store, parts.buffer // 2)
    half = max(1, parts.buffer // 4 // store.page_bytes)  # one half of the reader's buffer loads, the other is used
    master = replace(master, request_pages=min(master.request_pages, half))
    popularity = Popularity(master.keys, profile.skew)
    room, row = parts.cache + parts.window, row_charge(plan.stream)
    waiting = waiting_bytes(plan.stream)
    gap = 1 + store.device.gap_bytes / store.page_bytes
    has_cache = TupleCache.holds_anything(parts.cache, cell)
    # The cache's tables are made for the most it may get, and stay when it shrinks.
    tables = TupleCache.geometry(parts.cache, cell)["cells_at"] if has_cache else parts.cache

    def at(cache: float) -> tuple[float, float, float, float, float]:
        """Cached keys, hits, rows in a full window, pages and requests of its sweep."""
        cached = min(float(master.keys), max(0.0, (cache - tables) / cell) / master.rows_per_key)
        whole = cached >= master.keys
        best = 1.0 if whole else popularity.head(cached)
        hits = best * (1 - _LOST * (1 - best)) if profile.skew else best
        window = max(1.0, (room - cache) / waiting)
        pages, reads = swept(window, master, popularity.without(min(cached, master.keys - 1.0)), gap)
        return cached, hits, window, pages, reads

    def step(cache: float) -> float:
        cached, hits, window, pages, reads = at(cache)
        read = store.device.seconds(reads, pages * store.page_bytes) / window
        wanted = room * cache_share(1 - hits, elasticity(pages / master.pages, read), cached)
        low, high = cache_bounds(room, window_floor(room, row))
        return min(max(min(max(wanted, low), high), tables), parts.cache)

    cache = settled(step, float(parts.cache)) if adapt and has_cache else float(parts.cache)
    _, hits, window, pages, reads = at(cache)
    shown = {
        "index": parts.index,
        "read buffer": parts.buffer + parts.plan,
        "output": parts.output,
        "cache": int(cache),
        "window": room - int(cache),
    }
    tuples = window / max(1e-9, 1 - hits)
    words = f"for a Zipf stream of exponent {profile.skew:g}"
    piece = max(1, min(MOST_ROWS, parts.output // output_row_bytes(store, plan)))
    rows = 1 / (1 / piece + 1 / tuples)  # a sweep has a cost of its own, as a piece of the stream has
    return Prediction(hits, tuples / reads, pages / reads, shown, words, piece_rows=max(1, int(rows)))
