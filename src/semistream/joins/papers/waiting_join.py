"""What the papers' joins share: stream tuples wait in a table H_S until the part of R that holds their key is read.

A subclass says when R is read and which tuples leave then (`_loop`). The budget goes to the index, the disk buffer, a
piece of output and what the subclass reserves; all the rest are slots of the table.
"""

import math
from abc import abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

import numpy as np
import pyarrow as pa

from semistream.joins.contract import Join, Prediction, Scenario
from semistream.joins.costs import Master
from semistream.joins.groups import Groups
from semistream.joins.output import MOST_ROWS, Output, pieces
from semistream.joins.papers.master_cache import row_cost
from semistream.joins.papers.meeting import CELL_OVERHEAD, Meeting, OrderedMeeting
from semistream.joins.papers.partitions import Partitions
from semistream.joins.papers.stream_table import Entries, Slots, StreamTable, slot_bytes
from semistream.joins.sizes import cell_bytes, output_row_bytes, projected
from semistream.keys import Codes, Mask
from semistream.lookup.bind import LookupPlan
from semistream.rows import no_rows
from semistream.stores.contract import PageStore, StoreFacts

MOST_BUFFER = 1 << 20
_OUTPUT_SHARE = 0.05  # of what the least budget leaves
_MOST_OUTPUT = 4 << 20
_LEAST_TEXT = 4096  # a single row of this size may always wait


def buffer_bytes(facts: StoreFacts, spare: int, share: float) -> int:
    """The disk buffer: whole pages, at least one, and a share of what the least budget leaves."""
    page = int(facts.largest_page)
    return page + int(min(MOST_BUFFER, spare * share)) // page * page


@dataclass(frozen=True)
class Shares:
    """How a waiting join divides its budget, and how it cuts R: ``free`` is for what it reserves, and for slots."""

    scenario: Scenario
    spare: int
    buffer: int
    output: int
    slot: int
    free: int
    piece_rows: int  # of the stream and of the output, worked on at once
    reserved: Mapping[str, int] = field(default_factory=dict)  # see `WaitingJoin.reserves`
    in_buffer: int = 1  # partitions that fill the disk buffer

    @property
    def slots(self) -> int:
        return 1 + max(0, self.free - sum(self.reserved.values())) // self.slot

    @cached_property
    def master(self) -> Master:
        """R as the cost models see it, read a disk buffer at a time."""
        return Master.of(self.scenario.facts, self.buffer, self.scenario.part, self.scenario.profile)

    @cached_property
    def row_cost(self) -> int:
        """What a cached row of R takes, in joins with a cache."""
        return row_cost(self.scenario.facts, self.scenario.plan)


def chosen(stream: pa.RecordBatch, codes: Codes, mask: Mask) -> tuple[pa.RecordBatch, Codes]:
    some = np.flatnonzero(mask)
    return (stream, codes) if len(some) == len(codes) else (stream.take(pa.array(some)), codes[some])


