"""Derakhshan's operator (Derakhshan, Sattar, Stantic 2013), reconstructed from its abstract: batched misses, LRU.

Idea: a block of the stream waits; those of its keys that are in the cache need no disk, all the others are asked for in
one batch, each key once, in the order of the disk. What was read goes to the cache, over what was not used for longest.
Budget: index, disk buffer, output; of the rest a fifth for the block with the rows it asks for, else for the cache.
Invariants: tuples leave in the order in which they came; a block's tuples all leave before the next one is taken.
Departures: one thread, since two would only wait for each other here. A block whose matches do not fit its memory is
halved until they do; a single tuple with more matches than that streams them.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from semistream.joins.contract import Join, Prediction, Scenario
from semistream.joins.costs import Master, swept
from semistream.joins.groups import Groups
from semistream.joins.output import MOST_ROWS, Indices, Output, pieces
from semistream.joins.papers.master_cache import MasterCache, row_cost
from semistream.joins.papers.meeting import emit, emit_one
from semistream.joins.papers.stream_table import Entries
from semistream.joins.papers.waiting_join import buffer_bytes
from semistream.joins.sizes import cell_bytes, output_row_bytes, projected, row_charge
from semistream.keys import Codes, Mask
from semistream.lookup.bind import LookupPlan
from semistream.rows import Addresses, Projection
from semistream.stores.contract import StoreFacts

_BUFFER_SHARE = 0.02
_BLOCK_SHARE = 0.2
_INDEX_BYTES = 72  # code, entry, place and order of a waiting tuple; code, place and group of a row read


class DerakhshanJoin(Join):
    name = "derakhshan"
    idea = "a block's missing keys are asked for in one batch; least recently used rows leave the cache; order is kept"
    keeps_order = True

    def _set_up(self) -> None:
        facts, plan, budget = self.facts, self.plan, self.budget
        buffer, self.block_rows, cached = self._divide(self.scenario)
        budget.require("index", facts.index_bytes)
        budget.require("buffer", buffer)
        budget.require("block", self.block_rows * self._tuple_bytes(facts, plan))
        budget.grant("cache", cached * row_cost(facts, plan))
        self._fetch_bytes = self.block_rows * cell_bytes(facts, projected(facts, plan))
        limits = self.block_rows, self.block_rows * output_row_bytes(facts, plan)
        self.projection = Projection(facts.layout, plan.needed)
        self.reader = self.store.reader(buffer, 1, double=False)
        self.output = Output(plan, self.projection.target, self.stats, limits)
        self._unprojected = self.output.of_layout(facts.layout)
        self.unmatched_sample = self.output.unmatched_sample
        self.cache = MasterCache(facts, cached, self.output)

    @staticmethod
    def _tuple_bytes(facts: StoreFacts, plan: LookupPlan) -> int:
        """What a tuple of a block takes, with a row that it asks for and its row of output."""
        asked = row_charge(plan.stream) + cell_bytes(facts, projected(facts, plan)) + _INDEX_BYTES
        return asked + output_row_bytes(facts, plan)

    @classmethod
    def _divide(cls, scenario: Scenario) -> tuple[int, int, int]:
        """Bytes of the disk buffer, tuples of a block, and rows of the cache."""
        facts, plan, total = scenario.facts, scenario.plan, scenario.memory_bytes
        spare = max(0, total - cls.least_bytes(facts, plan))
        buffer = buffer_bytes(facts, spare, _BUFFER_SHARE)
        tuple_bytes = cls._tuple_bytes(facts, plan)
        block = 1 + min(MOST_ROWS, int(spare * _BLOCK_SHARE) // tuple_bytes)
        left = max(0, total - facts.index_bytes - buffer - block * tuple_bytes)
        return buffer, block, left // row_cost(facts, plan)

    def _run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for piece in pieces(batch, self.block_rows, self.plan.stream):
                codes, valid = self.plan.codec.encode([piece.column(name) for name in self.plan.stream_keys])
                self.stats.rows_in += piece.num_rows
                yield from self._block(piece, codes, valid)
        self.stats.cached_rows, self.stats.cached_bytes = self.cache.rows, self.cache.used_bytes

    def _block(self, stream: pa.RecordBatch, codes: Codes, valid: Mask) -> Iterator[pa.RecordBatch]:
        """Answer tuples from the cache and from one batch of reads; if their matches do not fit, half of them first."""
        entries = self.cache.lookup(codes)
        entries[~valid] = -1
        missing = np.flatnonzero(valid & (entries < 0))
        fetched = self._fetch(np.unique(codes[missing]))
        if fetched is None and len(codes) > 1:
            half = len(codes) // 2
            yield from self._block(stream.slice(0, half), codes[:half], valid[:half])
            yield from self._block(stream.slice(half), codes[half:], valid[half:])
            return
        self.stats.misses += len(missing)
        if fetched is None:
            yield from emit_one(self._unprojected, stream, codes, self.reader)
            self.stats.count_reads(self.reader.counters)
            return
        self.stats.hits += int((entries >= 0).sum())
        self.stats.count_reads(self.reader.counters)
        first, last, rows = self._candidates(codes, entries, missing, fetched)
        yield from emit(self.output, stream, codes, first, last, rows)
        self.cache.touch(entries[entries >= 0])
        self._remember(fetched)

    def _fetch(self, codes: Codes) -> Groups | None:
        """All rows of these ascending codes, projected; None if they do not fit."""
        fetched, size = [], 0
        for index, loaded in self.reader.match(codes):
            size += int(self.projection.lengths(loaded).sum()) if len(loaded) else 0
            if size > self._fetch_bytes:
                return None
            fetched.append((codes[index], self.projection.apply(loaded)))
        return Groups.of_pieces(fetched)

    def _candidates(
        self, codes: Codes, entries: Entries, missing: Indices, fetched: Groups
    ) -> tuple[Indices, Indices, Addresses]:
        """For each tuple, which rows may match it: [first, last) of the rows."""
        first, last = np.zeros(len(entries), np.int64), np.zeros(len(entries), np.int64)
        hit = np.flatnonzero(entries >= 0)
        cached, at = np.unique(entries[hit], return_inverse=True)
        counts = self.cache.counts(cached)
        ends = np.cumsum(counts)
        first[hit], last[hit] = (ends - counts)[at], ends[at]
        begin, end = fetched.find(codes[missing])
        first[missing], last[missing] = begin + counts.sum(), end + counts.sum()
        return first, last, np.concatenate([self.cache.addresses(self.cache.slots_of(cached)), fetched.rows])

    def _remember(self, fetched: Groups) -> None:
        """Cache what was read, the first of it as far as it fits, over what was not used for longest."""
        groups = fetched[self.cache.is_new(fetched)]
        groups = groups[np.cumsum(groups.sizes) <= self.cache.capacity]
        need = int(groups.sizes.sum()) - self.cache.free
        if need > 0:
            self.cache.remove(self.cache.oldest_keys(need))
        self.cache.put(groups, self.stats.rows_in)

    def check(self) -> None:
        super().check()
        self.cache.check(self.name)

    @classmethod
    def least_bytes(cls, facts: StoreFacts, plan: LookupPlan) -> int:
        return int(facts.index_bytes + facts.largest_page + cls._tuple_bytes(facts, plan))

    @classmethod
    def model(cls, scenario: Scenario) -> Prediction:
        """Hits of an LRU cache; the misses of a block share pages."""
        facts, plan = scenario.facts, scenario.plan
        buffer, block, rows = cls._divide(scenario)
        master = Master.of(facts, buffer, profile=scenario.profile)
        keys = rows / master.rows_per_key
        hits = master.popularity.least_recently_used(keys)
        # What misses is mostly what the cache does not hold: the keys after the most popular ones.
        others = master.popularity.without(min(keys, master.keys - 1))
        read = swept(others.distinct(block * (1 - hits)), master, facts)
        block_bytes = block * cls._tuple_bytes(facts, plan)
        parts = {"index": facts.index_bytes, "block": block_bytes, "cache": rows * row_cost(facts, plan)}
        words = "one read for the misses of a block on the same page"
        counts = (hits, block / read.requests, read.pages / read.requests)
        return Prediction(*counts, parts, words, piece_rows=block, gap_pages=read.gaps / read.requests)
