"""Dimensions in a batch: members that are missing are made, and the warehouse's table follows the store."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from semistream.budget import Budget
from semistream.dimensions.dimension import Dimension
from semistream.dimensions.shape import OBSERVED
from semistream.errors import StaleWriterError, StateError
from semistream.pipeline import routes as names
from semistream.pipeline.decision import Read
from semistream.pipeline.held import COPIES, read_granted
from semistream.pipeline.layout import Layout, Schemas
from semistream.stores.paged.manifest import Manifest
from semistream.warehouse.contract import StagedFile, Warehouse, stage
from semistream.warehouse.marks import store_number

_NEW = "_ss_new"


def resolve(
    layout: Layout, schemas: Schemas, files: list[StagedFile], place: Path, prefix: str, budget: Budget
) -> list[StagedFile]:
    """Make the missing members, then finish the rows with their keys, as files in ``place`` named with ``prefix``."""
    paths = [file.path for file in files]
    made: list[_Members] = []
    for number, step in layout.numbered:
        if step.on_miss != "infer":
            continue
        dimension = Dimension.open(step.store)
        surrogate = step.new_name(dimension.shape.surrogate)
        members = _Members(
            dimension,
            keys=list(step.keys.values()),
            asked=names.asked_columns(number, len(step.keys)),
            status=names.status_column(number),
            columns=[name for name, taken in schemas.taken.items() if taken == surrogate],  # once, several times, never
            unknown=-1 if step.unknown_key is None else step.unknown_key,
        )
        members.make(paths, budget)
        made.append(members)
    facts = schemas.tables[names.FACT]
    finished = []
    for table in read_granted(paths, budget):
        for members in made:
            table = members.fill(table)
        done = stage(place, table.select(facts.names), facts, prefix)
        finished.append(StagedFile(str(place / done.path), done.rows, done.bytes))
    return finished


@dataclass(frozen=True)
class _Members:
    """Members of one dimension, for the rows that missed them."""

    dimension: Dimension
    keys: list[str]  # the columns of the dimension's key
    asked: list[str]  # the columns with the keys that a row asked for
    status: str  # the column that tells whether it had matched
    columns: list[str]  # the columns to be filled
    unknown: int

    def make(self, paths: list[str], budget: Budget) -> None:
        """Make those that are missing, whenever their keys take a quarter of the budget; often that is once."""
        part = "keys of new members"
        waiting: list[pa.Table] = []
        for table in read_granted(paths, budget, [self.status, *self.asked]):
            missing = self._missing(table)
            size = COPIES * missing.nbytes
            if waiting and budget.parts[part] + size > budget.total // 4:
                self.dimension.assign(pa.concat_tables(waiting))
                waiting = []
                budget.release(part)
            budget.require(part, size)
            waiting.append(missing)
        self.dimension.assign(pa.concat_tables(waiting))
        budget.release(part)

    def _missing(self, table: pa.Table) -> pa.Table:
        """The distinct keys of rows that missed; one with a NULL in it gets no member, and matches nothing."""
        keys = table.select(self.asked).filter(pc.invert(table.column(self.status))).rename_columns(self.keys)
        return keys.group_by(self.keys, use_threads=False).aggregate([])

    def fill(self, table: pa.Table) -> pa.Table:
        """The table with the columns filled where the row had missed; all members are there by now."""
        found = self.dimension.assign(self._missing(table)).rename_columns([*self.keys, _NEW])
        joined = table.join(found, keys=self.asked, right_keys=self.keys, join_type="left outer")
        for column in self.columns:
            numbers = pc.cast(pc.fill_null(joined.column(_NEW), self.unknown), table.schema.field(column).type)
            values = pc.if_else(joined.column(self.status), joined.column(column), numbers)
            joined = joined.set_column(joined.schema.get_field_index(column), column, values)
        return joined.select(table.column_names)


def check_mirror(warehouse: Warehouse, table: str, store: Path) -> None:
    """Refuse a dimension whose table cannot follow it; a table that is missing is made."""
    dimension, _ = _followed(warehouse, table, store)
    warehouse.prepare(table, pa.schema([item for item in dimension.store.schema if item.name != OBSERVED]))


def mirror(warehouse: Warehouse, table: str, store: Path, version: int, digest: int | None = None) -> None:
    """Bring the warehouse's table to a version of the dimension, or a later one; only changed members are written."""
    while True:
        who = f"table {table!r} of {warehouse.describe()} must mirror"
        _check_holds(Manifest.load(store), version, digest, store, who)
        if warehouse.mirrored(table) >= version:
            return
        dimension, done = _followed(warehouse, table, store)
        rows, _ = dimension.rows(None if done < 0 else done)
        newest = dimension.store.manifest.identity
        try:
            warehouse.mirror(table, [dimension.shape.surrogate], rows, newest.number, store=newest)
        except StaleWriterError:  # pipelines may share a dimension and its table: what another has mirrored counts
            if warehouse.mirrored(table) <= done:
                raise


def _followed(warehouse: Warehouse, table: str, store: Path) -> tuple[Dimension, int]:
    """The dimension, and the version of it that the table mirrors; an error when it is not one of this dimension's."""
    done, mirrored = warehouse.mirrored(table), warehouse.mirrored_store(table)
    digest = warehouse.mirrored_digest(table, done)
    dimension = Dimension.open(store)  # only now: another run may have made and mirrored a version in between
    now, where = dimension.store.manifest, f"table {table!r} of {warehouse.describe()}"
    if mirrored is not None and now.store_id and mirrored != store_number(now.store_id):
        raise StateError(
            f"{where} follows another dimension than the one that is now at {store}: it was removed and built again, "
            "and its surrogate keys are not those that were loaded. Restore the dimension, or load into an empty "
            "warehouse with a new state"
        )
    if done >= 0:
        _check_holds(now, done, digest, store, f"{where} mirrors")
    return dimension, done


def _check_holds(now: Manifest, version: int, digest: int | None, store: Path, who: str) -> None:
    """Refuse a dimension that has gone back behind a version, or has other content at its number."""
    if Read(now.store_id, version, digest).is_part_of(now, store) is False:
        raise StateError(
            f"{who} version {version} of {store}, which is at version {now.version} and does not hold it: the "
            "dimension was set back, such as by restoring a backup, and gives surrogate keys a second time. Restore "
            "its newest copy. If that is lost, load into an empty warehouse with a new state; a decision that nothing "
            "shows yet can be taken back with `semistream undo`"
        )
