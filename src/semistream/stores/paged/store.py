"""The paged store: master data in key order on disk, one sparse index in memory.

A directory holds immutable segments of pages and one manifest per version (see `manifest`, `segment`). Whatever the
number of updates, a code is looked up in exactly one level, the newest that lists it (see `lookups`).

>>> import pyarrow as pa, tempfile
>>> products = pa.table({"id": [3, 1, 2], "price": [9.5, 1.5, 4.0]})
>>> store = MasterStore.build(products, tempfile.mkdtemp() + "/products", key="id")
>>> store.get([1, 3, 7]).to_pydict()
{'id': [1, 3], 'price': [1.5, 9.5]}
>>> store = store.upsert(pa.table({"id": [7], "price": [2.0]}))
>>> store.version, store.rows, store.get(7).to_pydict()
(2, 4, {'id': [7], 'price': [2.0]})
"""

import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream import failpoints
from semistream.errors import StoreNotFoundError, local_path
from semistream.keys import Codes, KeyCodec, Mask
from semistream.lookup.spec import asks
from semistream.rows import RowLayout
from semistream.stores import device as devices
from semistream.stores import fetching
from semistream.stores.contract import DEFAULT_BUFFER, Ability, Pages, StoreFacts
from semistream.stores.paged import publishing, updating
from semistream.stores.paged.building import Build
from semistream.stores.paged.lookups import Level, Levels, MasterReader
from semistream.stores.paged.manifest import Manifest, StoreVersion
from semistream.stores.paged.reading import LONGEST_REQUEST
from semistream.stores.paged.segment import Segment
from semistream.stores.sources import Progress

__all__ = ["MasterStore", "Progress"]

_GROUP_FILES = 64  # of the column groups that stay open; each has as many as the store has segments


