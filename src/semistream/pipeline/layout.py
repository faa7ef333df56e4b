"""A pipeline as it runs: steps in their order with their memory, and the schemas of all tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pyarrow as pa

from semistream.errors import SchemaError
from semistream.pipeline import columns as names
from semistream.pipeline.dimensions import Mirrored
from semistream.pipeline.masters import Masters
from semistream.pipeline.memory import Memory
from semistream.pipeline.relief import Relief
from semistream.pipeline.routes import beyond, leave, leave_by, mark_bad
from semistream.pipeline.steps.contract import Step
from semistream.pipeline.steps.lookup import Lookup, PlacedLookup, look_up
from semistream.spark.frames import quoted
from semistream.warehouse.contract import Limits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TIME = pa.timestamp("us", tz="UTC")
_BAD = [*((name, pa.string()) for name in ("record", "source", "reason")), ("batch", pa.int64()), ("time", _TIME)]
_WHEN = [("_batch", pa.int64()), ("_time", _TIME)]


@dataclass(frozen=True)
class Layout:
    """All that is declared, as a batch needs it."""

    table: str
    steps: tuple[Step, ...]
    memory: Memory
    original: list[str]  # the source's columns
    required: tuple[str, ...]
    max_bad_rate: float
    tasks: int
    driver_memory: int  # bytes, for what the driver reads: rows that wait, keys, rows whose members are made
    dimensions: tuple[Mirrored, ...]
    relief: Relief | None
    limits: Limits  # of what the warehouse's columns keep
    hot_keys: Path  # the directory of the files in which hot keys are kept between runs

    @property
    def numbered(self) -> list[tuple[int, Lookup]]:
        """The lookups, with their places among the steps."""
        return [(number, one) for number, step in enumerate(self.steps) for one in step.lookups]

    @property
    def lookups(self) -> list[Lookup]:
        return [one for _, one in self.numbered]

    @property
    def redirects(self) -> bool:
        """May rows go into the table of unmatched rows?"""
        return any(one.redirects for one in self.lookups)

    def table_of(self, route: str) -> str:
        """The warehouse's table for the rows of a route: that of facts, or one beside it that the route names."""
        return self.table if route == names.FACT else f"{self.table}_{route}"

    @property
    def weight(self) -> str | None:
        """The column that says for how many rows one stands, where a sample is kept."""
        return None if self.relief is None else self.relief.shed.weight

    @property
    def carried(self) -> list[str]:
        """What is kept of a row that will go through the steps again: the source's columns, and its weight."""
        return self.original if self.weight is None else [*self.original, self.weight]

    def prepare_rows(
        self, frame: DataFrame, versions: dict[str, int], share: float, seeds: tuple[int, ...], again: str
    ) -> DataFrame:
        """The source's rows, with what is known of rows that were held, and a mark on those that are too many."""
        if any(one.on_miss == "hold" for one in self.lookups):
            since, expired = f"CAST(NULL AS DOUBLE) AS {names.SINCE}", f"CAST(NULL AS BOOLEAN) AS {names.EXPIRED}"
            frame = frame.selectExpr("*", since, expired)
        if self.relief is not None:
            # Others stand for a row that was shed, by their weights; it must not count again.
            frame = self.relief.mark(frame, share, versions, seeds, 0.0 if again == "reconciled" else 1.0)
        return frame

    def apply_steps(self, frame: DataFrame, masters: Masters, taken: Iterable[str]) -> DataFrame:
        """All steps; the table gets the columns ``taken``."""
        from pyspark.sql import functions as F

        if masters.many:
            frame = frame.withColumn(names.IDENTITY, F.monotonically_increasing_id())
        if self.weight is not None:  # rows that were held before there were weights have none
            frame = frame.withColumn(self.weight, F.coalesce(F.col(quoted(self.weight)), F.lit(1.0)))
        # Columns that some table of the warehouse gets, those of members that are made among them.
        aside = self.original if self.redirects or self.relief is not None else []
        kept = {*taken, *aside, *(name for one in self.lookups if one.on_miss == "infer" for name in one.keys)}
        unfit = beyond(frame.schema, [name for name in self.original if name in kept], self.limits)
        frame = mark_bad(frame, self.original, self.required, unfit)
        if names.TOO_MANY in frame.columns:
            frame = leave(frame, names.TOO_MANY, names.SHED)
        side_by_side: list[PlacedLookup] = []
        for number, step in enumerate(self.steps):
            for one in step.lookups:
                store, memory = masters.stores.get(one.name, one.store), self.memory[one.name].memory_bytes
                hot = self.hot_keys / f"{quote(one.name, safe='')}.arrow"
                side_by_side.append(PlacedLookup(one, number, store, masters.versions[one.name], memory, hot))
            if not step.lookups:
                frame = look_up(frame, side_by_side, self.tasks)
                side_by_side = []
                frame = step.apply(frame, self, masters)
        frame = look_up(frame, side_by_side, self.tasks)
        unfit = beyond(frame.schema, kept - set(self.original), self.limits)
        return leave_by(frame, [(when, names.QUARANTINE, why) for when, why in unfit])


