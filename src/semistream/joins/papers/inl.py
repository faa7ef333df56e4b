"""INLJ: one indexed lookup per stream tuple, the baseline of the papers (MESHJOIN, section 5).

Idea: each tuple, in order of arrival, reads the page of its key by itself; nothing is shared between tuples.
Budget: the index, a buffer of pages (each tuple reads into a place of its own) with the rows taken from them, and the
output of one piece of the stream.
Departures: the index is sparse and in memory, so a lookup is one read; the papers' B+-tree would add its inner nodes.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from semistream.joins.contract import Join, Prediction, Scenario
from semistream.joins.output import Output, pieces
from semistream.joins.sizes import row_charge
from semistream.lookup.bind import LookupPlan
from semistream.rows import Projection
from semistream.stores.contract import StoreFacts

_PIECE = 4096
_BUFFER = 2 << 20


class IndexNestedLoopJoin(Join):
    name = "inl"
    idea = "one indexed lookup a stream tuple"

    def _set_up(self) -> None:
        facts, plan, budget = self.facts, self.plan, self.budget
        self.projection = Projection(facts.layout, plan.needed)
        budget.require("index", facts.index_bytes)
        budget.require("buffer", 2 * facts.largest_page)  # pages, and rows copied from them
        per_row = row_charge(plan.stream) + int(facts.row_bytes)
        budget.require("piece", per_row)
        self.piece_rows = int(min(_PIECE, 1 + budget.free // per_row))
        budget.grant("piece", (self.piece_rows - 1) * per_row)
        extra = min(_BUFFER, budget.free) // 2 // facts.largest_page * facts.largest_page
        budget.grant("buffer", 2 * extra)
        self.reader = self.store.reader(facts.largest_page + extra, reads_in_flight=1)
        self.output = Output(plan, self.projection.target, self.stats, (self.piece_rows, self.piece_rows * per_row))
        self.unmatched_sample = self.output.unmatched_sample

    def _run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        plan, stats = self.plan, self.stats
        for batch in batches:
            for piece in pieces(batch, self.piece_rows, plan.stream, self.output.most_bytes):
                codes, valid = plan.codec.encode([piece.column(name) for name in plan.stream_keys])
                stats.rows_in += piece.num_rows
                matched = np.zeros(piece.num_rows, np.bool_)
                keyed = np.flatnonzero(valid)
                stats.misses += len(keyed)
                for found, rows in self.reader.match_each(codes[keyed]):
                    packed, left = self.projection.apply(rows), keyed[found]
                    yield from self.output.matches(piece, left, codes[left], packed.addresses, matched)
                stats.count_reads(self.reader.counters)
                yield from self.output.settled(piece, matched)

    @classmethod
    def least_bytes(cls, facts: StoreFacts, plan: LookupPlan) -> int:
        return int(facts.index_bytes + 2 * facts.largest_page + row_charge(plan.stream) + int(facts.row_bytes))

    @classmethod
    def model(cls, scenario: Scenario) -> Prediction:
        parts = {"index": scenario.facts.index_bytes, "buffer": scenario.facts.largest_page}
        return Prediction(0.0, 1.0, 1.0, parts, "one read a tuple")
