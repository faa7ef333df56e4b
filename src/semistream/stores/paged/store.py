"""The paged store: master data in key order on disk, one sparse index in memory.

A directory holds immutable segments of pages and one manifest a version (see `manifest`, `segment`). Bases are
disjoint and together cover the key space; a delta overrides them for the codes it lists. Whatever the number of
deltas, a code is looked up in exactly one level, the newest that lists it.

>>> import pyarrow as pa, tempfile
>>> products = pa.table({"id": [3, 1, 2], "price": [9.5, 1.5, 4.0]})
>>> store = MasterStore.build(products, tempfile.mkdtemp() + "/products", key="id")
>>> store.get([1, 3, 7]).to_pydict()
{'id': [1, 3], 'price': [1.5, 9.5]}
>>> store = store.upsert(pa.table({"id": [7], "price": [2.0]}))
>>> store.version, store.rows, store.get(7).to_pydict()
(2, 4, {'id': [7], 'price': [2.0]})
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream import failpoints
from semistream.errors import ArgumentError, StoreNotFoundError, local_path
from semistream.keys import Codes, KeyCodec
from semistream.rows import Addresses, PackedRows, Projection, RowLayout
from semistream.stores import device as devices
from semistream.stores.asked import key_columns
from semistream.stores.paged.levels import Level, Levels, wanted
from semistream.stores.paged.manifest import Manifest
from semistream.stores.paged.reading import DEFAULT_BUFFER, PageReader, Pages
from semistream.stores.paged.segment import Segment

Progress = Callable[[str, int, int | None], None]
PLAN_BYTES = 160  # what planning the read of one code takes at most, when every code lies on a page of its own
DEFAULT_PAGE_BYTES = 4096  # docs/decisions/0001-page-file.md


class MasterStore:
    """One version of a master table on disk. Open it with `open`, make it with `build`; updates give a new object."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        manifest: Manifest,
        *,
        direct: bool = False,
        opened: Iterable[Segment] = (),
    ) -> None:
        """``opened`` are segments that need not be opened again: those of the version before."""
        self.path = local_path("path", path)
        self.manifest = manifest
        self.direct = direct
        self.codec = KeyCodec([manifest.schema.field(name) for name in manifest.key], manifest.hash_bits)
        self.layout = RowLayout(row_schema(manifest.schema, self.codec))
        have = {segment.entry: segment for segment in opened}
        self._levels = Levels(
            [
                have.get(entry) or Segment(self.path / entry.file, entry, manifest.page_bytes, direct=direct)
                for entry in manifest.segments
            ]
        )
        self.edges = np.cumsum([0] + [segment.pages for segment in self.segments])

    # -- opening and describing ------------------------------------------------------------------------------------

    @classmethod
    def open(cls, path: str | os.PathLike[str], version: int | None = None, *, direct: bool = False) -> MasterStore:
        """Open a version of a store, by default the newest. ``direct=True`` reads past the page cache (O_DIRECT)."""
        root = local_path("path", path)
        while True:
            manifest = Manifest.load(root, version)
            failpoints.reach("store.loaded")
            try:
                return cls(root, manifest, direct=direct)
            except StoreNotFoundError:
                if manifest.version in Manifest.versions(root):
                    raise  # no vacuum has removed the version since

    @classmethod
    def build(
        cls,
        source: Any,
        path: str | os.PathLike[str],
        *,
        key: str | Sequence[str],
        columns: Sequence[str] | None = None,
        page_bytes: int = DEFAULT_PAGE_BYTES,
        memory: int | str = "512MB",
        replace: bool = False,
        progress: Progress | None = None,
        hash_bits: int = 64,
        properties: Mapping[str, str] | None = None,
        null_keys: str = "drop",
    ) -> MasterStore:
        """Build a store from Parquet, CSV or Arrow files, Arrow, pandas, Polars or Spark data, in any order and of
        any size.

        ``memory`` bounds the sort; rows beyond it are spilled next to the store. ``replace=True`` publishes the result
        as a new version of a store that is there already. ``properties`` are texts that stay with the store.
        Rows with a NULL in their key can never match: ``null_keys="drop"`` leaves them out and counts them
        (``store.manifest.null_keys``), ``"refuse"`` makes them an error.
        """
        from semistream.stores.paged import building

        return building.build(
            source,
            local_path("path", path),
            key=list(key) if isinstance(key, Sequence) and not isinstance(key, str) else [key],
            columns=None if columns is None else list(columns),
            page_bytes=page_bytes,
            memory=memory,
            replace=replace,
            progress=progress,
            hash_bits=hash_bits,
            properties=None if properties is None else dict(properties),
            null_keys=null_keys,
        )

    @property
    def schema(self) -> pa.Schema:
        """All columns, in the order of the source."""
        return self.manifest.schema

    @property
    def key(self) -> tuple[str, ...]:
        """The key columns."""
        return self.manifest.key

    @property
    def version(self) -> int:
        """The version that this object reads."""
        return self.manifest.version

    @property
    def rows(self) -> int:
        """Rows of this version."""
        return self.manifest.rows

    @property
    def properties(self) -> dict[str, str]:
        """What its users keep with the rows of this version (see `apply`)."""
        return dict(self.manifest.properties)

    @property
    def page_bytes(self) -> int:
        """The stride of a page."""
        return self.manifest.page_bytes

    @property
    def segments(self) -> list[Segment]:
        """All segments, in page order."""
        return self._levels.segments

    @property
    def pages(self) -> int:
        """Pages of all levels."""
        return int(self.edges[-1])

    @property
    def bytes(self) -> int:
        """Bytes on disk."""
        return sum(entry.bytes for entry in self.manifest.segments)

    @property
    def largest_page(self) -> int:
        """Bytes of the largest page: what a read buffer must hold at least."""
        return max((entry.largest_page for entry in self.manifest.segments), default=self.page_bytes)

    @property
    def unique(self) -> bool:
        """True when no key has more than one row."""
        return all(entry.largest_group <= 1 for entry in self.manifest.segments)

    @property
    def row_bytes(self) -> float:
        """Mean bytes of a row on disk, its key included."""
        bases = [entry for entry in self.manifest.segments if entry.role == "base"]  # stays the same under updates
        used = sum(entry.pages for entry in bases) * self.page_bytes
        rows = sum(entry.rows for entry in bases)
        return used / rows if rows else float(self.layout.head + 8)

    @property
    def index_bytes(self) -> int:
        """Memory that the index takes, with the codes of the deltas."""
        return self._levels.index_bytes

    @cached_property
    def device(self) -> devices.Device:
        """The measured cost of a read."""
        return devices.from_numbers(self.manifest.device, direct=self.direct)

    def versions(self) -> list[dict[str, Any]]:
        """Every version that is there: number, time, change, rows and bytes."""
        found = []
        for number in Manifest.versions(self.path):
            with suppress(FileNotFoundError):  # removed since
                found.append(Manifest.read(self.path, number))
        return [
            {
                "version": m.version,
                "created": m.created,
                "change": m.change,
                "rows": m.rows,
                "bytes": sum(entry.bytes for entry in m.segments),
            }
            for m in found
        ]

    def latest(self) -> MasterStore:
        """This store at its newest version (the same object when nothing is newer)."""
        if Manifest.load(self.path).identity == self.manifest.identity:
            return self
        return MasterStore.open(self.path, direct=self.direct)

    # -- reading ---------------------------------------------------------------------------------------------------

    def locate(self, codes: Codes) -> tuple[Pages, Pages]:
        """The pages [low, high) on which the rows of each code lie, if there are any. Codes must ascend."""
        return self._levels.locate(codes)

    def by_segment(self, pages: Pages) -> Iterator[tuple[Segment, Pages, Pages]]:
        """Ascending page numbers by segment: (segment, numbers within it, numbers within the store)."""
        cuts = np.searchsorted(pages, self.edges)
        for i, segment in enumerate(self.segments):
            if cuts[i] < cuts[i + 1]:
                numbers = pages[cuts[i] : cuts[i + 1]]
                yield segment, numbers - self.edges[i], numbers

    def match(self, codes: Codes, reader: PageReader) -> Iterator[tuple[npt.NDArray[np.int64], Addresses]]:
        """Look up ascending distinct codes: (index of the code, address of its row), chunk by chunk.

        An address is valid until the next chunk is asked for. A code's rows come in order, possibly over several
        chunks.
        """
        low, high = self.locate(codes)
        for level_codes, index, level_low, level_high in self._levels.apart(codes, low, high):
            pages, first, last = wanted(level_low, level_high)
            done = 0
            for loaded in reader.read(pages):
                some = slice(done, done + len(loaded.pages))
                done = some.stop
                found, rows = self._match_loaded(loaded.addresses, first[some], last[some], level_codes)
                yield index[found], rows

    def collect(
        self,
        codes: Codes,
        reader: PageReader,
        projection: Projection,
        staging: npt.NDArray[np.uint8],
        most_codes: int,
        whole: npt.NDArray[np.bool_],
    ) -> Iterator[tuple[npt.NDArray[np.int64], PackedRows]]:
        """As `match`, but with the rows copied and projected on the way, in one pass: the fast path of a sweep.

        The reads of ``most_codes`` codes are planned at a time, which takes `PLAN_BYTES` each. ``whole`` is filled with
        whether all rows of a code lie on one page.
        """
        for start in range(0, len(codes), most_codes):
            some = codes[start : start + most_codes]
            located = self.locate(some)
            whole[start : start + len(some)] = located[1] - located[0] == 1
            for level_codes, index, low, high in self._levels.apart(some, *located):
                pages, first, last = wanted(low, high)
                for found, rows in reader.collect(pages, first, last, level_codes, projection, staging, most_codes):
                    yield start + index[found], rows

    def match_each(self, codes: Codes, reader: PageReader) -> Iterator[tuple[npt.NDArray[np.int64], Addresses]]:
        """Look up codes in the given order, with a read of its own for each: the baseline of the papers."""
        order = np.argsort(codes, kind="stable")
        low, high = np.empty(len(codes), np.int64), np.empty(len(codes), np.int64)
        low[order], high[order] = self.locate(codes[order])
        sizes = high - low
        asking = np.repeat(np.arange(len(codes)), sizes)
        pages = np.repeat(low, sizes) + np.arange(len(asking)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        done = 0
        for loaded in reader.read_each(pages):
            one = asking[done : done + len(loaded.pages)]
            done += len(loaded.pages)
            yield self._match_loaded(loaded.addresses, one, one + 1, codes)

    def _match_loaded(
        self, addresses: Addresses, first: Pages, last: Pages, codes: Codes
    ) -> tuple[npt.NDArray[np.int64], Addresses]:
        from semistream.kernels import pages as kernels

        most = kernels.count_rows(addresses)
        rows, found = np.empty(most, np.int64), np.empty(most, np.int64)
        width = self.layout.head if self.layout.fixed else -1
        count = kernels.match_pages(addresses, first, last, codes, width, rows, found)
        return found[:count], rows[:count]

    def scan(
        self, columns: Sequence[str] | None = None, buffer_bytes: int = DEFAULT_BUFFER
    ) -> Iterator[pa.RecordBatch]:
        """Every row of this version, level by level, each in key order."""
        names = self._named(columns)
        for codes, rows in self.scan_rows(PageReader(self, buffer_bytes)):
            yield self.to_batch(codes, rows, names)

    def scan_rows(self, reader: PageReader) -> Iterator[tuple[Codes, Addresses]]:
        """Every row as (code, address), chunk by chunk; an address is valid until the next chunk is asked for."""
        for level in self._levels.all:
            yield from self.page_rows(reader, level.first_page, level.first_page + len(level.firsts))

    def levels(self) -> Iterator[tuple[int, Codes]]:
        """The first page of each level and the first codes of its pages."""
        for level in self._levels.all:
            yield level.first_page, level.firsts

    def delta_levels(self) -> list[Level]:
        """The levels of the updates since the base, newest last."""
        return self._levels.all[1:]

    def page_rows(self, reader: PageReader, first: int, last: int) -> Iterator[tuple[Codes, Addresses]]:
        """Rows of the pages [first, last), which must be of one level, as `scan_rows` gives them."""
        from semistream.kernels import pages as kernels

        width = self.layout.head if self.layout.fixed else -1
        for loaded in reader.read(np.arange(first, last)):
            count = kernels.count_rows(loaded.addresses)
            rows, codes = np.empty(count, np.int64), np.empty(count, np.uint64)
            kernels.list_rows(loaded.addresses, width, rows, codes)
            if len(self._levels.all) > 1:
                keep = ~self._levels.replaced(first, codes)
                rows, codes = rows[keep], codes[keep]
            yield codes, rows

    def to_batch(self, codes: Codes, rows: Addresses, columns: Sequence[str]) -> pa.RecordBatch:
        """Arrow columns of some rows; an exact key column comes from the codes."""
        arrays = [
            self.codec.decode(codes)
            if self.codec.exact and name == self.key[0]
            else self.layout.unpack(rows, self.layout.schema.get_field_index(name))
            for name in columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([self.schema.field(name) for name in columns]))

    def get(self, keys: Any, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of some keys: one value, a list of values (tuples for a composite key), or Arrow columns."""
        wanted = key_columns(keys, self.schema, self.key)
        codes, valid = self.codec.encode(wanted)
        distinct = np.unique(codes[valid])
        names = self._named(columns)
        batches = []
        for index, rows in self.match(distinct, PageReader(self)):
            batch = self.to_batch(distinct[index], rows, [*names, *(k for k in self.key if k not in names)])
            if not self.codec.exact:
                have = [batch.column(name) for name in self.key]
                batch = batch.filter(pa.array(self.codec.among(have, wanted)))
            batches.append(batch.select(names))
        return pa.Table.from_batches(batches, pa.schema([self.schema.field(name) for name in names]))

    def copy_rows(self, rows: Addresses) -> PackedRows:
        """Rows copied out of a read buffer."""
        return Projection(self.layout, self.layout.schema.names).apply(rows)

    def _named(self, columns: Sequence[str] | None) -> list[str]:
        names = list(self.schema.names) if columns is None else list(columns)
        unknown = [name for name in names if name not in self.schema.names]
        if unknown:
            raise ArgumentError(f"the master has no column {unknown[0]!r}; its columns are {self.schema.names}")
        return names

    def bloom(self) -> npt.NDArray[np.uint64]:
        """The filter of the base's keys, or an empty array when there is none or several."""
        bases = self._levels.base.segments
        return bases[0].section("bloom") if len(bases) == 1 else np.empty(0, np.uint64)

    @property
    def bloom_bytes(self) -> int:
        """Memory that the filter takes; 0 when there is none."""
        bases = self._levels.base.segments
        return bases[0].section_bytes("bloom") if len(bases) == 1 else 0

    def in_deltas(self, codes: Codes) -> npt.NDArray[np.bool_]:
        """Which codes are overridden by a delta, hence not covered by the base's filter."""
        return self._levels.replaced(-1, codes)

    # -- checking --------------------------------------------------------------------------------------------------

    def verify(self, progress: Progress | None = None) -> int:
        """Read every page and section and check it; returns the number of pages, raises on the first damage."""
        reader = PageReader(self)
        seen = 0
        for segment in self.segments:
            for name in segment.sections:
                segment.section(name)
        for loaded in reader.read(np.arange(self.pages), gap_bytes=0):
            seen += len(loaded.pages)
            if progress is not None:
                progress("verify", seen, self.pages)
        return seen

    # -- changing --------------------------------------------------------------------------------------------------

    def apply(
        self, upserts: Any = None, deletes: Any = None, *, properties: Mapping[str, str] | None = None
    ) -> MasterStore:
        """Upserts, deletions and properties as one new version: readers see all of it or nothing.

        ``upserts`` are rows as for `upsert`, ``deletes`` keys as for `delete`; a key may not be in both. ``properties``
        are texts that are added to those there are; they stay with the store until they are given anew.
        """
        from semistream.stores.paged import updating

        return updating.apply(self, upserts, deletes, properties)

    def upsert(self, source: Any) -> MasterStore:
        """Replace all rows of the keys in ``source`` by the rows given; returns the store at its new version.

        Updates are folded into each other as they become many, so their number stays small (see `folding`).
        """
        return self.apply(upserts=source)

    def delete(self, keys: Any) -> MasterStore:
        """Remove all rows of these keys; returns the store at its new version."""
        return self.apply(deletes=keys)

    def merge_deltas(self, at_most: int = 8, memory: int | str = "512MB") -> MasterStore:
        """Fold the newest updates into one when there are more than ``at_most``: a lookup asks each of them.

        The content is the same. Unlike `compact` this leaves the base as it is, so it costs what the updates cost.
        """
        from semistream.stores.paged import folding

        return folding.merge_deltas(self, at_most, memory)

    def compact(self, memory: int | str = "512MB", progress: Progress | None = None) -> MasterStore:
        """Fold the deltas into a new base. The content is the same; older versions stay readable until `vacuum`."""
        from semistream.stores.paged import folding

        return folding.compact(self, memory, progress)

    def vacuum(self, keep: int = 2) -> list[str]:
        """Remove all but the newest ``keep`` versions and the files that only they used; returns the files removed."""
        from semistream.stores.paged import vacuuming

        return vacuuming.vacuum(self.path, keep)

    def changed_since(self, version: int) -> Codes | None:
        """Codes that may differ between ``version`` and this one; None when everything may."""
        from semistream.stores.paged import updating

        return updating.changed_between(self.path, version, self.manifest)

    def __repr__(self) -> str:
        return f"MasterStore({str(self.path)!r}, version={self.version}, rows={self.rows:,}, key={list(self.key)})"


def row_schema(schema: pa.Schema, codec: KeyCodec) -> pa.Schema:
    """The columns that are packed into rows: an exact key is its code already."""
    hidden = codec.fields[0].name if codec.exact else None
    return pa.schema([field for field in schema if field.name != hidden])
