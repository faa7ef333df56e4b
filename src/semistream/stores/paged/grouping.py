"""Column groups: some columns of a master once more, in files of their own, for lookups that ask for no others.

A lookup of two numbers in rows of 120 bytes reads a fifth with a group of the two, its index is a fifth as large, and a
page brings five times as many rows for the cache. `MasterStore.covering` chooses it. Every segment has a twin in every
group, the same rows in the same order, published with the version: a group is never older than its store.

>>> import pyarrow as pa, tempfile
>>> from semistream import MasterStore
>>> products = pa.table({"id": [1, 2], "price": [1.5, 4.0], "about": ["long", "text"]})
>>> store = MasterStore.build(products, tempfile.mkdtemp() + "/products", key="id", groups={"prices": ["price"]})
>>> store.covering(["price"]).group, store.covering(["price", "about"]).group
('prices', None)
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from semistream import failpoints
from semistream.errors import ArgumentError, meant
from semistream.rows import Projection
from semistream.stores.paged.manifest import ColumnGroup, Manifest, SegmentEntry
from semistream.stores.paged.segment import write_segment
from semistream.stores.paged.sorting import Block
from semistream.stores.sources import Progress, reported

if TYPE_CHECKING:
    from semistream.stores.paged.store import MasterStore

Groups = Mapping[str, Sequence[str]]


def checked_groups(
    groups: Groups | None, schema: pa.Schema, key: Sequence[str], previous: Manifest | None = None
) -> dict[str, ColumnGroup]:
    """Groups without their twins; those of the version before when none are given."""
    if groups is None:
        if previous is None:
            return {}
        try:
            return {name: _checked(name, group.columns, schema, key) for name, group in previous.groups.items()}
        except ArgumentError as error:
            raise ArgumentError(
                f"{error}; version {previous.version} has it, and a build keeps the groups: give groups={{}} for none, "
                "groups={...} for others (--group), or remove it first (`semistream project STORE NAME --drop`)"
            ) from None
    if not isinstance(groups, Mapping):
        raise ArgumentError(f"groups={groups!r} must be names with their columns, such as {{'prices': ['price']}}")
    return {name: _checked(name, columns, schema, key) for name, columns in groups.items()}


def _checked(name: str, columns: Sequence[str], schema: pa.Schema, key: Sequence[str]) -> ColumnGroup:
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"groups: {name!r} is no name")
    if isinstance(columns, str) or not isinstance(columns, Sequence):
        raise ArgumentError(f"group {name!r}: columns={columns!r} must be a list of names")
    for column in columns:
        if column not in schema.names:
            like = meant(str(column), schema.names)
            raise ArgumentError(f"group {name!r}: there is no column {column!r}{like}; the columns are {schema.names}")
    chosen = tuple(item.name for item in schema if item.name in columns and item.name not in key)
    if len(chosen) + len(key) == len(schema):
        raise ArgumentError(f"group {name!r} has every column, as the store itself; leave some out")
    return ColumnGroup(chosen)


def write_twins(store: "MasterStore", files: list[str], progress: Progress | None) -> Manifest:
    """The manifest of an opened version with all its twins; those that had to be written for that go to ``files``."""
    groups = {}
    for name, group in store.manifest.groups.items():
        twins = {}
        for number, segment in enumerate(store.segments):
            twin = group.twins.get(segment.entry.file)
            if twin is None:
                twin = _write_twin(store, number, name, progress)
                files.append(twin.file)
                failpoints.reach("store.twin")
            twins[segment.entry.file] = twin
        groups[name] = replace(group, twins=twins)
    return replace(store.manifest, groups=groups)


def _write_twin(store: "MasterStore", number: int, name: str, progress: Progress | None) -> SegmentEntry:
    segment, group = store.segments[number], store.manifest.groups[name]
    columns = [one for one in store.layout.schema.names if one in (*store.key, *group.columns)]
    projection = Projection(store.layout, columns)
    rows = segment.entry.rows
    loaded = store.reader().all_rows(np.arange(store.edges[number], store.edges[number + 1]))
    blocks = (Block.of(codes, projection.apply(found)) for codes, found in loaded)
    return write_segment(
        store.path,
        projection.target,
        store.page_bytes,
        reported(blocks, f"write group {name}", rows, progress),
        segment.entry.role,
        filtered_rows=rows if "bloom" in segment.sections else 0,
        expected_rows=rows,
        **{one: segment.section(one) for one in ("changed", "touched") if one in segment.sections},
    )
