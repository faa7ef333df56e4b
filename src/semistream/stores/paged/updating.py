"""Changing a store: deltas that override, and what changed between two versions.

A delta holds the complete new group of every code it lists, also for the codes that two keys share by a hash
collision, so a reader never has to merge levels: the newest level that lists a code has all its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from semistream.errors import ArgumentError, SchemaError
from semistream.keys import Codes, same_key_type
from semistream.stores.fetching import copy_rows, key_columns, to_batch
from semistream.stores.paged.building import Packer, open_and_publish
from semistream.stores.paged.folding import check_changeable, write_delta
from semistream.stores.paged.manifest import Manifest, checked_properties
from semistream.stores.paged.segment import Segment
from semistream.stores.paged.sorting import Block
from semistream.stores.sources import open_source

if TYPE_CHECKING:
    from semistream.stores.paged.store import MasterStore


def apply(
    store: MasterStore, upserts: Any = None, deletes: Any = None, *, properties: Mapping[str, str] | None = None
) -> MasterStore:
    """Upserts, deletions and properties as one new version: readers see all of it or nothing.

    ``upserts`` are rows as for `upsert`, ``deletes`` keys as for `delete`; a key may not be in both. ``properties``
    are texts that are added to those there are; they stay with the store until they are given anew.
    """
    properties = {**store.properties, **checked_properties(properties)}
    keys: list[list[pa.Array]] = []
    blocks: list[Block] = []
    names = []
    if upserts is not None:
        table = _rows_to_upsert(store, upserts)
        packer = Packer(store.schema, store.key, store.codec.hash_bits)
        blocks = [packer.pack(batch) for batch in table.to_batches() if batch.num_rows]
        keys.append([table.column(name).combine_chunks() for name in store.key])
        names.append("upsert")
    if deletes is not None:
        keys.append(key_columns(deletes, store.schema, store.key))
        names.append("delete")
    if len(keys) == 2:
        _check_apart(store, *keys)
    change = names[0] if len(names) == 1 else "apply"
    check_changeable(store, change)
    parts = [codes[valid] for codes, valid in (store.codec.encode(columns) for columns in keys)]
    changed = np.unique(np.concatenate([np.empty(0, np.uint64), *parts]))
    if len(changed):
        gone, kept = _existing(store, changed, keys)
        blocks = [*blocks, *kept]
        rows = store.rows - gone + sum(map(len, blocks))
        segments = write_delta(store, changed, blocks)
        manifest = store.manifest.next(change, rows=rows, segments=segments, properties=properties)
        return open_and_publish(store.path, manifest, segments[-1:], store)
    if properties == store.manifest.properties:
        return store
    return open_and_publish(store.path, store.manifest.next("properties", properties=properties), [], store)


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


def _existing(store: MasterStore, changed: Codes, keys: list[list[pa.Array]]) -> tuple[int, list[Block]]:
    """Rows that the store holds for these codes, and copies of those whose key only shares its hash with one of
    them.
    """
    gone = 0
    kept = []
    for index, rows in store.reader().match(changed):
        gone += len(rows)
        if store.codec.exact:
            continue
        batch = to_batch(store, changed[index], rows, store.key)
        others = ~np.logical_or.reduce([store.codec.among(batch.columns, columns) for columns in keys])
        if others.any():
            kept.append(Block.of(changed[index[others]], copy_rows(store.layout, rows[others])))
    return gone, kept


def changed_since(store: MasterStore, version: int) -> Codes | None:
    """Codes that may differ between ``version`` and this one; None when everything may."""
    parts: list[Codes] = [np.empty(0, np.uint64)]
    current = store.manifest
    while current.version > version:
        if current.change == "build" or current.parent is None:
            return None
        try:
            if current.change in ("upsert", "delete", "apply"):
                entry = current.segments[-1]
                parts.append(Segment(store.path / entry.file, entry, current.page_bytes).touched())
            parent = Manifest.read(store.path, current.parent)
        except FileNotFoundError:  # vacuumed
            return None
        if current.descends_from(parent) is False:
            return None
        current = parent
    return np.unique(np.concatenate(parts)) if current.version == version else None
