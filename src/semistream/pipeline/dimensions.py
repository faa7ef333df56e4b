"""Dimensions in a batch: members that are missing are made, and the warehouse's table follows the store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from semistream.dimensions.dimension import Dimension
from semistream.dimensions.shape import OBSERVED
from semistream.errors import StateError
from semistream.pipeline import columns as names
from semistream.pipeline.held import read_rows
from semistream.stores.paged.manifest import Manifest
from semistream.warehouse.contract import StagedFile, Warehouse, stage
from semistream.warehouse.marks import store_number

if TYPE_CHECKING:
    from semistream.pipeline.layout import Layout, Schemas


@dataclass(frozen=True)
class Mirrored:
    """A dimension whose table in the warehouse follows its store."""

    table: str
    store: Path

    @property
    def newest(self) -> int:
        """The newest version of its store."""
        return Manifest.load(self.store).version


def resolve(
    layout: Layout, schemas: Schemas, files: list[StagedFile], place: Path, prefix: str
) -> tuple[list[StagedFile], dict[str, int]]:
    """Fill the surrogate keys of rows whose members were missing; the members are made first.

    The finished files are in ``place``, and their names begin with ``prefix``. Returns them, and the version of each
    dimension's table that they need.
    """
    tables = [read_rows(file.path) for file in files]
    versions: dict[str, int] = {}
    for number, step in layout.numbered:
        if step.on_miss != "infer":
            continue
        asked = names.asked_columns(number, len(step.on))
        keys = list(step.on.values())
        status = names.status_column(number)
        wanted = pa.concat_tables([_missing(table, status, asked).rename_columns(keys) for table in tables])
        dimension = Dimension.open(step.store)
        given = dimension.assign(wanted.group_by(keys, use_threads=False).aggregate([]))
        key = step.rename.get(dimension.shape.surrogate, dimension.shape.surrogate)
        columns = [name for name, taken in schemas.taken.items() if taken == key]  # select may take it twice, or not
        unknown = -1 if step.unknown_key is None else step.unknown_key
        tables = [
            _filled(
                table, given, dict(zip(asked, keys, strict=True)), status, dimension.shape.surrogate, columns, unknown
            )
            for table in tables
        ]
        for one in layout.dimensions:
            if one.store == step.store:
                versions[one.table] = dimension.store.version
    facts = schemas.tables[layout.table]
    finished = [stage(place, table.select(facts.names), facts, prefix) for table in tables]
    return [StagedFile(str(place / file.path), file.rows, file.bytes) for file in finished], versions


def _missing(table: pa.Table, status: str, asked: list[str]) -> pa.Table:
    """The keys of rows that missed; a key with a NULL in it is nobody's."""
    chosen = pc.invert(table.column(status))
    for name in asked:
        chosen = pc.and_(chosen, pc.is_valid(table.column(name)))
    return table.select(asked).filter(chosen)


def _filled(
    table: pa.Table, given: pa.Table, on: dict[str, str], status: str, surrogate: str, columns: list[str], unknown: int
) -> pa.Table:
    """The table with ``columns`` filled where the row had missed."""
    new = "_ss_new"
    joined = table.join(
        given.select([*on.values(), surrogate]).rename_columns([*on.values(), new]),
        keys=list(on),
        right_keys=list(on.values()),
        join_type="left outer",
    )
    for column in columns:
        found = pc.cast(pc.fill_null(joined.column(new), unknown), table.schema.field(column).type)
        values = pc.if_else(joined.column(status), joined.column(column), found)
        joined = joined.set_column(joined.schema.get_field_index(column), column, values)
    return joined.select(table.column_names)


def check_mirror(warehouse: Warehouse, one: Mirrored) -> None:
    """Refuse a dimension whose table cannot follow it; a table that is missing is made."""
    dimension = Dimension.open(one.store)
    warehouse.prepare(one.table, pa.schema([item for item in dimension.store.schema if item.name != OBSERVED]))
    mirrored, store = warehouse.mirrored_store(one.table), dimension.store.manifest.store_id
    if mirrored is not None and store and mirrored != store_number(store):
        raise StateError(
            f"table {one.table!r} of {warehouse.describe()} follows another dimension than the one that is now at "
            f"{one.store}: it was removed and built again, and its surrogate keys are not those that were loaded. "
            "Restore the dimension, or load into an empty warehouse with a new state"
        )


def mirror(warehouse: Warehouse, one: Mirrored, version: int) -> None:
    """Bring the warehouse's table to a version of the dimension, or a later one: only members that changed are written.

    A row of a dimension is never taken away, and its surrogate key is its identity.
    """
    done = warehouse.mirrored(one.table)
    if done >= version:
        return
    dimension = Dimension.open(one.store)
    rows, _ = dimension.rows(None if done < 0 else done)
    warehouse.mirror(
        one.table,
        [dimension.shape.surrogate],
        rows,
        dimension.store.version,
        store=dimension.store.manifest.store_id,
    )
