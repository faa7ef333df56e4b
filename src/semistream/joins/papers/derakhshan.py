"""Derakhshan's operator (Derakhshan, Sattar, Stantic 2013), reconstructed from its abstract: batched misses, LRU.

Idea: a block of the stream waits; those of its keys that are in the cache need no disk, all the others are asked for in
one batch, each key once, in the order of the disk. Output keeps the order of the stream. What was read goes to the
cache, over what was not used for longest.
Budget: index, disk buffer, output; of the rest a fifth for the block with the rows it asks for, the others for the
cache.
Cost: c_H a tuple; for every distinct key that is missing, its share of a page.
Invariants: tuples leave in the order in which they came; a block's tuples all leave before the next one is taken.
Departures: hits and misses are not worked on by two threads, which would only wait for each other here. A block whose
matches do not fit its memory is halved until they do; a single tuple with more matches than that streams them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.budget import Budget
from semistream.joins.contract import Join, JoinSettings, Prediction, Scenario
from semistream.joins.costs import Master, gap_pages, swept
from semistream.joins.groups import groups_of
from semistream.joins.matching import Indices
from semistream.joins.output import MOST_ROWS, Output, pieces
from semistream.joins.papers.in_order import emit, emit_one
from semistream.joins.papers.master_cache import MasterCache, row_cost
from semistream.joins.papers.waiting_join import buffer_bytes
from semistream.joins.sizes import cell_bytes, output_row_bytes, projected
from semistream.joins.window import row_charge
from semistream.keys import Codes
from semistream.lookup.bind import LookupPlan
from semistream.rows import Addresses, PackedRows, Projection
from semistream.stores.contract import Store, StoreFacts

_BUFFER_SHARE = 0.02
_BLOCK_SHARE = 0.2
_INDEX_BYTES = 72  # code, entry, place and order of a waiting tuple; code, place and group of a row read


class _Fetched:
    """Rows of some codes, by code."""

    def __init__(self, index: Indices, rows: Addresses, kept: list[PackedRows]) -> None:
        order = np.argsort(index, kind="stable")
        self.groups, self.first, self.last = groups_of(index[order].astype(np.uint64))
        self.rows = rows[order]
        self._kept = kept  # what the addresses point into


class DerakhshanJoin(Join):
    """Batched lookups behind an LRU cache; see the module."""

    name = "derakhshan"
    idea = "a block's missing keys are asked for in one batch; least recently used rows leave the cache; order is kept"
    keeps_order = True

    def __init__(self, store: Store, plan: LookupPlan, budget: Budget, settings: JoinSettings | None = None) -> None:
        super().__init__(store, plan, budget, settings)
        facts = self.facts
        budget.require("index", facts.index_bytes)
        spare = max(0, budget.total - self.least_bytes(facts, plan))
        budget.require("buffer", buffer_bytes(facts, spare, _BUFFER_SHARE))
        row, waiting = output_row_bytes(facts, plan), self._waiting_bytes(facts, plan)
        budget.require("output", row)
        budget.require("block", waiting)
        self.block_rows = 1 + min(MOST_ROWS, int(spare * _BLOCK_SHARE) // (row + waiting))
        budget.grant("output", (self.block_rows - 1) * row)
        budget.grant("block", (self.block_rows - 1) * waiting)
        self._fetch_bytes = self.block_rows * cell_bytes(facts, projected(facts, plan))
        cached = budget.free // row_cost(facts, plan)
        budget.grant("cache", cached * row_cost(facts, plan))
        self.projection = Projection(facts.layout, plan.needed)
        self.reader = store.reader(budget.parts["buffer"], 1, double=False)
        self.output = Output(plan, self.projection.target, self.stats, self.block_rows)
        self._unprojected = self.output.of_layout(facts.layout)
        self.unmatched_sample = self.output.unmatched_sample
        self.cache = MasterCache(facts, plan, cached, self.output)
        self.stats.peak_bytes = budget.peak

    @staticmethod
    def _waiting_bytes(facts: StoreFacts, plan: LookupPlan) -> int:
        return row_charge(plan.stream) + cell_bytes(facts, projected(facts, plan)) + _INDEX_BYTES

    def _run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for piece in pieces(batch, self.block_rows, self.plan.stream):
                codes, valid = self.plan.codec.encode([piece.column(name) for name in self.plan.stream_keys])
                self.stats.rows_in += piece.num_rows
                yield from self._block(piece, codes, valid)
        self.stats.cached_rows, self.stats.cached_bytes = self.cache.rows, self.cache.used_bytes

    def _block(self, stream: pa.RecordBatch, codes: Codes, valid: npt.NDArray[np.bool_]) -> Iterator[pa.RecordBatch]:
        """Answer tuples from the cache and from one batch of reads; if their matches do not fit, half of them first."""
        entries = self.cache.lookup(codes)
        entries[~valid] = -1
        missing = np.flatnonzero(valid & (entries < 0))
        distinct, of = np.unique(codes[missing], return_inverse=True)
        fetched = self._fetch(distinct)
        if fetched is None and len(codes) == 1:
            self.stats.misses += 1
            yield from emit_one(self._unprojected, stream, codes, self.reader)
            self.stats.count_reads(self.reader.counters)
            return
        if fetched is None:
            half = len(codes) // 2
            yield from self._block(stream.slice(0, half), codes[:half], valid[:half])
            yield from self._block(stream.slice(half), codes[half:], valid[half:])
            return
        self.stats.misses += len(missing)
        self.stats.hits += int((entries >= 0).sum())
        self.stats.count_reads(self.reader.counters)
        first, last, rows = self._candidates(entries, missing, of, fetched)
        yield from emit(self.output, stream, codes, first, last, rows, sure=self.output.sure)
        self.cache.touch(entries[entries >= 0])
        self._remember(distinct, fetched)

    def _fetch(self, codes: Codes) -> _Fetched | None:
        """All rows of these ascending codes, projected; None if they do not fit."""
        index, rows, kept, size = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [], 0
        for found, loaded in self.reader.match(codes):
            size += int(self.projection.lengths(loaded).sum()) if len(loaded) else 0
            if size > self._fetch_bytes:
                return None
            packed = self.projection.apply(loaded)
            kept.append(packed)
            index.append(found)
            rows.append(packed.addresses)
        return _Fetched(np.concatenate(index), np.concatenate(rows), kept)

    def _candidates(
        self, entries: Indices, missing: Indices, of: Indices, fetched: _Fetched
    ) -> tuple[Indices, Indices, Addresses]:
        """For each tuple, which rows may match it: [first, last) of the rows."""
        first, last = np.zeros(len(entries), np.int64), np.zeros(len(entries), np.int64)
        hit = np.flatnonzero(entries >= 0)
        cached, at = np.unique(entries[hit], return_inverse=True)
        ends = np.cumsum(self.cache.counts(cached))
        last[hit] = ends[at]
        first[hit] = last[hit] - self.cache.counts(cached)[at]
        base = int(ends[-1]) if len(ends) else 0
        group = np.searchsorted(fetched.groups, of.astype(np.uint64))
        found = np.flatnonzero(group < len(fetched.groups))
        found = found[fetched.groups[group[found]] == of[found].astype(np.uint64)]
        first[missing[found]] = base + fetched.first[group[found]]
        last[missing[found]] = base + fetched.last[group[found]]
        return first, last, np.concatenate([self.cache.addresses(self.cache.slots_of(cached)), fetched.rows])

    def _remember(self, codes: Codes, fetched: _Fetched) -> None:
        """Cache what was read, the first of it as far as it fits, over what was not used for longest."""
        keys = codes[fetched.groups.astype(np.int64)]
        fits = self.cache.is_new(keys, fetched.first, fetched.last, fetched.rows)
        chosen = np.flatnonzero(fits)
        sizes = (fetched.last - fetched.first)[chosen]
        chosen = chosen[np.cumsum(sizes) <= self.cache.capacity]
        if len(chosen) == 0:
            return
        need = int((fetched.last - fetched.first)[chosen].sum()) - self.cache.free
        if need > 0:
            self.cache.remove(self.cache.oldest_keys(need))
        self.cache.put(keys[chosen], fetched.first[chosen], fetched.last[chosen], fetched.rows, self.stats.rows_in)

    def check(self) -> None:
        """Accounting, and the cache is whole."""
        super().check()
        self.cache.check(self.name)

    @classmethod
    def least_bytes(cls, facts: StoreFacts, plan: LookupPlan) -> int:
        """See `Join.least_bytes`."""
        row = output_row_bytes(facts, plan) + cls._waiting_bytes(facts, plan)
        return int(facts.index_bytes + facts.largest_page + row)

    @classmethod
    def model(cls, scenario: Scenario) -> Prediction:
        """Hits of an LRU cache; the misses of a block share pages."""
        facts, plan, memory_bytes = scenario.facts, scenario.plan, scenario.memory_bytes
        spare = max(0, memory_bytes - cls.least_bytes(facts, plan))
        buffer = buffer_bytes(facts, spare, _BUFFER_SHARE)
        row, waiting = output_row_bytes(facts, plan), cls._waiting_bytes(facts, plan)
        block = 1 + min(MOST_ROWS, int(spare * _BLOCK_SHARE) // (row + waiting))
        rows = max(0, memory_bytes - facts.index_bytes - buffer - block * (row + waiting)) // row_cost(facts, plan)
        master = Master.of(facts, buffer, profile=scenario.profile)
        keys = rows / master.rows_per_key
        hits = master.popularity.least_recently_used(keys)
        # What misses is mostly what the cache does not hold: the keys after the most popular ones.
        others = master.popularity.without(min(keys, master.keys - 1))
        read = swept(others.distinct(block * (1 - hits)), master, gap_pages(facts))
        parts = {
            "index": facts.index_bytes,
            "block": block * (row + waiting),
            "cache": rows * row_cost(facts, plan),
        }
        words = "one read for the misses of a block on the same page"
        counts = (hits, block / read.requests, read.pages / read.requests)
        return Prediction(*counts, parts, words, piece_rows=block, gap_pages=read.gaps / read.requests)
