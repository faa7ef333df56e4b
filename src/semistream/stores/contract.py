"""What a store is to a join: its schema and key, its facts, and a reader that finds the rows of codes.

Joins know stores by this module alone; cost models and the planner see only `StoreFacts`. What only some stores can do
is an ability: a store declares it and has the methods of its protocol, and a join names those it needs (`Join.needs`).
`docs/adding_a_store.md` adds a store, with `GroupReader` for one that finds all rows of a key at once.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.errors import ArgumentError, InvariantError
from semistream.keys import Codes, KeyCodec, Mask
from semistream.rows import Addresses, PackedRows, Projection, RowLayout, address_of
from semistream.stats import ReadCounters
from semistream.stores.device import WARM, Device

Ability = Literal["pages"]
Indices = npt.NDArray[np.int64]
Pages = Indices
Bytes = npt.NDArray[np.uint8]
Found = Iterator[tuple[Indices, Addresses]]
Packed = Iterator[tuple[Indices, PackedRows]]
DEFAULT_BUFFER = 4 << 20
PLAN_BYTES = 160  # what finding one code may take beside its rows, when every code lies on a page of its own


@dataclass(frozen=True, kw_only=True)
class StoreFacts:
    """What cost models and the planner know of a store: sizes, and what a read costs."""

    rows: int
    keys: int
    rows_per_key: float
    bytes: int
    pages: int
    page_bytes: int
    largest_page: int  # what a read buffer must hold at least
    longest_request: int  # bytes that are read by one request at most
    row_bytes: float  # on average, its key included
    index_bytes: int = 0  # of the memory of every reader
    filter_bytes: int = 0  # of the filter of its keys; 0 when there is none
    unique: bool  # no key has more than one row
    direct: bool = False  # reads go past the page cache
    device: Device = WARM  # a page cache, if nothing else is known
    layout: RowLayout
    key_types: tuple[pa.DataType, ...]

    @property
    def text_bytes(self) -> float:
        return 0.0 if self.layout.fixed else max(0.0, self.row_bytes - 12 - self.layout.head)


class Reader(Protocol):
    """Finds rows, as addresses in its buffer; they are valid until the next ones are asked for."""

    counters: ReadCounters

    def match(self, codes: Codes) -> Found:
        """The rows of ascending distinct codes: (index of the code, address of its row), chunk by chunk. A code's rows
        come in order, possibly over several chunks.
        """

    def match_each(self, codes: Codes) -> Found:
        """As `match`, for codes in any order, also the same one several times, with a read of its own for each."""

    def collect(self, codes: Codes, projection: Projection, staging: Bytes, most_codes: int, whole: Mask) -> Packed:
        """As `match`, but with the rows copied to the staging and projected on the way: the fast path of a sweep.
        ``most_codes`` codes are worked on at a time, which takes `PLAN_BYTES` each. ``whole`` is filled with whether
        all rows of a code come in one chunk.
        """

    def rows(self) -> Iterator[tuple[Codes, Addresses]]:
        """Every row as (code, address), chunk by chunk; the rows of a code follow each other."""


class Store(Protocol):
    """One version of a master; a store that extends this class has no filter and no groups unless it says so."""

    abilities: ClassVar[frozenset[Ability]] = frozenset()
    schema: pa.Schema
    key: tuple[str, ...]
    codec: KeyCodec
    version: int
    facts: StoreFacts

    def reader(self, buffer_bytes: int = DEFAULT_BUFFER, reads_in_flight: int = 8, *, double: bool = True) -> Reader:
        """A reader with a buffer of its own; ``double`` loads one half of it while the other is used."""

    def covering(self, columns: Iterable[str]) -> Self:  # noqa: ARG002
        """The narrowest store of the same rows that has these columns, which may be this one."""
        return self

    def bloom(self) -> npt.NDArray[np.uint64]:
        """The filter of the keys (`semistream.kernels.bloom`), or an empty array when there is none."""
        return np.empty(0, np.uint64)

    def in_deltas(self, codes: Codes) -> Mask:
        """Which codes the filter does not cover, since an update changed them."""
        return np.zeros(len(codes), np.bool_)


class PageReader(Reader, Protocol):
    """A reader of a store with pages."""

    def page_rows(self, first: int, last: int) -> Iterator[tuple[Codes, Addresses]]:
        """Rows of the pages [first, last), which must be of one level, as `rows` gives them."""


class PageStore(Store, Protocol):
    """Ability "pages": its rows lie on numbered pages in the order of their codes, so that parts of it can be read.
    Pages that begin with the same code hold one group of rows; no other group is on more than one page.
    """

    abilities: ClassVar[frozenset[Ability]] = frozenset({"pages"})

    def reader(
        self, buffer_bytes: int = DEFAULT_BUFFER, reads_in_flight: int = 8, *, double: bool = True
    ) -> PageReader:
        """See `Store.reader`."""

    def locate(self, codes: Codes) -> tuple[Pages, Pages]:
        """The pages [low, high) on which the rows of each code lie, if there are any. Codes must ascend."""

    def levels(self) -> Iterator[tuple[int, Codes]]:
        """The first page of each level (the base, then the updates) and the first codes of its pages."""


def check_abilities(what: str, needs: Iterable[Ability], store: Store) -> None:
    """Refuse a store that lacks something which ``what`` needs of it."""
    missing = sorted(set(needs) - store.abilities)
    if missing:
        raise ArgumentError(
            f"{what} needs a store with {' and '.join(missing)}, which a {type(store).__name__} does not have"
            f" (it has: {', '.join(sorted(store.abilities)) or 'none'})"
        )


class GroupReader(ABC):
    """`Reader` by one method, `find`; hands out at most ``buffer_bytes`` of rows at a time, or those of one code."""

    def __init__(self, buffer_bytes: int) -> None:
        self.buffer_bytes = buffer_bytes
        self.counters = ReadCounters()

    @abstractmethod
    def find(self, codes: Codes, most_bytes: int) -> Found:
        """As `Reader.match` for codes in any order, in chunks of whole groups: ``most_bytes`` of them or one."""

    @abstractmethod
    def rows(self) -> Iterator[tuple[Codes, Addresses]]:
        """See `Reader.rows`."""

    def match(self, codes: Codes) -> Found:
        return self.find(codes, self.buffer_bytes)

    match_each = match

    def collect(self, codes: Codes, projection: Projection, staging: Bytes, most_codes: int, whole: Mask) -> Packed:
        """See `Reader.collect`; a row with fewer columns is never longer, so what fits the staging fits projected."""
        whole[:] = True
        for start in range(0, len(codes), most_codes):
            for index, rows in self.find(codes[start : start + most_codes], min(self.buffer_bytes, len(staging))):
                offsets = np.append(0, np.cumsum(projection.lengths(rows)))
                if offsets[-1] > len(staging):
                    raise InvariantError(f"{offsets[-1]:,} bytes of rows for a staging of {len(staging):,}")
                projection.copy_to(rows, offsets[:-1] + address_of(staging))
                yield start + index, PackedRows(staging, offsets)


def portions(sizes: Indices, most: int) -> Iterator[tuple[int, int]]:
    """Things of these sizes in runs of at most ``most`` together, or of one thing.

    >>> list(portions(np.array([3, 4, 9, 1]), 7))
    [(0, 2), (2, 3), (3, 4)]
    """
    ends = np.cumsum(sizes)
    start = 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + most, "right")))
        yield start, end
        start = end
