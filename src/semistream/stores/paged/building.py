"""Building a store: read, pack, sort outside memory if need be, write pages, publish."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semistream import failpoints
from semistream.budget import parse_bytes
from semistream.durable import explained
from semistream.errors import ArgumentError, SchemaError, StoreError, choose, counted, local_path
from semistream.keys import KeyCodec
from semistream.rows import RowLayout, normalise, storage_type
from semistream.stores.device import measure_both
from semistream.stores.paged.grouping import Groups, checked_groups, write_twins
from semistream.stores.paged.manifest import Manifest, SegmentEntry, checked_properties
from semistream.stores.paged.publishing import DRAFTS, publish, removed_on_error
from semistream.stores.paged.segment import write_segment
from semistream.stores.paged.sorting import Block, sort_blocks
from semistream.stores.sources import Progress, open_source, reported

if TYPE_CHECKING:
    from semistream.stores.paged.store import MasterStore

DEFAULT_PAGE_BYTES = 4096  # docs/decisions/0001-page-file.md


class Packer:
    """Turns batches of a source into blocks of packed rows; those with a NULL in their key are counted and left out."""

    def __init__(self, source: pa.Schema, key: Sequence[str], hash_bits: int = 64) -> None:
        """Fails on unknown keys and on types that cannot be stored."""
        unknown = [name for name in key if name not in source.names]
        if unknown:
            raise ArgumentError(
                f"key={list(key)}: the source has no column {unknown[0]!r}; its columns are {source.names}"
            )
        if len(set(key)) != len(key):
            raise ArgumentError(f"key={list(key)} names a column twice")
        self.schema = pa.schema([pa.field(field.name, storage_type(field.name, field.type)) for field in source])
        for name in key:
            if pa.types.is_interval(kind := self.schema.field(name).type):
                raise SchemaError(f"key column {name!r} is {kind}, of which two cannot be compared; cast it to text")
        self.codec = KeyCodec([self.schema.field(name) for name in key], hash_bits)
        self.layout = RowLayout(self.codec.row_schema(self.schema))
        self.rows = self.null_keys = 0

    def pack(self, batch: pa.RecordBatch) -> Block:
        self.rows += batch.num_rows
        batch = normalise(batch, self.schema)
        codes, valid = self.codec.encode([batch.column(field.name) for field in self.codec.fields])
        if not valid.all():
            self.null_keys += int((~valid).sum())
            batch, codes = batch.filter(pa.array(valid)), codes[valid]
        return Block.of(codes, self.layout.pack(batch.select(self.layout.schema.names)))


@dataclass
class Build:
    """What is asked of `MasterStore.build`."""

    path: str | os.PathLike[str]
    _: KW_ONLY
    key: str | Sequence[str]
    columns: Sequence[str] | None = None
    page_bytes: int = DEFAULT_PAGE_BYTES
    memory: int | str = "512MB"
    replace: bool = False
    progress: Progress | None = None
    hash_bits: int = 64
    properties: Mapping[str, str] | None = None
    null_keys: str = "drop"
    groups: Groups | None = None

    def __post_init__(self) -> None:
        self.root = local_path("path", self.path)
        self.names = list(self.key) if isinstance(self.key, Sequence) and not isinstance(self.key, str) else [self.key]
        choose("null_keys", self.null_keys, ("drop", "refuse"))
        if self.page_bytes not in [1 << shift for shift in range(12, 21)]:  # a stride must suit O_DIRECT
            raise ArgumentError(f"page_bytes={self.page_bytes!r}: use a power of two from 4096 to 1048576")
        parse_bytes(self.memory)
        if not self.names or not all(isinstance(name, str) for name in self.names):
            shown = self.names[0] if len(self.names) == 1 else self.names
            raise ArgumentError(f"key={shown!r} is not usable; give the name of a key column, or several")
        if not 1 <= self.hash_bits <= 64:
            raise ArgumentError(f"hash_bits={self.hash_bits} must be from 1 to 64")

    @property
    def columns_to_read(self) -> list[str] | None:
        """The chosen columns, with the key always among them."""
        if self.columns is None:
            return None
        return [*(name for name in self.names if name not in self.columns), *self.columns]

    def run(self, source: Any) -> "MasterStore":
        kind = type(source)
        if kind.__name__ == "DataFrame" and kind.__module__.startswith("pyspark.sql"):  # classic or Connect
            # Only semistream.spark knows Spark, and it stands above this module: hence by an entry point.
            (builder,) = entry_points(group="semistream.masters", name="pyspark")
            built: MasterStore = builder.load()(source, replace(self, properties=None))
            return built.apply(properties=self.properties) if self.properties else built
        opened = open_source(source, self.columns_to_read)
        packer, previous = self.begin(opened.schema)

        def blocks() -> Iterator[Block]:
            filled = (batch for batch in opened.batches() if batch.num_rows)
            for batch in reported(filled, "read and sort", opened.rows, self.progress):
                block = packer.pack(batch)
                self.check_null_keys(packer.null_keys, f"the first {counted(packer.rows, 'row')}")
                yield block

        ordered = sort_blocks(blocks(), parse_bytes(self.memory), self.root)
        ordered = reported(ordered, "write pages", lambda: packer.rows - packer.null_keys, self.progress)
        # A source of unknown size gets no filter: it would have to be sized before the rows are seen.
        rows = opened.rows or 0
        entry = write_segment(self.root, packer.layout, self.page_bytes, ordered, filtered_rows=rows)
        return self.publish(packer, [entry], previous)

    def begin(self, source: pa.Schema) -> tuple[Packer, Manifest | None]:
        """What packs rows of this schema, and the version that is replaced; makes the store's directory."""
        packer = Packer(source, self.names, self.hash_bits)
        previous = self._directory()
        checked_groups(self.groups, packer.schema, self.names, previous)
        return packer, previous

    def _directory(self) -> Manifest | None:
        path = self.root
        if path.exists() and not path.is_dir():
            raise StoreError(f"{path} is a file; a store is a directory")
        if Manifest.versions(path):
            if not self.replace:
                raise StoreError(
                    f"{path} holds a store already; give replace=True to publish this as its next version, "
                    "upsert() to change some rows, or choose another path"
                )
            return Manifest.load(path)
        # A build that was killed before its first version leaves drafts and segments; they do no harm.
        if path.exists() and not self.replace and not all(entry.name.startswith(DRAFTS) for entry in path.iterdir()):
            raise StoreError(f"{path} is not empty and not a semistream store; choose another path")
        try:
            with explained("make the directory", path):
                path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except (FileExistsError, NotADirectoryError) as error:
            raise StoreError(f"{path} cannot be made a directory: it is a broken link, or lies below a file") from error
        return None

    def check_null_keys(self, count: int, among: str) -> None:
        """Refuse rows that nothing could ever match, if that was asked for."""
        if count and self.null_keys == "refuse":
            raise SchemaError(
                f"{count:,} of {among} have a NULL in their key ({', '.join(self.names)}) and could never match; "
                "filter them out, or leave them out with null_keys='drop' (--null-keys drop)"
            )

    def publish(self, packer: Packer, entries: list[SegmentEntry], previous: Manifest | None) -> "MasterStore":
        """Publish freshly written bases as a version and open it."""
        largest = self.root / max(entries, key=lambda entry: entry.bytes).file
        with removed_on_error(self.root, [entry.file for entry in entries]), explained("read", largest):
            costs = measure_both(largest, self.page_bytes)
        content: dict[str, Any] = {
            "schema": packer.schema,
            "key": tuple(self.names),
            "hash_bits": self.hash_bits,
            "page_bytes": self.page_bytes,
            "rows": sum(entry.rows for entry in entries),
            "segments": tuple(entries),
            "null_keys": packer.null_keys,
            "device": costs,
            "properties": {**(previous.properties if previous else {}), **checked_properties(self.properties)},
            "groups": checked_groups(self.groups, packer.schema, self.names, previous),
        }
        manifest = Manifest.first(**content) if previous is None else previous.next("build", **content)
        return open_and_publish(self.root, manifest, entries, progress=self.progress)


def open_and_publish(
    path: Path,
    manifest: Manifest,
    new: Sequence[SegmentEntry],
    before: "MasterStore | None" = None,
    progress: Progress | None = None,
) -> "MasterStore":
    """Publish a version and return it. It is opened beforehand, so that nothing can fail once it is published. New
    segments get their twins first, one in each column group. What follows ``before`` shares its open segments.
    """
    from semistream.stores.paged.store import MasterStore

    if before is not None:
        failpoints.reach("store.segment")
    files = [entry.file for entry in new]
    direct, opened = (before.direct, before.segments) if before is not None else (False, [])
    with removed_on_error(path, files):
        store = MasterStore(path, manifest, direct=direct, opened=opened)
        store.located  # noqa: B018 - its index is read
        if manifest.groups:
            manifest = write_twins(store, files, progress)
            store = MasterStore(path, manifest, direct=direct, opened=store.segments)
    publish(manifest, path, files)
    return store