class MasterStore:
    """One version of a master table on disk. Open it with `open`, make it with `build`; updates give a new object."""

    abilities: ClassVar[frozenset[Ability]] = frozenset({"pages"})

    def __init__(
        self,
        path: str | os.PathLike[str],
        manifest: Manifest,
        *,
        direct: bool = False,
        opened: Iterable[Segment] = (),
        group: str | None = None,
    ) -> None:
        """``opened`` are segments to share. With ``group`` it has only the group's columns, and cannot be changed."""
        self.path = local_path("path", path)
        self.manifest = manifest
        self.direct = direct
        self.group = group
        entries = manifest.segments
        self.schema: pa.Schema = manifest.schema  # in the order of the source
        if group is not None:
            twins, columns = manifest.groups[group].twins, (*manifest.key, *manifest.groups[group].columns)
            entries = tuple(twins[entry.file] for entry in entries)
            self.schema = pa.schema([field for field in manifest.schema if field.name in columns])
        self.key = manifest.key
        self.version = manifest.version
        self.rows = manifest.rows
        self.properties = dict(manifest.properties)  # what its users keep with the rows of this version (see `apply`)
        self.page_bytes = manifest.page_bytes  # the stride of a page
        self.codec = KeyCodec([manifest.schema.field(name) for name in manifest.key], manifest.hash_bits)
        self.layout = RowLayout(self.codec.row_schema(self.schema))
        have = {segment.entry: segment for segment in opened}
        self.segments = [
            have.get(entry) or Segment(self.path / entry.file, entry, manifest.page_bytes, direct=direct)
            for entry in sorted(entries, key=lambda entry: entry.role)  # bases, then deltas: in page order
        ]
        self.edges = np.cumsum([0] + [segment.pages for segment in self.segments])
        self.pages = int(self.edges[-1])  # of all levels
        self.facts = _facts(self)
        self.bytes, self.unique = self.facts.bytes, self.facts.unique
        self._groups = manifest.groups if group is None else {}
        self._part = lru_cache(max(1, _GROUP_FILES // (len(entries) or 1)))(partial(_part, self.path, manifest, direct))

    @cached_property
    def located(self) -> Levels:
        """The index; read when it is needed, since a lookup may need only that of a group."""
        return Levels(self.segments, self.edges)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process opens the same version."""
        return _reopen, (self.path, self.manifest.identity, self.direct, self.group)

    @classmethod
    def open(cls, path: str | os.PathLike[str], version: int | None = None, *, direct: bool = False) -> "MasterStore":
        """Open a version of a store, by default the newest. ``direct=True`` reads past the page cache (O_DIRECT)."""
        root = local_path("path", path)
        while True:
            manifest = Manifest.load(root, version)
            failpoints.reach("store.loaded")
            try:
                return cls(root, manifest, direct=direct)
            except StoreNotFoundError:
                if manifest.is_in(root):
                    raise

    @staticmethod
    @asks(Build)
    def build(source: Any, asked: Build) -> "MasterStore":
        """Build a store from Parquet, CSV or Arrow files, Arrow, pandas, Polars or Spark data, in any order.

        ``memory`` bounds the sort; rows beyond it are spilled next to the store. ``replace=True`` publishes the result
        as a new version of a store that is there already. ``properties`` are texts that stay with the store.
        Rows with a NULL in their key can never match: ``null_keys="drop"`` leaves them out and counts them
        (``store.manifest.null_keys``), ``"refuse"`` makes them an error. ``groups`` names sets of columns that are
        often asked for together, ``{"prices": ["price", "currency"]}``: a lookup of no others reads only these.
        """
        return asked.run(source)

    def versions(self) -> list[dict[str, Any]]:
        """Every version that is there: number, time, change, rows and bytes."""
        found = []
        for number in Manifest.versions(self.path):
            with suppress(FileNotFoundError):  # removed since
                one = Manifest.read(self.path, number)
                size = sum(entry.bytes for entry in one.segments) + sum(group.bytes for group in one.groups.values())
                about = {"version": one.version, "created": one.created, "change": one.change, "rows": one.rows}
                found.append(about | {"bytes": size})
        return found

    def latest(self) -> "MasterStore":
        """This store at its newest version (the same object when nothing is newer)."""
        if Manifest.load(self.path).identity == self.manifest.identity:
            return self
        return MasterStore.open(self.path, direct=self.direct)

    def covering(self, columns: Iterable[str]) -> "MasterStore":
        """The narrowest of its column groups with these columns, as a store; this one when there is none (any more)."""
        wanted, groups = set(columns) - set(self.key), self._groups
        names = [name for name, group in groups.items() if wanted <= set(group.columns)]
        return next(filter(None, map(self._part, sorted(names, key=lambda name: groups[name].bytes))), self)

    def locate(self, codes: Codes) -> tuple[Pages, Pages]:
        return self.located.locate(codes)

    def reader(
        self, buffer_bytes: int = DEFAULT_BUFFER, reads_in_flight: int = 8, *, double: bool = True
    ) -> MasterReader:
        return MasterReader(self, buffer_bytes, reads_in_flight, double=double)

    scan = fetching.scan
    get = fetching.get

    def levels(self) -> Iterator[tuple[int, Codes]]:
        return ((level.first_page, level.firsts) for level in self.located.all)

    def delta_levels(self) -> list[Level]:
        """The levels of the updates since the base, newest last."""
        return self.located.all[1:]

    def bloom(self) -> npt.NDArray[np.uint64]:
        """The filter of the base's keys, or an empty array when there is none or several."""
        return self.segments[0].section("bloom") if self.facts.filter_bytes else np.empty(0, np.uint64)

    def in_deltas(self, codes: Codes) -> Mask:
        """Which codes are overridden by a delta, hence not covered by the base's filter."""
        return self.located.replaced(-1, codes)

    def verify(self, progress: Progress | None = None) -> int:
        """Read every page and section and check it; returns the number of pages, raises on the first damage."""
        seen = 0
        pages = self.pages + sum(twin.pages for group in self._groups.values() for twin in group.twins.values())
        others = (_part(self.path, self.manifest, self.direct, name) for name in self._groups)  # one after the other
        for part in filter(None, itertools.chain([self], others)):
            for segment in part.segments:
                for name in segment.sections:
                    segment.section(name)
            for _, addresses in part.reader().read(np.arange(part.pages)):
                seen += len(addresses)
                if progress is not None:
                    progress("verify", seen, pages)
        return seen

    apply = updating.apply
    merge_deltas = updating.merge_deltas
    compact = updating.compact
    project = updating.project
    drop_group = updating.drop_group

    def upsert(self, source: Any) -> "MasterStore":
        """Replace all rows of the keys in ``source`` by the rows given; returns the store at its new version."""
        return self.apply(upserts=source)

    def delete(self, keys: Any) -> "MasterStore":
        """Remove all rows of these keys; returns the store at its new version."""
        return self.apply(deletes=keys)

    def vacuum(self, keep: int = 2) -> list[str]:
        """Remove all but the newest ``keep`` versions and the files that only they used; returns the files removed."""
        return publishing.vacuum(self.path, keep)

    changed_since = updating.changed_since

    def __repr__(self) -> str:
        group = "" if self.group is None else f", group={self.group!r}"
        about = f"version={self.version}, rows={self.rows:,}, key={list(self.key)}{group}"
        return f"MasterStore({str(self.path)!r}, {about})"


def _reopen(path: str, content: StoreVersion, direct: bool, group: str | None) -> MasterStore:
    store = MasterStore.open(path, content.number, direct=direct)
    content.check(store.manifest, store.path)
    return store if group is None else MasterStore(path, store.manifest, direct=direct, group=group)


def _part(path: Path, manifest: Manifest, direct: bool, name: str) -> MasterStore | None:
    """A column group of a version; None when a vacuum has removed it: who has the store open still has its rows."""
    try:
        return MasterStore(path, manifest, direct=direct, group=name)
    except StoreNotFoundError:
        if manifest.is_in(path):
            raise
        return None


def _facts(store: MasterStore) -> StoreFacts:
    manifest, layout, page_bytes = store.manifest, store.layout, store.page_bytes
    entries = [segment.entry for segment in store.segments]
    bases = [entry for entry in entries if entry.role == "base"]  # means stay the same under updates
    pages, rows = sum(entry.pages for entry in bases), sum(entry.rows for entry in bases)
    return StoreFacts(
        rows=manifest.rows,
        keys=sum(entry.keys for entry in entries),
        rows_per_key=max(1, rows) / max(1, sum(entry.keys for entry in bases)),
        bytes=sum(entry.bytes for entry in entries),
        pages=store.pages,
        page_bytes=page_bytes,
        largest_page=max((entry.largest_page for entry in entries), default=page_bytes),
        longest_request=LONGEST_REQUEST,
        row_bytes=pages * page_bytes / rows if rows else float(layout.head + 8),
        index_bytes=sum(segment.bytes_of("firsts", "starts", "changed") for segment in store.segments),
        filter_bytes=store.segments[0].bytes_of("bloom") if len(bases) == 1 else 0,  # several have none in common
        unique=all(entry.largest_group <= 1 for entry in entries),
        direct=store.direct,
        device=devices.from_numbers(manifest.device, direct=store.direct),
        layout=layout,
        key_types=tuple(field.type for field in store.codec.fields),
    )