class Incoming:
    """The stream as a join takes it: as many tuples as it has room for, whatever the size of the batches. What needs no
    waiting leaves here, a whole piece at a time: taken in the small portions for which there is room, answering hits
    would cost more than all the rest.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch], join: "WaitingJoin") -> None:
        self._join, self._plan, self._output = join, join.plan, join.output
        most = join.output.most_rows, join.plan.stream, join.output.most_bytes
        self._pieces = (piece for batch in batches for piece in (pieces(batch, *most) if batch.num_rows else (batch,)))
        self.stream = no_rows(join.plan.stream)
        self._codes: Codes = np.empty(0, np.uint64)
        self._number = 0
        self.ended = False
        self.quiet = False  # nothing came for a while: whoever waits shall leave before the stream is asked again

    def fill(self) -> Iterator[pa.RecordBatch]:
        """Go on to tuples that must wait, to a batch without any, or to the end."""
        self.quiet = False
        while self.stream.num_rows == 0:
            piece = next(self._pieces, None)
            self.ended, self.quiet = piece is None, piece is not None and piece.num_rows == 0
            if piece is None or self.quiet:
                return
            codes, valid = self._codes_of(piece)
            self._output.stats.rows_in += piece.num_rows
            if not valid.all() and not self._plan.ordered:
                without = piece.filter(pa.array(~valid))
                yield from self._output.settled(without, np.zeros(without.num_rows, np.bool_))
                piece, codes = piece.filter(pa.array(valid)), codes[valid]
            waiting = np.ones(len(codes), np.bool_)
            yield from self._join.answer(piece, codes, waiting, again=False)
            self.stream, self._codes = chosen(piece, codes, waiting)
            self._output.stats.hits += len(codes) - self.stream.num_rows

    def _codes_of(self, piece: pa.RecordBatch) -> tuple[Codes, Mask]:
        """Codes of the keys; under a condition, a number of its own for every tuple."""
        columns = [piece.column(name) for name in self._plan.stream_keys]
        if self._plan.condition is None:
            return self._plan.codec.encode(columns)
        self._number += piece.num_rows
        codes = np.arange(self._number - piece.num_rows, self._number, dtype=np.uint64)
        return codes, columns[0].is_valid().to_numpy(zero_copy_only=False)

    def take(self, count: int) -> tuple[pa.RecordBatch, Codes]:
        taken = self.stream.slice(0, count), self._codes[:count]
        self.stream, self._codes = self.stream.slice(count), self._codes[count:]
        return taken


class WaitingJoin(Join):
    needs = frozenset({"pages"})
    buffer_share = 0.02  # of what the least budget leaves
    buffer_setting = "buffer_share"  # its name, in joins that have one
    buffer_name = "disk buffer"

    def _set_up(self) -> None:
        budget, plan = self.budget, self.plan
        self.shares = shares = self.divide(self.scenario)
        budget.require("index", self.facts.index_bytes)
        budget.require("buffer", shares.buffer)
        self.partitions = Partitions(cast("PageStore", self.store), shares.buffer, shares.in_buffer)
        budget.require("output", shares.output)
        budget.require("stream table", shares.slot)
        for part, size in shares.reserved.items():
            budget.grant(part, min(size, budget.free))
        capacity = 1 + budget.free // shares.slot
        budget.grant("stream table", (capacity - 1) * shares.slot)
        self.table = StreamTable(plan.stream, capacity)
        self.output = Output(plan, self.facts.layout, self.stats, (shares.piece_rows, shares.output))
        self.meeting = Meeting(self.table, self.output)
        if plan.ordered:
            self.meeting = OrderedMeeting(self.table, self.output, self.facts, self.partitions.reader)
        self.unmatched_sample = self.output.unmatched_sample
        self.iteration = 0

    def _run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from self._loop(Incoming(batches, self))

    @abstractmethod
    def _loop(self, source: Incoming) -> Iterator[pa.RecordBatch]:
        """The loop of the algorithm, until nobody waits."""

    def _start_afresh(self) -> None:
        super()._start_afresh()
        self.table.clear()
        self.meeting.clear()

    @property
    def room(self) -> int:
        """Tuples that may still wait."""
        return self.table.free

    def _fitting(self, stream: pa.RecordBatch) -> int:
        """How many of these tuples may wait now; text longer than it was taken for must not pass the budget either."""
        count = min(stream.num_rows, max(0, self.room))
        limit = self.table.text_limit
        if count == 0 or limit == 0:
            return count
        left = limit - self.table.text_bytes
        while count and self.table.text_of(stream.slice(0, count)) > left:
            count //= 2
        if count == 0 and self.table.tuples == 0:
            text = self.table.text_of(stream.slice(0, 1))
            if text > max(limit, _LEAST_TEXT):
                raise self.budget.too_small_for_row(text, self._text_limit)
            return 1
        return count

    def _text_limit(self, times: float) -> int:
        """What the table's would be with so many times the memory."""
        scenario = replace(self.scenario, memory_bytes=int(self.budget.total * times))
        return self.divide(scenario).slots * (self.table.text_limit // self.table.capacity)

    def _admit(self, stream: pa.RecordBatch, codes: Codes) -> Iterator[pa.RecordBatch]:
        """Let tuples wait, unless they can be answered by now; there must be room for all."""
        waiting = np.ones(stream.num_rows, np.bool_)
        yield from self.answer(stream, codes, waiting, again=True)
        rows, misses = chosen(stream, codes, waiting)
        self.stats.misses += len(misses)
        self.stats.hits += len(codes) - len(misses)
        if len(misses):
            self._added(self.table.add(rows, misses, self.iteration))

    def answer(self, stream: pa.RecordBatch, codes: Codes, waiting: Mask, *, again: bool) -> Iterator[pa.RecordBatch]:
        """Give out what needs no disk, and clear ``waiting`` for it; ``again`` when these tuples were asked before."""
        return iter(())

    def _added(self, slots: Slots) -> None:
        """Tuples wait in these slots now."""

    def _meet(self, groups: Groups, *, whole: bool) -> Generator[pa.RecordBatch, None, Entries]:
        """Join rows of R (``whole`` groups or not) with all that wait for them; returns the entries that met some."""
        entries = self.table.lookup(groups.codes)
        hit = np.flatnonzero(entries >= 0)
        groups, entries = groups[hit], entries[hit]
        yield from self.meeting.meet(entries, groups)
        if whole:
            self._brought(entries, groups)
        return entries

    def _brought(self, entries: Entries, groups: Groups) -> None:
        """Groups of rows that tuples met, before these leave."""

    def check(self) -> None:
        super().check()
        self.table.check(self.name)
        waiting = self.table.tuples
        self._ensure(holds=waiting == 0, said=f"{waiting} tuples still wait after the end of the input")

    @classmethod
    def least_bytes(cls, facts: StoreFacts, plan: LookupPlan) -> int:
        row = output_row_bytes(facts, plan)
        return int(facts.index_bytes + facts.largest_page + row + cls._slot_bytes(facts, plan))

    @classmethod
    def divide(cls, scenario: Scenario) -> Shares:
        """How a budget is divided, in a run and in the cost model."""
        facts, plan, total = scenario.facts, scenario.plan, scenario.memory_bytes
        spare = max(0, total - cls.least_bytes(facts, plan))
        buffer = buffer_bytes(facts, spare, getattr(scenario.settings, cls.buffer_setting, cls.buffer_share))
        slot = cls._slot_bytes(facts, plan)
        row = output_row_bytes(facts, plan)
        output = row + int(min(_MOST_OUTPUT, spare * _OUTPUT_SHARE))
        free = max(0, total - facts.index_bytes - buffer - output - slot)
        shares = Shares(scenario, spare, buffer, output, slot, free, max(1, min(MOST_ROWS, output // row)))
        return replace(shares, reserved=cls.reserves(shares))

    @classmethod
    def reserves(cls, shares: Shares) -> dict[str, int]:
        """Bytes by name that are a join's own; the stream table gets the rest."""
        return {}

    @classmethod
    def model(cls, scenario: Scenario) -> Prediction:
        shares = cls.divide(scenario)
        return cls._predicted(shares, *cls.counts(shares))

    @classmethod
    def _predicted(cls, shares: Shares, hits: float, misses: float) -> Prediction:
        """Of a join that reads a partition for ``misses`` tuples."""
        master, index = shares.master, shares.scenario.facts.index_bytes
        requests = max(1, math.ceil(master.partition_pages / master.request_pages))
        tuples = misses / max(1e-9, 1 - hits) / requests
        words = f"{tuples:,.0f} tuples a read on a Zipf stream of {master.profile.skew:g}"
        parts = {"index": index, cls.buffer_name: shares.buffer, **shares.reserved}
        parts["stream table"] = shares.slots * shares.slot
        pages = master.partition_pages / requests
        return Prediction(hits, tuples, pages, parts, words, piece_rows=shares.piece_rows)

    @classmethod
    def counts(cls, shares: Shares) -> tuple[float, float]:
        """The cost model: the hit ratio, and how many tuples leave with a read; or else a join has its own `model`."""
        raise NotImplementedError

    @staticmethod
    def _slot_bytes(facts: StoreFacts, plan: LookupPlan) -> int:
        """What a waiting tuple takes; in order, with room for a match."""
        cell = cell_bytes(facts, projected(facts, plan)) + CELL_OVERHEAD if plan.ordered else 0
        return slot_bytes(plan.stream) + cell
