"""The rows of a dimension: looked up, inferred, overwritten (type 1), merged into the versions of a member (type 2).

Attributes are compared by group numbers, equal numbers for equal rows (NULL = NULL, NaN = NaN), and copied by row
number, so that no value passes through Python. What a member's changes mean is decided by `history.merge`.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.changes.rows import OP, Numbers, columns_of, distinct, last_of_each, store_rows
from semistream.changes.values import ints, times_of
from semistream.dimensions.history import Change, Version, merge, position
from semistream.dimensions.shape import INFERRED, NEXT, OBSERVED, VALID_FROM, VALID_TO, Counts, Shape, Work
from semistream.errors import SchemaError
from semistream.keys import KeyCodec
from semistream.stores import MasterStore

_FOREVER = np.iinfo(np.int64)


def infer(store: MasterStore, shape: Shape, asked: pa.Table) -> tuple[pa.Table, Work]:
    """The members that distinct keys have, and rows for those that have none, numbered in the order of the keys."""
    versions = [INFERRED, VALID_FROM, VALID_TO, OBSERVED] if shape.history else []
    found = store.get(asked, [*shape.key, shape.surrogate, *versions])
    members = found.filter(pc.is_valid(found.column(shape.surrogate)))
    known = store.codec.among(columns_of(asked, shape.key), columns_of(members, shape.key))
    new = in_order(asked.filter(pa.array(~known)), shape.key)
    first = int(store.manifest.properties[NEXT])
    columns = {name: new.column(name) for name in shape.key}
    columns[shape.surrogate] = pa.array(np.arange(first, first + new.num_rows))
    columns[INFERRED] = pa.repeat(pa.scalar(True), new.num_rows)
    marked = found.filter(pc.is_null(found.column(shape.surrogate)))  # deleted before they were seen: valid until then
    if marked.num_rows:
        mark_of = _rows_of(store, marked, new)
        marks = marked.take(pa.array(mark_of, mask=mark_of < 0))
        columns |= {VALID_TO: marks.column(VALID_FROM), OBSERVED: marks.column(OBSERVED)}
    rows = store_rows(store.schema, new.num_rows, columns)
    return pa.concat_tables([members, rows.select(members.column_names)]), Work(rows, first + new.num_rows)


def surrogates(
    store: MasterStore, shape: Shape, keys: Sequence[pa.Array], found: pa.Table, times: pa.Array | None = None
) -> pa.Array:
    """The surrogate key of each row, from the members found; see `Dimension.assign`."""
    asked = pa.table(list(keys), names=list(shape.key))
    valid = store.codec.encode(keys)[1]
    groups = groups_of(store.codec, [found, asked])
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
    at = np.maximum(at, np.searchsorted(mine, theirs))  # before the first version: the first
    result[valid] = numbers[at[valid]]
    return pa.array(result)


def _moments(column: pa.Array | pa.ChunkedArray, kind: pa.DataType, absent: int) -> Numbers:
    return np.array(pc.fill_null(ints(column, kind), absent).to_numpy(zero_copy_only=False), np.int64)


def overwrite(store: MasterStore, shape: Shape, changes: pa.Table) -> Work:
    """Type 1: a member has one row; its surrogate key stays."""
    latest = last_of_each(store.codec, changes)
    new = in_order(latest.filter(pc.not_equal(latest.column(OP), "delete")), shape.key)
    found = store.get(latest.select(list(shape.key)))
    old = _rows_of(store, found, new)  # -1 for a new member: below, the value that is appended
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


def merge_history(store: MasterStore, shape: Shape, changes: pa.Table, effective: str) -> Work:
    """Type 2: changes become versions of their members, late ones in between."""
    kind = store.schema.field(VALID_FROM).type
    if absent := changes.column(effective).null_count:
        raise SchemaError(
            f"{absent} changes have no time in column {effective!r}; a history needs one for each: "
            "name another column with effective="
        )
    at_one_time = KeyCodec([*store.codec.fields, changes.schema.field(effective)])
    latest = in_order(last_of_each(at_one_time, changes), shape.key)
    found = store.get(distinct(store, columns_of(latest, shape.key)))
    groups = groups_of(store.codec, [found, latest])
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
    observed = [np.array(one.observed, np.int64).tobytes() if one.observed else None for _, one in made]
    columns[OBSERVED] = pa.array(observed, pa.binary())
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
    found = zip(*times, *others, values[: rows.num_rows].tolist(), strict=True)
    for begin, end, number, inferred, seen, value in found:
        observed = tuple(np.frombuffer(seen or b"", np.int64).tolist())
        made.append(Version(begin, end, None if inferred or number is None else (value,), number, observed))
    return made


def _rows_of(store: MasterStore, found: pa.Table, asked: pa.Table) -> Numbers:
    """For each row of ``asked`` the row of ``found`` that has its key, the only one; -1 where there is none."""
    groups = groups_of(store.codec, [found, asked])
    row_of = np.full(int(groups.max(initial=0)) + 1, -1, np.int64)
    row_of[groups[: found.num_rows]] = np.arange(found.num_rows)
    return row_of[groups[found.num_rows :]]


def groups_of(codec: KeyCodec, tables: Sequence[pa.Table]) -> Numbers:
    """A number for each row of all tables, one after the other: the same for equal keys."""
    columns = []
    for item in codec.fields:
        chunks = [chunk.cast(item.type) for table in tables for chunk in table.column(item.name).chunks]
        columns.append(pa.chunked_array(chunks, item.type).combine_chunks())
    return codec.groups(columns)


def value_groups(attributes: Sequence[str], tables: Sequence[pa.Table]) -> Numbers:
    """A number for each row of all tables: the same for equal attributes, NULL = NULL, NaN = NaN."""
    if not attributes:
        return np.zeros(sum(table.num_rows for table in tables), np.int64)
    return groups_of(KeyCodec([tables[0].schema.field(name) for name in attributes]), tables)


def in_order(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Rows in the order of their keys."""
    return rows.sort_by([(name, "ascending") for name in key])
