"""A pipeline in the shape in which it runs: steps in their order, schemas of all tables, and a batch as a DataFrame."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from semistream.errors import SchemaError
from semistream.pipeline import columns as names
from semistream.pipeline import frames
from semistream.pipeline.decision import Read
from semistream.pipeline.held import EXPIRED, SINCE
from semistream.pipeline.ledger import Ledger
from semistream.pipeline.limits import as_text, beyond
from semistream.pipeline.order import SEEN, Share
from semistream.pipeline.relief import Relief
from semistream.pipeline.routes import stage_of
from semistream.pipeline.staging import Stage
from semistream.pipeline.steps import Compute, Deduplicate, Keep, Lookup, Select, Step
from semistream.spark.frames import quoted
from semistream.spark.lookups import reported
from semistream.stores import MasterStore
from semistream.stores.paged.manifest import Manifest
from semistream.warehouse.contract import Limits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from semistream.changes.duplicates import SeenKeys
    from semistream.pipeline.batch import Job
    from semistream.warehouse.contract import Warehouse

QUARANTINE = pa.schema(
    {
        "record": pa.string(),
        "source": pa.string(),
        "reason": pa.string(),
        "batch": pa.int64(),
        "time": pa.timestamp("us", tz="UTC"),
    }
)
_WHEN = {"_batch": pa.int64(), "_time": pa.timestamp("us", tz="UTC")}
_WHY = {"_reason": pa.string(), **_WHEN}


@dataclass(frozen=True)
class Mirrored:
    """A dimension whose table in the warehouse follows its store."""

    table: str
    store: Path


@dataclass(frozen=True)
class Shape:
    """All that a batch needs to know; see `shaped`."""

    table: str
    steps: tuple[Step, ...]
    shares: dict[str, Share]
    original: list[str]  # the source's columns
    required: tuple[str, ...] = ()
    max_bad_rate: float = 0.01
    tasks: int = 2
    dimensions: tuple[Mirrored, ...] = ()
    relief: Relief | None = None
    facts: pa.Schema = field(default_factory=lambda: pa.schema([]))
    taken: dict[str, str] = field(default_factory=dict)  # column of the table: column of the frame
    unmatched: pa.Schema | None = None
    shed: pa.Schema | None = None
    quarantine: pa.Schema = QUARANTINE
    hidden: dict[str, pa.DataType] = field(default_factory=dict)  # types of the columns beside a row
    limits: Limits = field(default_factory=Limits)  # of what the warehouse's columns keep
    many: bool = False  # may a lookup give several rows for one?
    stores: dict[str, MasterStore] = field(default_factory=dict)  # opened, at the versions that a batch reads

    @property
    def lookups(self) -> list[Lookup]:
        """The lookups, in their order."""
        return [step for step in self.steps if isinstance(step, Lookup)]

    @property
    def holds(self) -> bool:
        """May rows have to wait?"""
        return any(one.on_miss == "hold" for one in self.lookups)

    @property
    def unmatched_table(self) -> str:
        """Rows that a lookup redirected."""
        return f"{self.table}_unmatched"

    @property
    def shed_table(self) -> str:
        """Rows that were too many."""
        return f"{self.table}_shed"

    @property
    def weight(self) -> str | None:
        """The column that says for how many rows one stands, where a sample is kept."""
        return None if self.relief is None else self.relief.shed.weight

    @property
    def carried(self) -> list[str]:
        """What is kept of a row that will go through the steps again: the source's columns, and its weight."""
        return [*self.original, *([self.weight] if self.weight is not None else [])]

    @property
    def tables(self) -> dict[str, pa.Schema]:
        """All tables that batches write."""
        aside = {self.unmatched_table: self.unmatched, self.shed_table: self.shed}
        there = {name: schema for name, schema in aside.items() if schema is not None}
        return {self.table: self.facts, **there, self.quarantine_table: self.quarantine}

    @property
    def quarantine_table(self) -> str:
        """Records that could not be read or must not be loaded."""
        return f"{self.table}_quarantine"

    @property
    def deduplicates(self) -> Deduplicate | None:
        """The step that lets only the first row of a business key through."""
        return next((step for step in self.steps if isinstance(step, Deduplicate)), None)

    def reading(self, stores: dict[str, MasterStore]) -> Shape:
        """The same for a batch that reads these versions: in another one a key may have got a second row."""
        many = any(one.multiple == "all" and not stores[one.name].unique for one in self.lookups)
        return replace(self, many=many, stores=stores)

    def newest(self, seen: SeenKeys | None) -> dict[str, Read]:
        """The newest version of every master that is looked up."""
        found = {one.name: Read.of(Manifest.load(one.store)) for one in self.lookups}
        return found | ({SEEN: Read.of(seen.store.latest())} if seen is not None else {})

    def newest_versions(self, seen: SeenKeys | None) -> dict[str, int]:
        """Their numbers alone."""
        return {name: one.number for name, one in self.newest(seen).items()}

    def mirrored_versions(self) -> dict[str, int]:
        """Of every dimension that has a table in the warehouse."""
        return {one.table: Manifest.load(one.store).version for one in self.dimensions}

    def begun(
        self,
        frame: DataFrame,
        versions: dict[str, int],
        share: float = 1.0,
        seeds: tuple[int, ...] = (),
        again: str = "",
    ) -> DataFrame:
        """The source's rows, with what is known of rows that were held, and a mark on those that are too many."""
        if self.holds:
            frame = frame.selectExpr("*", f"CAST(NULL AS DOUBLE) AS {SINCE}", f"CAST(NULL AS BOOLEAN) AS {EXPIRED}")
        if self.relief is not None:
            # Others stand for a row that was shed, by their weights; it must not count again.
            frame = self.relief.begun(frame, share, versions, seeds, 0.0 if again == "reconciled" else 1.0)
        return frame

    def frame(
        self, frame: DataFrame, versions: dict[str, int], seen: Path | None, reports: Path | None = None
    ) -> DataFrame:
        """All steps; tasks leave what the lookups cost in ``reports``."""
        from pyspark.sql import functions as F

        if self.many:
            frame = frame.withColumn(names.IDENTITY, F.monotonically_increasing_id())
        if self.weight is not None:  # rows that were held before there were weights have none
            frame = frame.withColumn(self.weight, F.coalesce(F.col(quoted(self.weight)), F.lit(1.0)))
        kept = self._kept
        unfit = beyond(frame.schema, [name for name in self.original if name in kept], self.limits)
        frame = frames.shed(frames.begun(frame, self.original, self.required, unfit))
        side_by_side: list[frames.Numbered] = []
        for number, step in enumerate(self.steps):
            if isinstance(step, Lookup):
                memory = self.shares[step.name].memory_bytes
                store = self.stores.get(step.name, step.store)
                side_by_side.append(frames.Numbered(step, number, store, versions[step.name], memory))
                continue
            frame = frames.looked_up(frame, side_by_side, self.tasks, reports)
            side_by_side = []
            if isinstance(step, Deduplicate):
                assert seen is not None
                memory = self.shares[SEEN].memory_bytes
                frame = frames.deduplicated(frame, step, self.original, seen, versions[SEEN], memory, self.tasks)
            elif isinstance(step, Compute):
                frame = frames.computed(frame, step)
            elif isinstance(step, Keep):
                frame = frames.kept(frame, step)
        frame = frames.looked_up(frame, side_by_side, self.tasks, reports)
        return frames.fitting(frame, beyond(frame.schema, kept - set(self.original), self.limits))

    @property
    def _kept(self) -> set[str]:
        """Columns that some table of the warehouse gets, those of members that are made among them."""
        aside = self.original if self.unmatched is not None or self.shed is not None else []
        members = [name for one in self.lookups if one.on_miss == "infer" for name in one.on]
        return {*self.taken.values(), *aside, *members}

    def computed(
        self,
        frame: DataFrame,
        versions: dict[str, int],
        ledger: Ledger,
        warehouse: Warehouse,
        job: Job,
        started: float,
    ) -> tuple[DataFrame, Stage]:
        """The steps and what the tasks do with the rows: for one batch."""
        seen = ledger.root / "seen" if self.deduplicates else None
        frame = self.frame(frame, versions, seen, ledger.staging(job.label))
        stage = stage_of(self, ledger, warehouse, job, started)
        # Only the columns that some route writes cross to Python; what tells of a bad record only where there is one.
        record = f"to_json(struct({', '.join(map(quoted, self.original))}))"
        if names.BROKEN in frame.columns:
            record = f"coalesce({names.BROKEN}, {record})"
        told = {names.RECORD: as_text(f"substring({record}, 1, {frames.MOST_FIELD_BYTES})", self.limits)}
        if names.SOURCE in frame.columns:
            told[names.SOURCE] = names.SOURCE
        wanted = [quoted(name) for name in stage.columns if name in frame.columns and name not in (*told, names.REASON)]
        wanted.append(f"{as_text(names.REASON, self.limits)} AS {names.REASON}")
        bad = f"{names.ROUTE} = '{names.QUARANTINE}'"
        frame = frame.selectExpr(
            *wanted, *[f"CASE WHEN {bad} THEN {text} END AS {name}" for name, text in told.items()]
        )
        return frame, replace(stage, names=tuple(frame.columns))

    def costs(self, staging: Path) -> dict[str, dict[str, int]]:
        """What the lookups of a batch cost, by their names."""
        found = reported(staging)
        kept = ("hits", "misses", "pages_read", "bytes_read", "peak_bytes", "cached_bytes")
        stats = {
            one.name: found.get(names.status_column(n)) for n, one in enumerate(self.steps) if isinstance(one, Lookup)
        }
        return {name: {word: getattr(one, word) for word in kept} for name, one in stats.items() if one is not None}


