"""Building a store: read, pack, sort outside memory if need be, write pages, publish."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa

from semistream.budget import parse_bytes
from semistream.durable import explained
from semistream.errors import ArgumentError, SchemaError, StoreError, choose, counted
from semistream.keys import KeyCodec
from semistream.rows import RowLayout, normalise, storage_type
from semistream.stores.device import measure_both
from semistream.stores.paged.grouping import Groups, checked_groups, write_twins
from semistream.stores.paged.manifest import Manifest, SegmentEntry, checked_properties, new_id
from semistream.stores.paged.publishing import publish, removed_on_error
from semistream.stores.paged.segment import Segment, SegmentWriter, new_segment
from semistream.stores.paged.sorting import Block, sort_blocks
from semistream.stores.paged.store import MasterStore, Progress, row_schema
from semistream.stores.sources import is_spark, open_source


@dataclass
class Packer:
    """Turns batches of one schema into blocks of packed rows; rows with a NULL in their key are counted and left
    out.
    """

    schema: pa.Schema
    codec: KeyCodec
    null_keys: int = 0

    def __post_init__(self) -> None:
        self.layout = RowLayout(row_schema(self.schema, self.codec))

    def pack(self, batch: pa.RecordBatch) -> Block:
        """One batch as a block, not yet sorted."""
        batch = normalise(batch, self.schema)
        codes, valid = self.codec.encode([batch.column(field.name) for field in self.codec.fields])
        if not valid.all():
            self.null_keys += int((~valid).sum())
            batch, codes = batch.filter(pa.array(valid)), codes[valid]
        return Block.of(codes, self.layout.pack(batch.select(self.layout.schema.names)))


def stored_schema(schema: pa.Schema, key: list[str]) -> pa.Schema:
    """The schema that a store of this source will have; fails on unknown keys and types that cannot be stored."""
    unknown = [name for name in key if name not in schema.names]
    if unknown:
        raise ArgumentError(f"key={key}: the source has no column {unknown[0]!r}; its columns are {schema.names}")
    if len(set(key)) != len(key):
        raise ArgumentError(f"key={key} names a column twice")
    return pa.schema([pa.field(field.name, storage_type(field.name, field.type)) for field in schema])


def with_keys(key: list[str], columns: list[str] | None) -> list[str] | None:
    """The chosen columns, with the key always among them."""
    return None if columns is None else [*(name for name in key if name not in columns), *columns]


def prepare(path: Path, *, replace: bool) -> Manifest | None:
    """Make the directory; returns the newest manifest when the store is there already and may be replaced."""
    if path.exists() and not path.is_dir():
        raise StoreError(f"{path} is a file; a store is a directory")
    if Manifest.versions(path):
        if not replace:
            raise StoreError(
                f"{path} holds a store already; give replace=True to publish this as its next version, "
                "upsert() to change some rows, or choose another path"
            )
        return Manifest.load(path)
    # A build that was killed before its first version leaves drafts and segments; they do no harm.
    ours = ("segment-", ".segment-", ".version-", ".floor-")
    if path.exists() and not replace and not all(entry.name.startswith(ours) for entry in path.iterdir()):
        raise StoreError(f"{path} is not empty and not a semistream store; choose another path")
    try:
        with explained("make the directory", path):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (FileExistsError, NotADirectoryError) as error:
        raise StoreError(f"{path} cannot be made a directory: it is a broken link, or lies below a file") from error
    return None


def build(
    source: Any,
    path: Path,
    *,
    key: list[str],
    columns: list[str] | None,
    page_bytes: int,
    memory: int | str,
    replace: bool,
    progress: Progress | None,
    hash_bits: int,
    properties: dict[str, str] | None = None,
    null_keys: str = "drop",
    groups: Groups | None = None,
) -> MasterStore:
    """See `MasterStore.build`."""
    refuse = choose("null_keys", null_keys, ("drop", "refuse")) == "refuse"
    if page_bytes not in [1 << shift for shift in range(12, 21)]:  # a stride must suit O_DIRECT
        raise ArgumentError(f"page_bytes={page_bytes!r}: use a power of two from 4096 to 1048576")
    memory_bytes = parse_bytes(memory)
    if not key or not all(isinstance(name, str) for name in key):
        shown = key[0] if len(key) == 1 else key
        raise ArgumentError(f"key={shown!r} is not usable; give the name of a key column, or several")
    if not 1 <= hash_bits <= 64:
        raise ArgumentError(f"hash_bits={hash_bits} must be from 1 to 64")
    if is_spark(source):
        # Only semistream.spark knows Spark, and it stands above this module: hence by an entry point.
        (builder,) = entry_points(group="semistream.masters", name="pyspark")
        built: MasterStore = builder.load()(
            source,
            path,
            key,
            columns,
            page_bytes,
            replace=replace,
            hash_bits=hash_bits,
            refuse_null_keys=refuse,
            groups=groups,
        )
        return built.apply(properties=properties) if properties else built
    opened = open_source(source, with_keys(key, columns))
    schema = stored_schema(opened.schema, key)
    codec = KeyCodec([schema.field(name) for name in key], hash_bits)
    previous = prepare(path, replace=replace)
    checked_groups(groups, schema, key, previous)
    packer = Packer(schema, codec)
    seen = 0

    def blocks() -> Iterator[Block]:
        nonlocal seen
        for batch in opened.batches():
            if batch.num_rows:
                seen += batch.num_rows
                block = packer.pack(batch)
                if refuse and packer.null_keys:
                    raise_null_keys(packer.null_keys, key, f"the first {counted(seen, 'row')}")
                yield block
                if progress is not None:
                    progress("read and sort", seen, opened.rows)

    # A source of unknown size gets no filter: it would have to be sized before the rows are seen.
    writer = SegmentWriter(new_segment(path), packer.layout, page_bytes, expected_rows=opened.rows or 0)
    with writer.removed_on_error():
        for block in sort_blocks(blocks(), memory_bytes, path):
            writer.append(block)
            if progress is not None:
                progress("write pages", writer.rows, seen - packer.null_keys)
        entry = writer.finish("base")
    return publish_build(
        path, schema, key, hash_bits, page_bytes, [entry], packer.null_keys, previous, properties, groups, progress
    )


def raise_null_keys(count: int, key: list[str], among: str) -> NoReturn:
    """Refuse rows that nothing could ever match."""
    raise SchemaError(
        f"{count:,} of {among} have a NULL in their key ({', '.join(key)}) and could never match; "
        "filter them out, or leave them out with null_keys='drop' (--null-keys drop)"
    )


def publish_build(
    path: Path,
    schema: pa.Schema,
    key: list[str],
    hash_bits: int,
    page_bytes: int,
    entries: list[SegmentEntry],
    null_keys: int,
    previous: Manifest | None,
    properties: dict[str, str] | None = None,
    groups: Groups | None = None,
    progress: Progress | None = None,
) -> MasterStore:
    """Publish freshly written bases as a version and open it."""
    files = [entry.file for entry in entries]
    largest = path / max(entries, key=lambda entry: entry.bytes).file
    with removed_on_error(path, files), explained("read", largest):
        costs = measure_both(largest, page_bytes)
    content: dict[str, Any] = {
        "schema": schema,
        "key": tuple(key),
        "hash_bits": hash_bits,
        "page_bytes": page_bytes,
        "rows": sum(entry.rows for entry in entries),
        "segments": tuple(entries),
        "null_keys": null_keys,
        "device": costs,
        "properties": {**(previous.properties if previous else {}), **checked_properties(properties)},
        "groups": checked_groups(groups, schema, key, previous),
    }
    if previous is not None:
        manifest = previous.next("build", **content)
    else:
        manifest = Manifest(version=1, parent=None, change="build", created=time.time(), store_id=new_id(), **content)
    return open_and_publish(path, manifest, files, progress=progress)


def open_and_publish(
    path: Path,
    manifest: Manifest,
    new_files: list[str],
    *,
    direct: bool = False,
    opened: Iterable[Segment] = (),
    progress: Progress | None = None,
) -> MasterStore:
    """Publish a version and return it. It is opened beforehand, so that nothing can fail once it is published.

    New segments get their twins first, one in each column group.
    """
    with removed_on_error(path, new_files):
        store = MasterStore(path, manifest, direct=direct, opened=opened)
        store.located  # noqa: B018 - its index is read
    if manifest.groups:
        with removed_on_error(path, new_files):
            manifest, twins = write_twins(store, progress)
            new_files = [*new_files, *twins]
        store = MasterStore(path, manifest, direct=direct, opened=store.segments)
    publish(manifest, path, new_files)
    return store
