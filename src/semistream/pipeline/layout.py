"""A pipeline as it runs: steps in their order with their memory, the files of each route, the schemas of all tables."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa

from semistream.errors import SchemaError
from semistream.lookup.spec import KEEPS_HOT
from semistream.pipeline import routes as names
from semistream.pipeline.decision import Masters
from semistream.pipeline.memory import Memory
from semistream.pipeline.relief import Relief
from semistream.pipeline.routes import BROKEN, FACT, QUARANTINE, REASON, ROUTE, beyond, leave, leave_by, mark_bad
from semistream.pipeline.staging import Route, Stage
from semistream.pipeline.steps.contract import Step
from semistream.pipeline.steps.lookup import GIVEN_UP, Lookup
from semistream.spark.frames import arrow_schema, quoted, spark_arrow
from semistream.spark.lookups import CrossingLookup, look_up_all
from semistream.spark.prepare import FrameFacts, prepare
from semistream.spark.spec import EnrichSpec
from semistream.warehouse.contract import Limits, Warehouse
from semistream.warehouse.schemas import stored_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from semistream.pipeline.batch import BatchId

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
    dimensions: dict[str, Path]  # tables of the warehouse, and the stores that they follow
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
        return self.table if route == FACT else f"{self.table}_{route}"

    @property
    def weight(self) -> str | None:
        """The column that says for how many rows one stands, where a sample is kept."""
        return None if self.relief is None else self.relief.shed.weight

    @property
    def carried(self) -> list[str]:
        """What is kept of a row that will go through the steps again: the source's columns, and its weight."""
        return self.original if self.weight is None else [*self.original, self.weight]

    def prepare_rows(
        self, frame: "DataFrame", versions: dict[str, int], share: float, seeds: tuple[int, ...], again: str
    ) -> "DataFrame":
        """The source's rows, with what is known of rows that were held, and a mark on those that are too many."""
        if any(one.on_miss == "hold" for one in self.lookups):
            since, expired = f"CAST(NULL AS DOUBLE) AS {names.SINCE}", f"CAST(NULL AS BOOLEAN) AS {names.EXPIRED}"
            frame = frame.selectExpr("*", since, expired)
        if self.relief is not None:
            # Others stand for a row that was shed, by their weights; it must not count again.
            frame = self.relief.mark(frame, share, versions, seeds, 0.0 if again == "reconciled" else 1.0)
        return frame

    def apply_steps(self, frame: "DataFrame", masters: Masters, taken: Iterable[str]) -> "DataFrame":
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
        for looks_up, run in itertools.groupby(enumerate(self.steps), lambda numbered: bool(numbered[1].lookups)):
            if looks_up:
                frame = self.look_up(frame, [(number, one) for number, step in run for one in step.lookups], masters)
            else:
                for _, step in run:
                    frame = step.apply(frame, self, masters)
        unfit = beyond(frame.schema, kept - set(self.original), self.limits)
        return leave_by(frame, [(when, QUARANTINE, why) for when, why in unfit])

    def look_up(self, frame: "DataFrame", lookups: Sequence[tuple[int, Lookup]], masters: Masters) -> "DataFrame":
        """Lookups side by side, with their places among the steps, done together; rows without a match get routes."""
        from pyspark.sql import functions as F

        about = FrameFacts.of(frame)
        kinds = {item.name: item.type for item in about.schema}
        asked: list[CrossingLookup] = []
        beside: dict[str, str] = {}
        for number, step in lookups:
            columns = dict(zip(names.asked_columns(number, len(step.keys)), step.keys, strict=True))
            on = dict(zip(columns, step.keys.values(), strict=True))
            if step.as_of is not None:
                columns[names.time_column(number)] = step.as_of
            foreign = [f"{name!r} of type {about.foreign[name]}" for name in columns.values() if name in about.foreign]
            if foreign:
                raise SchemaError(f"{step.name} cannot look up by column {foreign[0]}; cast it in compute(...)")
            stream = pa.schema([pa.field(name, kinds[column]) for name, column in columns.items()])
            hot = self.hot_keys / f"{quote(step.name, safe='')}.keys"
            prepared = prepare(
                replace(about, schema=stream, foreign={}),
                masters.stores.get(step.name, step.store),
                step.copy_to(
                    EnrichSpec,
                    on=on,
                    as_of=None if step.as_of is None else names.time_column(number),
                    memory=self.memory[step.name].memory_bytes,
                    master_version=masters.versions[step.name],
                    hot_keys=hot if step.algorithm in KEEPS_HOT else None,
                    transport="keys",
                    tasks_per_host=self.tasks,
                    on_miss="null",  # what becomes of a miss, and how many there may be, is the pipeline's affair
                    min_match_rate=0.0,
                ),
            )
            plan = prepared.plan
            given = tuple(step.new_name(name) for name in plan.names)
            there = [name for name in given if name in kinds]
            if there:
                raise SchemaError(f"{step.name}: there is a column {there[0]!r} already; give the new one another name")
            kinds |= {new: spark_arrow(plan.output.field(old).type) for new, old in zip(given, plan.names, strict=True)}
            if step.on_miss in ("hold", "infer"):
                beside |= columns  # held rows and members that are made need to know what was asked for
            asked.append(
                CrossingLookup.of(
                    prepared,
                    tuple(columns.values()),
                    given,
                    names.status_column(number),
                    leaves=step.leaves,
                    unless_given_up=step.on_miss == "hold" and step.then == "null",
                    refuses_null=step.on_null == "quarantine",
                )
            )
        stays = F.expr(GIVEN_UP) if any(one.unless_given_up for one in asked) else None
        found = look_up_all(frame, asked, F.col(ROUTE).isNull(), stays, names.carrier_column(lookups[0][0]))
        if beside:
            found = found.withColumns({name: F.col(quoted(column)) for name, column in beside.items()})
        return leave_by(found, [one for number, step in lookups for one in step.departures(number)])

    def make_stage(
        self, schemas: "Schemas", warehouse: Warehouse, batch: "BatchId", staging: str, started: float, *, many: bool
    ) -> Stage:
        """For one batch; files that no table gets go into ``staging``."""
        now = int(started * 1_000_000)
        stamped = {"_batch": batch.number, "_time": now}
        marked = {names.SOURCE: None, "batch": batch.number, "time": now}
        facts = tuple(schemas.taken.values())
        columns: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
            FACT: (facts, {}),
            names.UNMATCHED: ((*self.carried, REASON, *stamped), stamped),
            names.SHED: ((*self.original, *stamped), stamped),
            QUARANTINE: ((names.RECORD, names.SOURCE, REASON, "batch", "time"), marked),
        }
        routes = []
        for route, schema in schemas.tables.items():
            taken, constants = columns[route]
            routes.append(Route(route, taken, schema, str(warehouse.place(self.table_of(route))), constants))
        unresolved = [(number, one) for number, one in self.numbered if one.on_miss == "infer"]
        if unresolved:
            beside = [name for number, one in unresolved for name in names.asked_columns(number, len(one.keys))]
            beside += [names.status_column(number) for number, _ in unresolved]
            fields = [*schemas.tables[FACT], *(pa.field(name, schemas.hidden[name]) for name in beside)]
            routes.append(Route(names.UNRESOLVED, (*facts, *beside), pa.schema(fields), staging))
        for number, step in enumerate(self.steps):
            routes += step.routes(number, self, schemas, staging, started)
        return Stage(
            prefix=batch.prefix,
            routes=tuple(routes),
            statuses={one.name: names.status_column(number) for number, one in self.numbered},
            unresolved=tuple(one.name for _, one in unresolved),
            identity=names.IDENTITY if many else None,
            carriers=tuple(names.carrier_column(number) for number, _ in self.numbered),
        )

    def choose_columns(self, frame: "DataFrame", stage: Stage) -> "DataFrame":
        """Only columns that some route writes cross to Python; what tells of a bad record only where there is one."""
        record = f"to_json(struct({', '.join(map(quoted, self.original))}))"
        if BROKEN in frame.columns:
            record = f"coalesce({BROKEN}, {record})"
        told = {names.RECORD: names.kept_text(f"substring({record}, 1, {names.MOST_FIELD_BYTES})", self.limits)}
        if names.SOURCE in frame.columns:
            told[names.SOURCE] = names.SOURCE
        wanted = [quoted(name) for name in stage.columns if name in frame.columns and name not in (*told, REASON)]
        wanted.append(f"{names.kept_text(REASON, self.limits)} AS {REASON}")
        bad = f"{ROUTE} = '{QUARANTINE}'"
        return frame.selectExpr(*wanted, *[f"CASE WHEN {bad} THEN {text} END AS {name}" for name, text in told.items()])


@dataclass(frozen=True)
class Schemas:
    """What only Spark knows of a pipeline: the columns and types that its steps give."""

    tables: dict[str, pa.Schema]  # all that batches write, by the route of their rows; that of facts is the first
    taken: dict[str, str]  # column of the table of facts: column of the frame
    hidden: dict[str, pa.DataType]  # types of the columns beside a row, and of those that are carried


def analyse(layout: Layout, source: "DataFrame", masters: Masters) -> Schemas:
    """Let Spark analyse the steps once, on the source's columns, before any row comes."""
    from pyspark.errors import AnalysisException, ParseException

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
    tables = {FACT: facts}
    if layout.redirects:
        tables[names.UNMATCHED] = pa.schema([*carried, ("_reason", pa.string()), *_WHEN])
    if layout.relief is not None:
        tables[names.SHED] = pa.schema([*originals, *_WHEN])
    tables[QUARANTINE] = pa.schema(_BAD)
    hidden = {name: kinds[name] for name in frame.columns if name.startswith(names.PREFIX)}
    return Schemas(tables, taken, hidden | {item.name: item.type for item in carried})