def shaped(shape: Shape, source: DataFrame, seen: Path | None) -> Shape:
    """Fill in the schemas: the steps are analysed by Spark once, on the source's columns, before any row comes."""
    from pyspark.errors import AnalysisException, ParseException

    from semistream.spark.prepare import arrow_schema
    from semistream.warehouse.schemas import stored_schema

    try:
        versions = shape.newest_versions(None) | ({SEEN: Manifest.versions(seen)[-1]} if seen is not None else {})
        frame = shape.frame(shape.begun(source, versions), versions, seen)
    except (AnalysisException, ParseException) as error:
        raise SchemaError(f"a step cannot be computed: {str(error).partition(chr(10))[0]}") from error
    chosen = next((step.columns for step in shape.steps if isinstance(step, Select)), None)
    visible = [name for name in frame.columns if not name.startswith(names.PREFIX)]
    taken = chosen if chosen is not None else {name: name for name in visible}
    if shape.weight is not None and shape.weight not in taken.values():
        taken = {**taken, shape.weight: shape.weight}  # without it sums over a sample say nothing
    unknown = [name for name in taken.values() if name not in visible]
    if unknown:
        raise SchemaError(f"select: there is no column {unknown[0]!r}; there are {visible}")
    found, foreign = arrow_schema(frame)
    for name in [*taken.values(), *shape.original]:
        if name in foreign:
            raise SchemaError(f"column {name!r} of type {foreign[name]} cannot be loaded; cast it in compute(...)")
    kinds = {item.name: item.type for item in found}
    facts = stored_schema(pa.schema([pa.field(new, kinds[old]) for new, old in taken.items()]))
    originals = stored_schema(pa.schema([pa.field(name, kinds[name]) for name in shape.original]))
    redirects = any(
        one.on_miss == "redirect" or (one.on_miss == "hold" and one.then == "redirect") for one in shape.lookups
    )
    carried = [*originals, *([pa.field(shape.weight, pa.float64())] if shape.weight is not None else [])]
    hidden = {name: kinds[name] for name in frame.columns if name.startswith(names.PREFIX)} | {
        item.name: item.type for item in carried
    }
    return replace(
        shape,
        facts=facts,
        taken=taken,
        unmatched=pa.schema([*carried, *_WHY.items()]) if redirects else None,
        shed=pa.schema([*originals, *_WHEN.items()]) if shape.relief is not None else None,
        hidden=hidden,
    )
