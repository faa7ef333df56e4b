"""H_R of the papers: groups of rows of R by key, each row in a cell of its own, with a count of hits for each key.

Which group enters and which leaves is up to the join: hits and times lie in arrays by entry. Rows are kept as the join
needs them (projected), so that more of them fit; a row that is longer than a cell is not cached.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from semistream import kernels
from semistream.joins.groups import Groups, members
from semistream.joins.output import Output
from semistream.joins.papers.stream_table import Entries, Multimap, Slots
from semistream.joins.sizes import cell_bytes, projected
from semistream.keys import Codes, Mask
from semistream.lookup.bind import LookupPlan
from semistream.rows import Addresses, Projection, address_of
from semistream.stores.contract import StoreFacts

_ENTRY_BYTES = 72  # code, links, free lists, buckets, hits and time of a key with one row


def row_cost(facts: StoreFacts, plan: LookupPlan) -> int:
    """What a cached row takes with all that belongs to it: v_R of the papers, with its real overhead."""
    return cell_bytes(facts, projected(facts, plan)) + _ENTRY_BYTES


class MasterCache(Multimap):
    """At most ``rows`` rows of R, by key."""

    def __init__(self, facts: StoreFacts, rows: int, output: Output) -> None:
        """``output`` is that of the join; the rows that will be put have its layout."""
        super().__init__(rows)
        self.projection = Projection(output.layout, output.plan.needed)
        self.cell = cell_bytes(facts, self.projection.target)
        self.hits = np.zeros(rows, np.int64)
        self.since = np.zeros(rows, np.int64)
        self._arena = np.empty(max(1, rows * self.cell), np.uint8)
        self._output = output.of_layout(self.projection.target)
        self._chooser = np.random.default_rng(1)

    rows = Multimap.used  # held

    @property
    def used_bytes(self) -> int:
        return self.rows * (self.cell + _ENTRY_BYTES)

    def addresses(self, slots: Slots) -> Addresses:
        return address_of(self._arena) + slots.astype(np.int64) * self.cell

    def answer(self, stream: pa.RecordBatch, codes: Codes, waiting: Mask) -> Iterator[pa.RecordBatch]:
        """Give out all stream tuples whose key is here, and clear ``waiting`` for them."""
        if self.rows == 0:
            return
        entries = self.lookup(codes)
        hit = np.flatnonzero(entries >= 0)
        if len(hit) == 0:
            return
        waiting[hit] = False
        found = entries[hit]
        np.add.at(self.hits, found, 1)
        output, matched = self._output, np.zeros(len(codes), np.bool_)
        of = np.repeat(hit, self.counts(found))
        yield from output.matches(stream, of, codes[of], self.addresses(self.slots_of(found)), matched)
        if not output.all_left(matched[hit]):
            yield from output.settled(stream.take(pa.array(hit)), matched[hit])

    def is_new(self, groups: Groups) -> Mask:
        """Which groups could be put: not here yet, and all their rows fit a cell."""
        new = self.lookup(groups.codes) < 0
        if not self.projection.target.fixed:
            long = self.projection.lengths(np.ascontiguousarray(groups.rows)) > self.cell
            before = np.concatenate([[0], np.cumsum(long)])
            new &= before[groups.last] == before[groups.first]
        return new

    def put(self, groups: Groups, now: int) -> Groups:
        """Add whole groups that are new, in this order and as far as there is room; returns those that were added."""
        groups = groups[np.cumsum(groups.sizes) <= self.free]
        if len(groups.codes):
            chosen = groups.rows[members(groups.first, groups.sizes)]
            slots = self.insert(np.repeat(groups.codes, groups.sizes))
            self.projection.copy_to(chosen, self.addresses(slots))
            entries = self.lookup(groups.codes)
            self.hits[entries] = 0
            self.since[entries] = now
        return groups

    def least_frequent(self, count: int) -> Entries:
        """About the ``count`` entries with the fewest hits: the best of a sample eight times as large."""
        places = np.unique(self._chooser.integers(0, self.capacity, 8 * count + 8))
        places = places[self._keys[places, kernels.multimap.COUNT] > 0]
        if len(places) > count:
            places = places[np.argpartition(self.hits[places], count - 1)[:count]]
        return places
