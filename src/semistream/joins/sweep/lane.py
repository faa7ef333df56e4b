"""What one thread of a `sweep` works with: a reader, a place for rows, an output; many of them share the cache.

Rows that arrive are looked up in the cache, which nobody changes meanwhile. Rows that waited are met by the pages of
their keys; what was read is offered to the cache, by one lane at a time.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream import kernels
from semistream.budget import Budget
from semistream.joins.groups import Waiting, groups_of
from semistream.joins.output import MOST_ROWS, Indices, Output, pieces
from semistream.joins.sizes import output_row_bytes
from semistream.joins.sweep.cache import TupleCache
from semistream.joins.window import Share
from semistream.keys import Codes, Mask
from semistream.rows import PackedRows, Projection
from semistream.stats import Stats
from semistream.stores.contract import PLAN_BYTES, Store, portions

if TYPE_CHECKING:
    from semistream.joins.sweep.join import SweepJoin

_ABSENT_SHARE = 0.05  # of the keys read: above it the filter is worth its memory
_LEAST_KEYS = 1000
_FILTER_SHARE = 0.15  # of the budget at most


class AbsentKeys:
    """The store's filter of its keys, loaded once many reads find nothing, if it is worth its memory."""

    def __init__(self, store: Store, budget: Budget) -> None:
        self._store, self._budget = store, budget
        self.filter: npt.NDArray[np.uint64] | None = None

    @property
    def bytes(self) -> int:
        return self._budget.parts.get("filter", 0)

    def learn(self, keys: int, absent: int, window_bytes: int) -> None:
        """Load the filter if many of these keys were absent and it takes less than half of the window."""
        size = self._store.facts.filter_bytes
        if self.filter is not None or keys < _LEAST_KEYS or absent <= _ABSENT_SHARE * keys:
            return
        most = min(_FILTER_SHARE * self._budget.total, window_bytes // 2 - 1)
        if 0 < size <= most and self._budget.grant("filter", size):
            self.filter = self._store.bloom()

    def mark(self, codes: Codes, values: npt.NDArray[np.int64]) -> None:
        """Set the values of those keys to 1 that have 0, not known, and cannot match."""
        if self.filter is None:
            return
        unknown = np.flatnonzero(values == 0)
        maybe = np.empty(len(unknown), np.bool_)
        kernels.bloom.bloom_test(self.filter, codes[unknown], maybe)
        absent = unknown[~maybe]
        if len(absent):
            values[absent[~self._store.in_deltas(codes[absent])]] = 1


@dataclass
class Arrived:
    """Rows that were looked up in the cache: output that leaves at once, and the rows that must wait."""

    made: list[pa.RecordBatch]
    rows: pa.RecordBatch  # a copy: these may be a slice of a batch, or of a table, that would stay as long as they wait
    codes: Codes
    stats: Stats  # where they were counted
    more: list[pa.RecordBatch]  # that came with them, and were too much to leave at once: nobody has looked them up

    def leave(self, stats: Stats) -> Iterator[pa.RecordBatch]:
        """What leaves at once, each batch once; all is counted in ``stats`` then."""
        if self.stats is not stats:
            self.stats.move_to(stats)
        self.made.reverse()
        while self.made:
            yield self.made.pop()


class Lane:
    def __init__(self, join: "SweepJoin", offering: threading.Lock) -> None:
        """``offering`` is held by the lane that changes the cache."""
        facts, plan, parts = join.facts, join.plan, join.parts
        self._plan, self._cache, self._absent, self._offering = plan, join.cache, join.absent, offering
        self._page_bytes = facts.page_bytes
        self.projection = Projection(facts.layout, plan.needed)
        self._simple = facts.unique and self.projection.target.fixed  # every cached value is one row of fixed width
        self.reader = join.store.reader(parts.buffer // 2, join.settings.reads_in_flight)
        self._staging = np.empty(parts.buffer // 2 + 64, np.uint8)  # rows taken from the pages
        self._most_codes = parts.plan // PLAN_BYTES
        self._row_bytes = output_row_bytes(facts, plan)
        most_rows = max(1, min(MOST_ROWS, parts.output // self._row_bytes))
        self.output = Output(plan, self.projection.target, join.stats, (most_rows, parts.output), unique=facts.unique)
        self._unique = facts.unique
        self._most_hits = int(3 * parts.output * max(1.0, facts.rows_per_key))  # bytes: far more than what is usual
        # Cached rows of one piece, copied by the probe; part of the output's bytes.
        copied = most_rows * self.projection.target.head
        self._cached_rows = np.empty(copied, np.uint8) if self._simple and self.output.wants_rows else None

    # -- rows that arrive --------------------------------------------------------------------------------------------

    def arrive(self, stream: pa.RecordBatch, stats: Stats) -> Arrived:
        """Steps 1 and 4: probe the cache; hits and keys known to be absent leave, misses must wait."""
        plan, output = self._plan, self.output
        output.stats = stats
        codes, valid = plan.codec.encode([stream.column(name) for name in plan.stream_keys])
        made, more = list[pa.RecordBatch](), list[pa.RecordBatch]()
        values = None
        if self._cache is not None:
            with self._cache.reading() as usable:
                if usable:
                    values, hits = self._cache.probe(codes, valid, self._cached_rows)
                    if (count := self._at_once(self._cache, stream, values)) < len(values):
                        more = list(pieces(stream.slice(count), count, plan.stream))
                        stream, codes, values = stream.slice(0, count), codes[:count], values[:count]
                        hits = int(np.count_nonzero(values[valid[:count]]))
                    stats.hits += hits
                    made = self._hits(self._cache, stream, codes, values)
        if values is None:
            values = np.where(valid, 0, 1)
        stats.rows_in += stream.num_rows
        self._absent.mark(codes, values)
        missing, their = np.empty(len(codes), np.int64), np.empty(len(codes), np.uint64)
        count = kernels.cache_values.missing_values(values, codes, missing, their)
        stats.misses += count
        if count < len(values):
            settled = np.flatnonzero(values)
            matched = values[settled] > 1
            if not output.all_left(matched):
                rows = stream if len(settled) == len(values) else stream.take(pa.array(settled))
                made.extend(output.settled(rows, matched))
        rows = stream.take(pa.array(missing[:count])) if count else stream.slice(0, 0)
        return Arrived(made, rows, their[:count].copy(), stats, more)

    def _at_once(self, cache: TupleCache, stream: pa.RecordBatch, values: npt.NDArray[np.int64]) -> int:
        """How many rows may leave at once: a piece has as many as suit the mean, but frequent keys may be wider."""
        if self._simple or (self.output.sure and not self.output.wants_rows):
            return len(values)
        if self._unique and len(values) * (self._row_bytes + cache.longest) <= self._most_hits * 2 // 3:
            return len(values)  # with the text of the stream, which is no more than the last third
        found, head, last = np.flatnonzero(values > 1), cache.layout.head, cache.layout.last_variable_slot
        counts, sizes = np.empty(len(found), np.int64), np.empty(len(found), np.int64)
        kernels.cache_values.measure_values(cache.header, values[found], head, last, counts, sizes)
        counts = np.maximum(counts, sizes // self._row_bytes)  # of long values it did not count the rows
        sizes += counts * (self._row_bytes + self.output.stream_text(stream, found))
        _, end = next(portions(sizes, self._most_hits), (0, len(found)))
        return len(values) if end == len(found) else int(found[end])

    def _hits(
        self, cache: TupleCache, stream: pa.RecordBatch, codes: Codes, values: npt.NDArray[np.int64]
    ) -> list[pa.RecordBatch]:
        """Stream rows beside the cached rows at ``values``, copied while the cache may not change. Some values are
        changed: a damaged hit becomes a miss (0), one of another key with the same code no match (1).
        """
        output = self.output
        if output.sure and not output.wants_rows:
            return []
        if self._simple and output.sure:
            left, their, rows = np.empty(len(values), np.int64), np.empty_like(codes), np.empty_like(values)
            count = kernels.cache_values.found_values(values, codes, left, their, rows)
            if count == len(values):
                return [output.pairs(stream, None, codes, values)]
            return [output.pairs(stream, left[:count], their[:count], rows[:count])] if count else []
        hit_rows = np.flatnonzero(values > 1)
        if len(hit_rows) == 0:
            return []
        left, rows, _kept = hit_rows, values[hit_rows], None
        if not self._simple:
            index, rows, _kept = cache.spread(rows)
            left = hit_rows[index]
        if len(np.unique(left)) < len(hit_rows):  # a value whose cells were damaged: read it again
            values[np.setdiff1d(hit_rows, left)] = 0
        if not output.sure:
            same = output.matching(stream, left, rows, np.zeros(len(left), np.bool_))
            found = np.zeros(len(values), np.bool_)
            found[left[same]] = True
            values[left[~found[left]]] = 1
            left, rows = left[same], rows[same]
        return list(output.bounded_pairs(stream, left, codes[left], rows)) if output.wants_rows else []

    # -- rows that waited --------------------------------------------------------------------------------------------

    def meet(
        self, shares: Iterator[Share], stream: pa.RecordBatch, codes: Codes, matched: Mask, least: int
    ) -> Iterator[pa.RecordBatch]:
        """Steps 2 and 3: meet waiting rows, share after share, and offer what was read to the cache. Other lanes take
        of the same shares and set other places of ``matched``.
        """
        for share in shares:
            waiting = Waiting(stream, codes, share.rows(codes), matched, one_code=share.one_code)
            whole = np.empty(len(waiting.codes), np.bool_)  # groups larger than a page are never cached
            present = np.zeros(len(waiting.codes), np.bool_)
            read = self.reader.collect(waiting.codes, self.projection, self._staging, self._most_codes, whole)
            for index, packed in read:
                grouped = groups_of(index)
                yield from waiting.pair(index, packed.addresses, self.output, grouped)
                present[index] = True
                self._offer(waiting.codes, grouped, packed, whole, least)
            self._offer_absent(waiting.codes[~present], least)
            share.keys, share.absent = len(present), int((~present).sum())

    def warm_up(self, codes: Codes, counts: npt.NDArray[np.uint8], arrivals: int) -> Iterator[None]:
        """Read the rows of these keys, and offer them to the cache as if each had come so often; chunk by chunk."""
        cache = self._cache
        assert cache is not None
        with self._offering, cache.writing() as usable:
            if usable:
                cache.expect(codes, counts, arrivals)
        whole = np.empty(len(codes), np.bool_)
        for index, packed in self.reader.collect(codes, self.projection, self._staging, self._most_codes, whole):
            self._offer(codes, groups_of(index), packed, whole, 0)
            yield

    def _offer(
        self, codes: Codes, grouped: tuple[Indices, Indices, Indices], packed: PackedRows, whole: Mask, least: int
    ) -> None:
        groups, first, last = grouped
        if self._cache is None or len(groups) == 0:
            return
        keep = whole[groups]
        if not keep.all():
            first, last, groups = first[keep], last[keep], groups[keep]
        with self._offering, self._cache.writing() as usable:
            if usable:
                self._cache.offer(codes[groups], packed, first, last, least, self._page_bytes)

    def _offer_absent(self, codes: Codes, least: int) -> None:
        # An absent key is remembered only from its second arrival on: most are seen once and would crowd out real rows.
        if self._cache is not None and len(codes):
            with self._offering, self._cache.writing() as usable:
                if usable:
                    self._cache.offer_absent(codes, max(2, least))
