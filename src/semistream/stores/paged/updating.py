"""Changing a store: deltas that override, folding them, and what changed between two versions.

A delta holds the complete new group of every code it lists, also for the codes that two keys share by a hash
collision, so a reader never has to merge levels: the newest level that lists a code has all its rows.

A lookup asks every delta, and every delta is an open file. So an update takes earlier deltas into its own segment once
there are `MOST_DELTAS`: from the oldest that is not larger than all after it together. So both the number of deltas and
how often a row is written again grow with the logarithm of their bytes (the rule of log-structured merge trees).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from semistream.budget import parse_bytes
from semistream.errors import ArgumentError, SchemaError, StoreError
from semistream.keys import Codes, same_key_type
from semistream.rows import readable_rows
from semistream.stores.fetching import copy_rows, key_columns, to_batch
from semistream.stores.paged.building import Packer, open_and_publish
from semistream.stores.paged.grouping import checked_groups
from semistream.stores.paged.lookups import among
from semistream.stores.paged.manifest import Manifest, SegmentEntry, checked_properties
from semistream.stores.paged.publishing import check_newest
from semistream.stores.paged.segment import DATA_AT, Segment, write_segment
from semistream.stores.paged.sorting import Block, sort_blocks
from semistream.stores.sources import Progress, open_source, reported

if TYPE_CHECKING:
    from semistream.stores.paged.store import MasterStore

MOST_DELTAS = 8


def apply(
    store: "MasterStore", upserts: Any = None, deletes: Any = None, *, properties: Mapping[str, str] | None = None
) -> "MasterStore":
    """Upserts, deletions and properties as one new version: readers see all of it or nothing.

    ``upserts`` are rows as for `upsert`, ``deletes`` keys as for `delete`; a key may not be in both. ``properties``
    are texts that are added to those there are; they stay with the store until they are given anew.
    """
    properties = store.properties | checked_properties(properties)
    given: dict[str, list[pa.Array]] = {}  # the columns of their keys
    blocks: list[Block] = []
    if upserts is not None:
        table = _rows_to_upsert(store, upserts)
        packer = Packer(store.schema, store.key, store.codec.hash_bits)
        blocks = [packer.pack(batch) for batch in table.to_batches() if batch.num_rows]
        given["upsert"] = [table.column(name).combine_chunks() for name in store.key]
    if deletes is not None:
        given["delete"] = key_columns(deletes, store.schema, store.key)
    if len(given) == 2:
        _check_apart(store, *given.values())
    change = next(iter(given)) if len(given) == 1 else "apply"
    check_changeable(store, change)
    parts = [codes[valid] for codes, valid in (store.codec.encode(columns) for columns in given.values())]
    changed = np.unique(np.concatenate([np.empty(0, np.uint64), *parts]))
    if len(changed):
        gone, kept = _existing(store, changed, list(given.values()))
        blocks = [*blocks, *kept]
        rows = store.rows - gone + sum(map(len, blocks))
        segments = write_delta(store, changed, blocks)
        manifest = store.manifest.next(change, rows=rows, segments=segments, properties=properties)
        return open_and_publish(store.path, manifest, segments[-1:], store)
    if properties == store.manifest.properties:
        return store
    return open_and_publish(store.path, store.manifest.next("properties", properties=properties), [], store)


def _rows_to_upsert(store: "MasterStore", source: Any) -> pa.Table:
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
    table = pa.Table.from_batches(list(opened.batches()), opened.schema).select(store.schema.names)
    for name in store.key:
        if count := table.column(name).null_count:
            raise SchemaError(f"upsert: key column {name!r} holds {count} NULLs; drop those rows")
    return table


def _check_apart(store: "MasterStore", upserted: list[pa.Array], deleted: list[pa.Array]) -> None:
    both = np.flatnonzero(store.codec.among(upserted, deleted))
    if len(both):
        (key,) = readable_rows(pa.table(upserted, store.key).slice(both[0], 1))
        raise ArgumentError(
            f"{len(both)} keys are both upserted and deleted, the first is {key}; a version has one or the other: "
            "keep the last change of each key"
        )


def _existing(store: "MasterStore", changed: Codes, keys: list[list[pa.Array]]) -> tuple[int, list[Block]]:
    """The number of rows with these codes, and copies of those whose key only shares its hash with a changed one."""
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


def changed_since(store: "MasterStore", version: int) -> Codes | None:
    """Codes that may differ between ``version`` and this one; None when everything may."""
    parts: list[Codes] = [np.empty(0, np.uint64)]
    current = store.manifest
    while current.version > version:
        if current.change == "build" or current.parent is None:
            return None
        try:
            if current.change in ("upsert", "delete", "apply"):
                entry = current.segments[-1]
                delta = Segment(store.path / entry.file, entry, current.page_bytes)
                parts.append(delta.section("touched" if "touched" in delta.sections else "changed"))
            parent = Manifest.read(store.path, current.parent)
        except FileNotFoundError:  # vacuumed
            return None
        if current.descends_from(parent) is False:
            return None
        current = parent
    return np.unique(np.concatenate(parts)) if current.version == version else None


def check_changeable(store: "MasterStore", change: str) -> None:
    """Refuse to change what is not the newest version, or only a part of one."""
    if store.group is not None:
        raise StoreError(
            f"{change} on the column group {store.group!r} of {store.path}; change the store itself, "
            "MasterStore.open(path): its groups follow"
        )
    check_newest(store.manifest, store.path, change)


def fold_from(sizes: Sequence[int], new: int = 0) -> int:
    """The first of the deltas, oldest first, that an update of ``new`` bytes takes in; their number when none is.

    >>> fold_from([100, 20, 9, 5, 4], 1), fold_from([100, 20, 4, 2], 1), fold_from([5, 4, 3], 9)
    (2, 4, 0)
    """
    first, after = len(sizes), new
    for number in reversed(range(len(sizes))):
        if sizes[number] <= after:
            first = number
        after += sizes[number]
    return first


def write_delta(store: "MasterStore", changed: Codes, blocks: list[Block]) -> tuple[SegmentEntry, ...]:
    """The segments with these new rows: a new delta, which takes earlier ones in if need be, after those below it."""
    deltas = [entry.bytes for entry in store.manifest.deltas]
    rows = sum(int(block.lengths.sum()) + 8 * len(block) for block in blocks)
    new = DATA_AT + -(-rows // store.page_bytes) * store.page_bytes + 8 * len(changed)
    first = fold_from(deltas, new) if len(deltas) >= MOST_DELTAS else len(deltas)
    return _fold(store, changed, blocks, first)


def _fold(
    store: "MasterStore", changed: Codes, blocks: list[Block], first: int, memory_bytes: int = 512_000_000
) -> tuple[SegmentEntry, ...]:
    folded = store.delta_levels()[first:]

    def rows() -> Iterator[Block]:
        yield from blocks
        for level in folded:
            for codes, found in store.reader().page_rows(level.first_page, level.first_page + len(level.firsts)):
                keep = ~among(codes, changed)
                yield Block.of(codes[keep], copy_rows(store.layout, found[keep]))

    entry = write_segment(
        store.path,
        store.layout,
        store.page_bytes,
        sort_blocks(rows(), memory_bytes, store.path),
        "delta",
        changed=np.unique(np.concatenate([changed, *(level.changed for level in folded)])),
        touched=changed if folded else None,
    )
    gone = store.manifest.deltas[first:]
    return (*(one for one in store.manifest.segments if one not in gone), entry)


def merge_deltas(store: "MasterStore", at_most: int = 8, memory: int | str = "512MB") -> "MasterStore":
    """Fold the newest updates into one when there are more than ``at_most``: a lookup asks each of them. The content is
    the same. Unlike `compact` this leaves the base as it is, so it costs what the updates cost.
    """
    if at_most < 1:
        raise ArgumentError(f"at_most={at_most}: at least one update must stay")
    memory_bytes = parse_bytes(memory)
    deltas = [entry.bytes for entry in store.manifest.deltas]
    if len(deltas) <= at_most:
        return store
    check_changeable(store, "merge_deltas")
    first = min(fold_from(deltas), at_most - 1)
    segments = _fold(store, np.empty(0, np.uint64), [], first, memory_bytes)
    return open_and_publish(store.path, store.manifest.next("merge", segments=segments), segments[-1:], store)


def compact(store: "MasterStore", memory: int | str = "512MB", progress: Progress | None = None) -> "MasterStore":
    """Fold the deltas into a new base. The content is the same; older versions stay readable until `vacuum`."""
    memory_bytes = parse_bytes(memory)
    if len(store.segments) == 1:
        return store
    check_changeable(store, "compact")
    layout, rows = store.layout, store.rows
    blocks = (Block.of(codes, copy_rows(layout, found)) for codes, found in store.reader().rows())
    ordered = sort_blocks(reported(blocks, "compact", rows, progress), memory_bytes, store.path)
    entry = write_segment(store.path, layout, store.page_bytes, ordered, filtered_rows=rows, expected_rows=rows)
    return open_and_publish(store.path, store.manifest.next("compact", segments=(entry,)), [entry], store)


def project(store: "MasterStore", name: str, columns: Sequence[str], progress: Progress | None = None) -> "MasterStore":
    """Add a column group (see `build`): lookups of these columns alone read less from now on. The rows are the same."""
    check_changeable(store, "project")
    groups = store.manifest.groups
    if name in groups:
        have = list(groups[name].columns)
        raise ArgumentError(f"{store.path} has a group {name!r} already, of {have}; drop it first, or choose a name")
    groups = groups | checked_groups({name: columns}, store.schema, store.key)
    return open_and_publish(store.path, store.manifest.next("project", groups=groups), [], store, progress)


def drop_group(store: "MasterStore", name: str) -> "MasterStore":
    """Remove a column group. Versions that have it keep it."""
    check_changeable(store, "project")
    groups = dict(store.manifest.groups)
    if groups.pop(name, None) is None:
        raise ArgumentError(f"{store.path} has no group {name!r}; it has {list(groups) or 'none'}")
    return open_and_publish(store.path, store.manifest.next("project", groups=groups), [], store)
