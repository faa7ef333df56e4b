"""The rows of a dimension with history: changes merged into the versions of their members (type 2).

Attributes are compared by group numbers and copied by row number, so that no value passes through Python; what a
member's changes mean is decided by `history.merge`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.changes.arrays import (
    Numbers,
    distinct,
    groups_of,
    in_order,
    ints,
    last_of_each,
    store_rows,
    times_of,
    value_groups,
)
from semistream.changes.rows import OP
from semistream.dimensions.history import Change, Version, merge, position
from semistream.dimensions.shape import INFERRED, NEXT, OBSERVED, VALID_FROM, VALID_TO, Counts, Shape, Work
from semistream.errors import SchemaError
from semistream.stores import MasterStore


def merge_history(store: MasterStore, shape: Shape, changes: pa.Table, effective: str) -> Work:
    """Type 2: changes become versions of their members, late ones in between."""
    kind = store.schema.field(VALID_FROM).type
    times = changes.column(effective).combine_chunks()
    if times.null_count:
        raise SchemaError(
            f"{times.null_count} changes have no time in column {effective!r}; a history needs one for each: "
            "name another column with effective="
        )
    latest = in_order(last_of_each(store.codec, changes, [times]), shape.key)
    found = store.get(distinct(store, latest.select(list(shape.key))))
    groups = groups_of(store.codec, [found, latest], shape.key)
    values = value_groups(shape.attributes, [found, latest])
    moments = ints(latest.column(effective), kind).to_pylist()
    gone = pc.equal(latest.column(OP), "delete").to_pylist()
    sample = {int(number): place for place, number in enumerate(values)}  # a row that has these values
    versions: dict[int, list[Version]] = {}
    for place, one in enumerate(_versions(found, values, shape)):
        versions.setdefault(int(groups[place]), []).append(one)
    waiting: dict[int, list[Change]] = {}
    for place, (moment, deleted) in enumerate(zip(moments, gone, strict=True), found.num_rows):
        change = Change(moment, None if deleted else (int(values[place]),))
        waiting.setdefault(int(groups[place]), []).append(change)
    key_row = {int(group): place for place, group in enumerate(groups)}
    counts = Counts()
    next_key = int(store.manifest.properties[NEXT])
    made: list[tuple[int, Version]] = []  # row that has the key, version
    for group, asked in waiting.items():
        old = versions.get(group, [])
        new = merge(old, asked)
        if sorted(new, key=position) == sorted(old, key=position):
            counts.unchanged += len(asked)
            continue
        for place, one in enumerate(new):
            if one.surrogate is None and not one.mark:
                new[place] = one._replace(surrogate=next_key)
                next_key += 1
        _count(counts, old, new)
        made.extend((key_row[group], one) for one in new)
    both = pa.concat_tables([rows.select([*shape.key, *shape.attributes]) for rows in (found, latest)])
    return Work(_history_rows(store, shape, both, made, sample), next_key, counts)


def _history_rows(
    store: MasterStore, shape: Shape, both: pa.Table, made: list[tuple[int, Version]], sample: dict[int, int]
) -> pa.Table:
    kind = store.schema.field(VALID_FROM).type
    keys = pa.array([row for row, _ in made], pa.int64())
    values = pa.array([None if one.values is None else sample[one.values[0]] for _, one in made], pa.int64())
    columns = {name: both.column(name).take(keys) for name in shape.key}
    columns |= {name: both.column(name).take(values) for name in shape.attributes}
    columns[shape.surrogate] = pa.array([one.surrogate for _, one in made], pa.int64())
    columns[INFERRED] = pa.array([one.inferred for _, one in made], pa.bool_())
    columns[VALID_FROM] = times_of([one.valid_from for _, one in made], kind)
    columns[VALID_TO] = times_of([one.valid_to for _, one in made], kind)
    columns[OBSERVED] = pa.array([_packed(one.observed) for _, one in made], pa.binary())
    return store_rows(store.schema, len(made), columns)


def _count(counts: Counts, old: list[Version], new: list[Version]) -> None:
    before = {one.surrogate: one for one in old if one.surrogate is not None}
    for one in new:
        past = before.get(one.surrogate) if one.surrogate is not None else None
        if past is None:
            counts.created += not one.mark
            continue
        counts.closed += past.valid_to is None and one.valid_to is not None
        counts.completed += past.inferred and not one.inferred
        counts.changed += not past.inferred and past.values != one.values


def _versions(rows: pa.Table, values: Numbers, shape: Shape) -> list[Version]:
    times = [ints(rows.column(name), rows.schema.field(name).type).to_pylist() for name in (VALID_FROM, VALID_TO)]
    others = [rows.column(name).to_pylist() for name in (shape.surrogate, INFERRED, OBSERVED)]
    made = []
    for begin, end, number, inferred, seen, value in zip(
        *times, *others, values[: rows.num_rows].tolist(), strict=True
    ):
        observed = tuple(np.frombuffer(seen or b"", np.int64).tolist())
        made.append(Version(begin, end, None if inferred or number is None else (value,), number, observed))
    return made


def _packed(observed: tuple[int, ...]) -> bytes | None:
    return np.array(observed, np.int64).tobytes() if observed else None


def beside_marks(store: MasterStore, shape: Shape, rows: pa.Table, marked: pa.Table) -> pa.Table:
    """Inferred members whose deletion came first are valid until then."""
    groups = groups_of(store.codec, [rows, marked], shape.key)
    after = rows.num_rows
    ends: list[int | None] = [None] * after
    observed: list[bytes | None] = [None] * after
    for place, mark in enumerate(_versions(marked, np.zeros(marked.num_rows, np.int64), shape), after):
        for row in np.flatnonzero(groups[:after] == groups[place]):
            made = merge([mark, Version(None, None, None, 0)], [])[0]
            ends[row], observed[row] = made.valid_to, _packed(made.observed)
    new = {VALID_TO: times_of(ends, rows.schema.field(VALID_TO).type), OBSERVED: pa.array(observed, pa.binary())}
    return store_rows(rows.schema, after, dict(zip(rows.column_names, rows.columns, strict=True)) | new)