@dataclass(frozen=True)
class Schemas:
    """What only Spark knows of a pipeline: the columns and types that its steps give."""

    tables: dict[str, pa.Schema]  # all that batches write, by the route of their rows; that of facts is the first
    taken: dict[str, str]  # column of the table of facts: column of the frame
    hidden: dict[str, pa.DataType]  # types of the columns beside a row, and of those that are carried


def analyse(layout: Layout, source: DataFrame, masters: Masters) -> Schemas:
    """Let Spark analyse the steps once, on the source's columns, before any row comes."""
    from pyspark.errors import AnalysisException, ParseException

    from semistream.spark.frames import arrow_schema
    from semistream.warehouse.schemas import stored_schema

    try:
        rows = layout.prepare_rows(source, masters.versions, 1.0, (), "")
        frame = layout.apply_steps(rows, masters, ())
    except (AnalysisException, ParseException) as error:
        raise SchemaError(f"a step cannot be computed: {str(error).partition(chr(10))[0]}") from error
    visible = [name for name in frame.columns if not name.startswith(names.PREFIX)]
    # The columns of the table of facts: those that a step says, or all.
    taken = next((step.table for step in layout.steps if step.table is not None), {name: name for name in visible})
    if layout.weight is not None and layout.weight not in taken.values():
        taken = {**taken, layout.weight: layout.weight}  # without it sums over a sample say nothing
    unknown = [name for name in taken.values() if name not in visible]
    if unknown:
        raise SchemaError(f"select: there is no column {unknown[0]!r}; there are {visible}")
    found, foreign = arrow_schema(frame)
    for name in [*taken.values(), *layout.original]:
        if name in foreign:
            raise SchemaError(f"column {name!r} of type {foreign[name]} cannot be loaded; cast it in compute(...)")
    kinds = {item.name: item.type for item in found}
    facts = stored_schema(pa.schema([pa.field(new, kinds[old]) for new, old in taken.items()]))
    originals = stored_schema(pa.schema([pa.field(name, kinds[name]) for name in layout.original]))
    carried = [*originals, *([pa.field(layout.weight, pa.float64())] if layout.weight is not None else [])]
    tables = {names.FACT: facts}
    if layout.redirects:
        tables[names.UNMATCHED] = pa.schema([*carried, ("_reason", pa.string()), *_WHEN])
    if layout.relief is not None:
        tables[names.SHED] = pa.schema([*originals, *_WHEN])
    tables[names.QUARANTINE] = pa.schema(_BAD)
    hidden = {name: kinds[name] for name in frame.columns if name.startswith(names.PREFIX)}
    return Schemas(tables, taken, hidden | {item.name: item.type for item in carried})
