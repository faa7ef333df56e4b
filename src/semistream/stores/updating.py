"""Changing a store: deltas that override, compaction that folds them in, and what changed between two versions.

A delta holds the complete new group of every code it lists, also for the codes that two keys share by a hash
collision, so a reader never has to merge levels: the newest level that lists a code has all its rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.budget import parse_bytes
from semistream.errors import ArgumentError, ConcurrentWriteError, SchemaError, StoreError
from semistream.keys import Codes, same_key_type
from semistream.stores.asked import key_columns
from semistream.stores.building import Packer, new_segment
from semistream.stores.manifest import Manifest, SegmentEntry, checked_properties
from semistream.stores.paged import MasterStore, Progress
from semistream.stores.reading import PageReader
from semistream.stores.segment import Segment, SegmentWriter
from semistream.stores.sorting import Block, sort_blocks
from semistream.stores.sources import open_source

_ORPHAN_SECONDS = 86_400


def apply(store: MasterStore, upserts: Any, deletes: Any, properties: Mapping[str, str] | None) -> MasterStore:
    """See `MasterStore.apply`."""
    wanted = checked_properties(properties)
    properties = {**store.manifest.properties, **wanted}
    keys: list[list[pa.Array]] = []
    blocks: list[Block] = []
    names = []
    if upserts is not None:
        table = _rows_to_upsert(store, upserts)
        packer = Packer(store.schema, store.codec)
        blocks = [packer.pack(batch) for batch in table.to_batches() if batch.num_rows]
        keys.append([table.column(name).combine_chunks() for name in store.key])
        names.append("upsert")
    if deletes is not None:
        keys.append(key_columns(deletes, store.schema, store.key))
        names.append("delete")
    if len(keys) == 2:
        _check_apart(store, *keys)
    change = names[0] if len(names) == 1 else "apply"
    _check_newest(store, change)
    parts = [codes[valid] for codes, valid in (store.codec.encode(columns) for columns in keys)]
    changed = np.unique(np.concatenate(parts)) if parts else np.empty(0, np.uint64)
    if len(changed):
        return _publish_delta(store, change, changed, keys, blocks, properties)
    if properties == store.manifest.properties:
        return store
    store.manifest.next("properties", properties=properties).publish(store.path)
    return MasterStore.open(store.path, direct=store.direct)


def _rows_to_upsert(store: MasterStore, source: Any) -> pa.Table:
    opened = open_source(source, None)
    missing = [name for name in store.schema.names if name not in opened.schema.names]
    extra = [name for name in opened.schema.names if name not in store.schema.names]
    if missing or extra:
        raise SchemaError(
            f"upsert needs the store's columns {store.schema.names}; "
            f"missing: {missing or 'none'}, unknown: {extra or 'none'}"
        )
    for name in store.key:
        have, want = opened.schema.field(name).type, store.schema.field(name).type
        if not same_key_type(have, want):
            raise SchemaError(f"upsert: key column {name!r} is {have}, the store's is {want}; cast it to {want}")
    schema = pa.schema([opened.schema.field(name) for name in store.schema.names])
    table = pa.Table.from_batches([batch.select(store.schema.names) for batch in opened.batches()], schema)
    for name in store.key:
        if table.column(name).null_count:
            raise SchemaError(
                f"upsert: key column {name!r} holds {table.column(name).null_count} NULLs; drop those rows"
            )
    return table


def _check_apart(store: MasterStore, upserted: list[pa.Array], deleted: list[pa.Array]) -> None:
    both = np.flatnonzero(store.codec.among(upserted, deleted))
    if len(both):
        key = {name: column[both[0]].as_py() for name, column in zip(store.key, upserted, strict=True)}
        raise ArgumentError(
            f"{len(both)} keys are both upserted and deleted, the first is {key}; a version has one or the other: "
            "keep the last change of each key"
        )


def _publish_delta(
    store: MasterStore,
    change: str,
    changed: Codes,
    keys: list[list[pa.Array]],
    blocks: list[Block],
    properties: dict[str, str],
) -> MasterStore:
    gone, kept = _existing(store, changed, keys)
    blocks = [*blocks, *kept]
    writer = SegmentWriter(new_segment(store.path), store.layout, store.page_bytes)
    with writer.removed_on_error():
        if blocks:
            block = Block.sorted_from(blocks)
            writer.append(block.codes, block.rows, block.lengths)
        entry = writer.finish("delta", changed)
    rows = store.rows - gone + sum(len(block) for block in blocks)
    segments = (*store.manifest.segments, entry)
    return _publish(store, entry, store.manifest.next(change, rows=rows, segments=segments, properties=properties))


def _check_newest(store: MasterStore, change: str) -> None:
    newest = Manifest.load(store.path).version
    if newest != store.version:
        raise ConcurrentWriteError(
            f"{change} on version {store.version} of {store.path}, but version {newest} is there; "
            f"use store.latest().{change}(...)"
        )


def _publish(store: MasterStore, entry: SegmentEntry, manifest: Manifest) -> MasterStore:
    """Publish a version with a new segment; the segment goes when another writer was first."""
    try:
        manifest.publish(store.path)
    except BaseException:
        (store.path / entry.file).unlink(missing_ok=True)
        raise
    return MasterStore.open(store.path, direct=store.direct)


def _existing(store: MasterStore, changed: Codes, keys: list[list[pa.Array]]) -> tuple[int, list[Block]]:
    """Rows that the store holds for these codes, and copies of those whose key only shares its hash with one of
    them.
    """
    gone = 0
    kept = []
    for index, rows in store.match(changed, PageReader(store)):
        gone += len(rows)
        if store.codec.exact:
            continue
        batch = store.to_batch(changed[index], rows, store.key)
        others = ~np.logical_or.reduce([store.codec.among(batch.columns, columns) for columns in keys])
        if others.any():
            kept.append(Block.of(changed[index[others]], store.copy_rows(rows[others])))
    return gone, kept


def compact(store: MasterStore, memory: int | str, progress: Progress | None) -> MasterStore:
    """See `MasterStore.compact`."""
    if all(entry.role == "base" for entry in store.manifest.segments) and len(store.manifest.segments) == 1:
        return store
    _check_newest(store, "compact")

    def blocks() -> Any:
        seen = 0
        for codes, rows in store.scan_rows(PageReader(store)):
            seen += len(codes)
            if len(codes):
                yield Block.of(codes, store.copy_rows(rows))
            if progress is not None:
                progress("compact", seen, store.rows)

    writer = SegmentWriter(new_segment(store.path), store.layout, store.page_bytes, store.rows)
    with writer.removed_on_error():
        for block in sort_blocks(blocks(), parse_bytes(memory), store.path):
            writer.append(block.codes, block.rows, block.lengths)
        entry = writer.finish("base")
    if entry.rows != store.rows:
        (store.path / entry.file).unlink()
        raise StoreError(
            f"compact of {store.path} found {entry.rows:,} rows instead of {store.rows:,}; nothing was changed"
        )
    return _publish(store, entry, store.manifest.next("compact", segments=(entry,)))


def merge_deltas(store: MasterStore, at_most: int, memory: int | str) -> MasterStore:
    """See `MasterStore.merge_deltas`.

    Folded are the newest deltas, as many as are not larger than those folded before them: so a row is rewritten as
    often as the logarithm of the number of updates, not each time.
    """
    if at_most < 1:
        raise ArgumentError(f"at_most={at_most}: at least one update must stay")
    segments = store.manifest.segments
    deltas = [entry for entry in segments if entry.role == "delta"]
    if len(deltas) <= at_most:
        return store
    _check_newest(store, "merge_deltas")
    first, size = len(deltas) - 1, deltas[-1].bytes
    while first > 0 and (first >= at_most or deltas[first - 1].bytes <= size):
        first -= 1
        size += deltas[first].bytes
    levels = store.delta_levels()[first:]

    def blocks() -> Iterator[Block]:
        reader = PageReader(store)
        for level in levels:
            for codes, rows in store.page_rows(reader, level.first_page, level.first_page + len(level.firsts)):
                if len(codes):
                    yield Block.of(codes, store.copy_rows(rows))

    writer = SegmentWriter(new_segment(store.path), store.layout, store.page_bytes)
    with writer.removed_on_error():
        for block in sort_blocks(blocks(), parse_bytes(memory), store.path):
            writer.append(block.codes, block.rows, block.lengths)
        entry = writer.finish("delta", np.unique(np.concatenate([level.changed for level in levels])))
    kept = (*(one for one in segments if one.role == "base"), *deltas[:first])
    return _publish(store, entry, store.manifest.next("merge", segments=(*kept, entry)))


def vacuum(path: Path, keep: int) -> list[str]:
    """See `MasterStore.vacuum`."""
    if keep < 1:
        raise ArgumentError(f"keep={keep}: at least one version must stay")
    versions = Manifest.versions(path)
    old, staying = versions[:-keep], versions[-keep:]
    used = {entry.file for number in staying for entry in Manifest.load(path, number).segments}
    stale = {entry.file for number in old for entry in Manifest.load(path, number).segments} - used
    known = used | stale
    for file in path.glob("segment-*"):  # left by writers that died; a younger one may still be at work
        if file.name not in known and time.time() - file.stat().st_mtime > _ORPHAN_SECONDS:
            stale.add(file.name)
    removed = [f"version-{number:06d}.json" for number in old] + sorted(stale)
    for name in removed:  # manifests first: a version whose files are gone must not be visible
        (path / name).unlink(missing_ok=True)
    return removed


def changed_between(path: Path, old: int, new: Manifest) -> Codes | None:
    """Codes that may differ between version ``old`` and ``new``; None when everything may."""
    parts: list[npt.NDArray[np.uint64]] = []
    present = set(Manifest.versions(path))
    current = new
    while current.version > old:
        if current.change == "build" or current.parent is None or current.parent not in present:
            return None
        if current.change in ("upsert", "delete", "apply"):
            entry: SegmentEntry = current.segments[-1]
            parts.append(Segment(path / entry.file, entry, current.page_bytes).section("changed"))
        current = Manifest.load(path, current.parent)
    if current.version != old:
        return None
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.uint64)
