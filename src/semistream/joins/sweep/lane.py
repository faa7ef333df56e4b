"""What one thread of a `sweep` works with: a reader, a place for rows, an output; many of them share the cache.

A lane does two things. Rows that arrive are looked up in the cache, which nobody changes meanwhile. Rows that waited
are met by the pages of their keys; what was read is offered to the cache, by one lane at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.joins.groups import Waiting, groups_of
from semistream.joins.matching import Indices
from semistream.joins.output import MOST_ROWS, Output
from semistream.joins.sizes import output_row_bytes
from semistream.joins.sweep.absent import AbsentKeys
from semistream.joins.sweep.cache import TupleCache
from semistream.joins.sweep.division import Division
from semistream.joins.sweep.hits import pairs_of_hits
from semistream.joins.sweep.shares import Share
from semistream.joins.window import charge
from semistream.keys import Codes, Mask
from semistream.lookup.bind import LookupPlan
from semistream.rows import PackedRows, Projection
from semistream.stats import Stats
from semistream.stores.contract import PLAN_BYTES, Store


@dataclass
class Arrived:
    """Rows that were looked up in the cache: output that leaves at once, and the rows that must wait."""

    made: list[pa.RecordBatch]
    rows: pa.RecordBatch
    missing: Indices  # of the rows
    codes: Codes  # of those that are missing
    size: int = 0  # what all rows are charged, if it is known

    def leave(self) -> Iterator[pa.RecordBatch]:
        """What leaves at once, each batch once."""
        self.made.reverse()
        while self.made:
            yield self.made.pop()

    def apart(self) -> Arrived:
        """Without the rows that need not wait, so that the batch they came in can go."""
        count = len(self.missing)
        rows = self.rows if count == self.rows.num_rows else self.rows.take(pa.array(self.missing))
        return Arrived(self.made, rows, np.arange(count), self.codes, charge(rows))


class Lane:
    """See the module."""

    def __init__(
        self,
        store: Store,
        plan: LookupPlan,
        parts: Division,
        cache: TupleCache | None,
        absent: AbsentKeys,
        stats: Stats,
        reads_in_flight: int,
        offering: threading.Lock,
    ) -> None:
        """``offering`` is held by the lane that changes the cache."""
        facts = store.facts
        self._plan, self._cache, self._absent, self._offering = plan, cache, absent, offering
        self._page_bytes = facts.page_bytes
        self.projection = Projection(facts.layout, plan.needed)
        self._simple = facts.unique and self.projection.target.fixed
        self.reader = store.reader(parts.buffer // 2, reads_in_flight)
        self._staging = np.empty(parts.buffer // 2 + 64, np.uint8)  # rows taken from the pages
        self._most_codes = parts.plan // PLAN_BYTES
        most_rows = max(1, min(MOST_ROWS, parts.output // output_row_bytes(facts, plan)))
        self.output = Output(plan, self.projection.target, stats, most_rows, unique=facts.unique)
        # Cached rows of one piece, copied by the probe; part of the output's bytes.
        copied = most_rows * self.projection.target.head
        self._cached_rows = np.empty(copied, np.uint8) if self._simple and self.output.wants_rows else None

    def arrive(self, stream: pa.RecordBatch, stats: Stats) -> Arrived:
        """Steps 1 and 4: probe the cache; hits and keys known to be absent leave, misses must wait."""
        from semistream.kernels.cache_values import missing_values

        plan, output = self._plan, self.output
        output.stats = stats
        codes, valid = plan.codec.encode([stream.column(name) for name in plan.stream_keys])
        stats.rows_in += stream.num_rows
        made: list[pa.RecordBatch] = []
        values = None
        if self._cache is not None:
            with self._cache.reading() as usable:
                if usable:
                    values, hits = self._cache.probe(codes, valid, self._cached_rows)
                    stats.hits += hits
                    made = pairs_of_hits(self._cache, output, stream, codes, values, simple=self._simple)
        if values is None:
            values = np.where(valid, 0, 1)
        self._absent.mark(codes, values)
        missing, their = np.empty(len(codes), np.int64), np.empty(len(codes), np.uint64)
        count = missing_values(values, codes, missing, their)
        stats.misses += count
        if count < len(values):
            settled = np.flatnonzero(values)
            matched = values[settled] > 1
            if not output.all_left(matched):
                rows = stream if len(settled) == len(values) else stream.take(pa.array(settled))
                made.extend(output.settled(rows, matched))
        return Arrived(made, stream, missing[:count].copy(), their[:count].copy())

    def arrive_apart(self, stream: pa.RecordBatch) -> tuple[Arrived, Stats]:
        """As `arrive`, with counts of their own, and nothing that the lane's next piece would change."""
        stats = Stats()
        return self.arrive(stream, stats).apart(), stats

    def meet(
        self, shares: Iterator[Share], stream: pa.RecordBatch, codes: Codes, matched: Mask, least: int
    ) -> Iterator[pa.RecordBatch]:
        """Steps 2 and 3: meet waiting rows, share after share, and offer what was read to the cache.

        Other lanes take of the same shares and set other places of ``matched``.
        """
        for share in shares:
            yield from self._meet(share, stream, codes, matched, least)

    def _meet(
        self, share: Share, stream: pa.RecordBatch, codes: Codes, matched: Mask, least: int
    ) -> Iterator[pa.RecordBatch]:
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

    def warm_up(self, codes: Codes, counts: npt.NDArray[np.uint8], arrivals: int) -> None:
        """Read the rows of these keys, and offer them to the cache as if each had come so often."""
        cache = self._cache
        if cache is None:
            return
        with self._offering, cache.writing() as usable:
            if usable:
                cache.expect(codes, counts, arrivals)
        whole = np.empty(len(codes), np.bool_)
        for index, packed in self.reader.collect(codes, self.projection, self._staging, self._most_codes, whole):
            self._offer(codes, groups_of(index), packed, whole, 0)

    def _offer(
        self, codes: Codes, grouped: tuple[Indices, Indices, Indices], packed: PackedRows, whole: Mask, least: int
    ) -> None:
        groups, first, last = grouped
        if self._cache is None or len(groups) == 0:
            return
        if not whole[groups].all():
            keep = whole[groups]
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
