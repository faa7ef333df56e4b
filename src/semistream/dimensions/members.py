"""The rows of a dimension: looked up, inferred, overwritten (type 1).

Attributes are compared by group numbers: equal numbers for equal rows, NULL = NULL, NaN = NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.changes.arrays import (
    Numbers,
    columns_of,
    groups_of,
    in_order,
    ints,
    last_of_each,
    store_rows,
    value_groups,
)
from semistream.changes.rows import OP
from semistream.dimensions.shape import INFERRED, NEXT, VALID_FROM, VALID_TO, VALIDITY, Counts, Shape, Work
from semistream.stores import MasterStore

_FOREVER = np.iinfo(np.int64)


def infer(store: MasterStore, shape: Shape, asked: pa.Table) -> tuple[pa.Table, Work]:
    """The members that distinct keys have, and rows for those that have none, numbered in the order of the keys."""
    found = store.get(asked, [*shape.key, shape.surrogate, *([INFERRED, *VALIDITY] if shape.history else [])])
    members = found.filter(pc.is_valid(found.column(shape.surrogate)))
    known = store.codec.among(columns_of(asked, shape.key), columns_of(members, shape.key))
    new = in_order(asked.filter(pa.array(~known)), shape.key)
    first = int(store.manifest.properties[NEXT])
    columns = {name: new.column(name) for name in shape.key}
    columns[shape.surrogate] = pa.array(np.arange(first, first + new.num_rows))
    columns[INFERRED] = pa.repeat(pa.scalar(True), new.num_rows)
    rows = store_rows(store.schema, new.num_rows, columns)
    marked = found.filter(pc.is_null(found.column(shape.surrogate)))  # deleted before they were seen
    if marked.num_rows and new.num_rows:
        from semistream.dimensions.histories import beside_marks

        rows = beside_marks(store, shape, rows, marked)
    return pa.concat_tables([members, rows.select(members.column_names)]), Work(rows, first + new.num_rows)


def surrogates(
    store: MasterStore, shape: Shape, keys: Sequence[pa.Array], found: pa.Table, times: pa.Array | None = None
) -> pa.Array:
    """The surrogate key of each row, from the members found; see `Dimension.assign`."""
    asked = pa.table(list(keys), names=list(shape.key))
    valid = store.codec.encode(keys)[1]
    groups = groups_of(store.codec, [found, asked], shape.key)
    mine, theirs = groups[: found.num_rows], groups[found.num_rows :]
    result = np.full(asked.num_rows, shape.unknown_key, np.int64)
    numbers = found.column(shape.surrogate).to_numpy()
    begins = np.zeros(found.num_rows, np.int64)
    wanted = np.zeros(asked.num_rows, np.int64)
    if shape.history:
        kind = store.schema.field(VALID_FROM).type
        begins = _moments(found.column(VALID_FROM), kind, _FOREVER.min)
        ends = _moments(found.column(VALID_TO), kind, _FOREVER.max)
        lasting = begins < ends
        keep = lasting | ~np.isin(mine, mine[lasting])  # one that never held counts only where there is no other
        mine, numbers, begins = mine[keep], numbers[keep], begins[keep]
        wanted = np.full(asked.num_rows, _FOREVER.max) if times is None else _moments(times, kind, _FOREVER.max)
    ranks = np.unique(np.concatenate([begins, wanted]), return_inverse=True)[1]
    span = int(ranks.max(initial=0)) + 1
    places = mine * span + ranks[: len(mine)]
    order = np.argsort(places, kind="stable")
    places, numbers, mine = places[order], numbers[order], mine[order]
    at = np.searchsorted(places, theirs * span + ranks[len(mine) :], "right") - 1
    first = np.searchsorted(mine, theirs, "left")
    at = np.maximum(at, first)  # before the first version: the first
    result[valid] = numbers[at[valid]]
    return pa.array(result)


def _moments(column: pa.Array | pa.ChunkedArray, kind: pa.DataType, absent: int) -> Numbers:
    return np.array(pc.fill_null(ints(column, kind), absent).to_numpy(zero_copy_only=False), np.int64)


def overwrite(store: MasterStore, shape: Shape, changes: pa.Table) -> Work:
    """Type 1: a member has one row; its surrogate key stays."""
    latest = last_of_each(store.codec, changes)
    new = in_order(latest.filter(pc.not_equal(latest.column(OP), "delete")), shape.key)
    found = store.get(latest.select(list(shape.key)))
    groups = groups_of(store.codec, [found, new], shape.key)
    row_of = np.full(int(groups.max(initial=0)) + 1, -1, np.int64)
    row_of[groups[: found.num_rows]] = np.arange(found.num_rows)
    old = row_of[groups[found.num_rows :]]  # -1 for a new member: below, the value that is appended
    known = old >= 0
    first = int(store.manifest.properties[NEXT])
    numbers = np.append(found.column(shape.surrogate).to_numpy(), 0)[old]
    numbers = np.where(known, numbers, first + np.cumsum(~known) - 1)
    values = value_groups(shape.attributes, [found, new])
    inferred = found.column(INFERRED).to_numpy(zero_copy_only=False).astype(np.bool_)
    was_inferred = np.append(inferred, [False])[old]
    same = values[found.num_rows :] == np.append(values[: found.num_rows], -1)[old]
    idle = same & ~was_inferred
    columns = {name: new.column(name) for name in (*shape.key, *shape.attributes)}
    columns[shape.surrogate] = pa.array(numbers)
    columns[INFERRED] = pa.repeat(pa.scalar(False), new.num_rows)
    rows = store_rows(store.schema, new.num_rows, columns).filter(pa.array(~idle))
    created = int((~known).sum())
    counts = Counts(
        created=created,
        completed=int(was_inferred.sum()),
        changed=int((known & ~idle & ~was_inferred).sum()),
        unchanged=int(idle.sum()),
        deletes_kept=found.num_rows - int(known.sum()),
    )
    return Work(rows, first + created, counts)
