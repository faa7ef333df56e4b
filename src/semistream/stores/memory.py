"""A master in memory, without files: for one that is small, made on the spot, or needed in a test.

Rows lie packed in the order of their codes, in one version that never changes. Pages are runs of whole groups, for
joins that read R in parts. Rows are never copied: a reader's buffer only says how many are handed out at a time.

>>> import pyarrow as pa
>>> from semistream.stores.fetching import get
>>> store = MemoryStore.build(pa.table({"id": [3, 1, 2], "price": [9.5, 1.5, 4.0]}), key="id")
>>> get(store, [1, 3, 7]).to_pydict()
{'id': [1, 3], 'price': [1.5, 9.5]}
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.keys import Codes, KeyCodec
from semistream.rows import Addresses, PackedRows
from semistream.stores.contract import DEFAULT_BUFFER, Found, GroupReader, Indices, PageStore, StoreFacts, portions
from semistream.stores.fetching import copy_rows
from semistream.stores.paged.building import DEFAULT_PAGE_BYTES, Packer
from semistream.stores.paged.sorting import Block
from semistream.stores.sources import open_source

_CODE_BYTES = 8


@dataclass(eq=False, repr=False)
class MemoryStore(PageStore):
    """A master in memory; see the module. It has no filter: asking for a key that is absent costs no read."""

    version = 1

    schema: pa.Schema
    key: tuple[str, ...]
    codec: KeyCodec
    facts: StoreFacts
    codes: Codes  # ascending
    packed: PackedRows
    edges: Indices  # page p holds the rows [edges[p], edges[p + 1])

    @staticmethod
    def build(
        source: Any, *, key: str | Sequence[str], hash_bits: int = 64, page_bytes: int = DEFAULT_PAGE_BYTES
    ) -> "MemoryStore":
        """A store from whatever `MasterStore.build` takes, except Spark data; without rows with a NULL in their key."""
        names = [key] if isinstance(key, str) else list(key)
        opened = open_source(source, None)
        packer = Packer(opened.schema, names, hash_bits)
        layout, codec = packer.layout, packer.codec
        nothing = pa.RecordBatch.from_pylist([], packer.schema)
        ordered = Block.sorted_from([packer.pack(batch) for batch in (nothing, *opened.batches())])
        codes, packed = ordered.codes, copy_rows(layout, ordered.rows)
        begins = np.flatnonzero(np.append(True, codes[1:] != codes[:-1])[: len(codes)])
        bounds = np.append(begins, len(codes))  # of the groups
        places = packed.offsets + _CODE_BYTES * np.arange(len(codes) + 1)  # rows with their codes
        edges = bounds[[0, *(end for _, end in portions(np.diff(places[bounds]), page_bytes))]]
        sizes = np.diff(places[edges])
        rows, per_row = len(codes), _CODE_BYTES + (0 if layout.fixed else 4)
        facts = StoreFacts(
            rows=rows,
            keys=len(begins),
            rows_per_key=max(1, rows) / max(1, len(begins)),
            bytes=int(sizes.sum()),
            pages=len(sizes),
            page_bytes=page_bytes,
            largest_page=max(page_bytes, int(sizes.max(initial=0))),
            longest_request=page_bytes,
            row_bytes=per_row + (len(packed.buffer) / rows if rows else layout.head),
            index_bytes=2 * edges.nbytes,
            unique=len(begins) == rows,
            layout=layout,
            key_types=tuple(field.type for field in codec.fields),
        )
        return MemoryStore(packer.schema, tuple(names), codec, facts, codes, packed, edges)

    def reader(
        self, buffer_bytes: int = DEFAULT_BUFFER, reads_in_flight: int = 8, *, double: bool = True
    ) -> "MemoryReader":
        del reads_in_flight, double
        return MemoryReader(self, buffer_bytes)

    def find(self, codes: Codes) -> tuple[Indices, Indices]:
        """The rows [first, last) of each code."""
        return np.searchsorted(self.codes, codes, "left"), np.searchsorted(self.codes, codes, "right")

    def locate(self, codes: Codes) -> tuple[Indices, Indices]:
        first, last = self.find(codes)
        low = np.searchsorted(self.edges, first, "right") - 1
        return low, low + (last > first)

    def levels(self) -> Iterator[tuple[int, Codes]]:
        yield 0, self.codes[self.edges[:-1]]

    def __repr__(self) -> str:
        return f"MemoryStore(rows={self.facts.rows:,}, key={list(self.key)})"


class MemoryReader(GroupReader):
    """Finds rows of a `MemoryStore`; its counters stay at zero."""

    def __init__(self, store: MemoryStore, buffer_bytes: int) -> None:
        super().__init__(buffer_bytes)
        self._store = store
        self._addresses = store.packed.addresses

    def find(self, codes: Codes, most_bytes: int) -> Found:
        first, last = self._store.find(codes)
        offsets = self._store.packed.offsets
        for start, end in portions(offsets[last] - offsets[first], most_bytes):
            counts = (last - first)[start:end]
            within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
            rows = self._addresses[np.repeat(first[start:end], counts) + within]
            yield np.repeat(np.arange(start, end), counts), rows

    def rows(self) -> Iterator[tuple[Codes, Addresses]]:
        return self.page_rows(0, self._store.facts.pages)

    def page_rows(self, first: int, last: int) -> Iterator[tuple[Codes, Addresses]]:
        edges = self._store.edges[first : last + 1]
        for start, end in portions(np.diff(self._store.packed.offsets[edges]), self.buffer_bytes):
            some = slice(edges[start], edges[end])
            yield self._store.codes[some], self._addresses[some]
