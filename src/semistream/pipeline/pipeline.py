"""``Pipeline``: sources, steps and a warehouse, declared; checked, run, stopped, killed and started again."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, cast

from semistream.budget import parse_bytes
from semistream.changes.duplicates import SeenKeys
from semistream.errors import ArgumentError, SchemaError, StateError, choose, local_path
from semistream.pipeline.decision import Decision
from semistream.pipeline.ledger import BATCHES, Ledger
from semistream.pipeline.memory import Memory, arrange, divide
from semistream.pipeline.relief import MOST_SECONDS
from semistream.pipeline.running import OnDecision, Running, make_batches, read_source
from semistream.pipeline.sources import Source, check_names
from semistream.pipeline.steps import check_steps
from semistream.pipeline.steps.contract import Step
from semistream.pipeline.steps.lookup import seconds_of
from semistream.shedding import Shed
from semistream.shedding.settings import checked
from semistream.shedding.shedder import memory_of
from semistream.spark.frames import arrow_schema
from semistream.spark.session import local_session
from semistream.spark.spec import check_rate
from semistream.warehouse import ForeignCheckpointError, Warehouse, query_of
from semistream.warehouse.marks import check_app

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


class Pipeline:
    """A stream's way into the warehouse."""

    def __init__(
        self,
        source: "Source | DataFrame | Callable[[SparkSession], DataFrame]",
        steps: Sequence[Step],
        sink: Warehouse,
        *,
        table: str,
        state: str | os.PathLike[str],
        name: str | None = None,
        memory: int | str = "512MB",
        required: Sequence[str] = (),
        max_bad_rate: float = 0.01,
        dimensions: Mapping[str, str | os.PathLike[str]] | None = None,
        trigger: str | None = None,
        new_columns: str = "refuse",
        shed: Shed | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Declare a pipeline; nothing happens yet.

        ``source`` is what `semistream.pipeline.source` made, a streaming DataFrame, or a function that makes one.
        ``table`` of ``sink`` gets the rows; ``{table}_unmatched`` and ``{table}_quarantine`` get those that cannot be
        loaded. ``state`` is a directory of this pipeline alone: Spark's checkpoint, the ledger, held rows. ``memory``
        is for all lookups together, an eighth of it for rows that wait and keys that are remembered. Rows in which a
        ``required`` column is NULL are bad; a batch with a larger share of bad rows than ``max_bad_rate`` stops the
        run. ``dimensions`` are {table: store}: these tables follow their stores; those that make members do so under
        the name of their store anyway. ``trigger`` is a time such as "5 seconds". ``new_columns`` of Parquet files are
        refused, or ignored ("ignore"). ``shed`` lets rows that are too many wait in ``{table}_shed`` for `reconcile`:
        those above its ``max_rows_per_second``, or those for which a batch would take longer than ``trigger`` (10
        seconds without one). ``clock`` gives the seconds since 1970: it says how fast rows come in, and how long held
        rows have waited. Relative paths are taken from the working directory of this moment.
        """
        self.source = source
        self.steps = list(steps)
        self.sink = sink
        self.table = table
        self.state = local_path("state", state).absolute()
        if self.state.exists() and not self.state.is_dir():
            raise ArgumentError(f"state={str(self.state)!r} is a file; give a directory")
        self.name = check_app(name or table)
        self.memory = parse_bytes(memory)
        self.driver_memory = max(1, self.memory // 8)  # bytes, for rows and keys that the driver reads, where it does
        if isinstance(required, str):
            raise ArgumentError(f"required={required!r} must be a list of names, for example [{required!r}]")
        self.required = tuple(required)
        self.max_bad_rate = max_bad_rate
        self.dimensions = {key: local_path("dimensions", path).absolute() for key, path in (dimensions or {}).items()}
        self.trigger = trigger
        self.new_columns = choose("new_columns", new_columns, ("refuse", "ignore"))
        self.shed = None if shed is None else checked(shed, own_place=False)
        self.clock = clock
        # How long a batch should take at most, where rows may be shed.
        self.most_seconds = MOST_SECONDS if trigger is None else seconds_of(trigger, "trigger")
        check_rate("max_bad_rate", max_bad_rate, 0.01)

    @property
    def checkpoint(self) -> Path:
        """Spark's checkpoint."""
        return self.state / "checkpoint"

    @property
    def log(self) -> Path:
        """Where the stack of an error goes, and what a session prints that the pipeline started."""
        return self.state / "run.log"

    def columns(self) -> "pa.Schema | None":
        """The source's columns, as far as they are known without Spark."""
        if isinstance(self.source, Source):
            return self.source.columns()
        if hasattr(self.source, "schema"):
            return arrow_schema(cast("DataFrame", self.source))[0]
        return None

    def mirrored(self) -> dict[str, Path]:
        """The dimensions that have a table in the warehouse: {table: store}."""
        found = {one.name: one.store for step in self.steps for one in step.lookups if one.is_dimension}
        for table, store in self.dimensions.items():
            if found.setdefault(table, store) != store:
                raise ArgumentError(
                    f"dimensions: table {table!r} would follow both {store} and {found[table]}; give one of them "
                    "another name"
                )
        return found

    def _check_tables(self) -> None:
        """Every table has a name of its own that the warehouse can keep; upper and lower case are the same to many."""
        known: dict[str, str] = {}
        beside = ((f"{self.table}_{part}", f"{part} rows") for part in ("unmatched", "shed", "quarantine"))
        dimensions = ((name, f"dimension {store}") for name, store in self.mirrored().items())
        for table, rows in ((self.table, "facts"), *beside, *dimensions):
            what = f"the table of {rows}"
            self.sink.check_table(table)
            other = known.setdefault(table.casefold(), what)
            if other != what:
                raise ArgumentError(
                    f"{table!r} would be both {other} and {what}; give the step or the dimension another name, or the "
                    "sink another table"
                )

    def validate(self) -> None:
        """Raise for what is wrong with source, steps, required columns and names of tables."""
        columns = self.columns()
        if columns is not None:
            check_names(columns.names)
            if self.shed is not None:
                self.shed.widened(columns)
        check_steps(self.steps, columns)
        for name in self.required:
            if columns is not None and name not in columns.names:
                said = f"the source has no column {name!r}; it has {columns.names}"
                raise SchemaError(f"required={list(self.required)}: {said}")
        self._check_tables()

    def check(self) -> list[str]:
        """Check everything that can be checked without Spark; returns what it will do, a line each."""
        self.validate()
        memory = self.divide_memory(None, 2)
        lines = [line for step in arrange(self.steps, memory, {}) for line in step.describe(memory)]
        if self.shed is not None:
            rate = self.shed.max_rows_per_second
            slow = f"where a batch would take more than {self.most_seconds:g} s"
            above = f"above {rate:,.0f} rows/s" if rate else slow
            lines.insert(0, f"shed by {self.shed.strategy} into {self.table}_shed, {above}")
        return [*lines, f"into {self.table} of {self.sink.describe()}"]

    def start(
        self,
        spark: "SparkSession | None" = None,
        *,
        once: bool = False,
        replaces: str | None = None,
        told: OnDecision | None = None,
    ) -> Running:
        """Start the stream; returns at once. ``once`` loads what is there and ends."""
        running = self._recovered(spark, once=once, replaces=replaces, told=told)
        try:
            running.start()
        except BaseException:
            running.stop()
            raise
        return running

    def run(
        self,
        spark: "SparkSession | None" = None,
        *,
        once: bool = False,
        replaces: str | None = None,
        told: OnDecision | None = None,
    ) -> Decision | None:
        """Start the stream and wait until it ends, or for ever; the last decision."""
        running = self.start(spark, once=once, replaces=replaces, told=told)
        try:
            running.wait()
        finally:
            running.stop()
        return running.last

    def retry(self, spark: "SparkSession | None" = None) -> Decision | None:
        """Send the unmatched rows through the steps again: those that match now are loaded, once; the others stay."""
        return self._again(spark, Running.retry)

    def reconcile(self, spark: "SparkSession | None" = None) -> Decision | None:
        """Send the shed rows through the steps, each once: the warehouse is then as if none had been shed."""
        return self._again(spark, Running.reconcile)

    def undo(self, batch: int | None = None) -> Decision:
        """Withdraw the last decision, if no table shows anything of it: the way out when it cannot be carried out.

        Its rows come again, from where they came: Spark's next run, the held rows, or the table they wait in.
        ``batch`` is the number that the decision must have.
        """
        ledger = Ledger(self.state, self.name)
        ledger.open()
        with closing(ledger):
            return ledger.undo(self.sink, self.checkpoint, batch)

    def _again(self, spark: "SparkSession | None", work: Callable[[Running], Decision | None]) -> Decision | None:
        if not self._has_checkpoint:
            raise StateError(f"{self.state} has no checkpoint, so nothing was loaded that could be tried again")
        running = self._recovered(spark, once=True)
        try:
            return work(running)
        finally:
            running.stop()

    def _recovered(
        self, spark: "SparkSession | None", *, once: bool, replaces: str | None = None, told: OnDecision | None = None
    ) -> Running:
        """At work, with what was decided before carried out, and no stream yet."""
        self.validate()
        ledger = Ledger(self.state, self.name)
        ledger.open()
        try:
            self._check_checkpoint(ledger, replaces)
            spark = spark or local_session(self.name, f"local[{os.cpu_count() or 2}]", log=self.log)
            frame, source = read_source(self, spark)
            batches = make_batches(self, ledger, frame)
            running = Running(
                self, ledger, once, replaces, told or (lambda _: None), source, frame, batches, ledger.newest()
            )
            running.recover()
        except BaseException:
            ledger.close()
            raise
        return running

    @property
    def _has_checkpoint(self) -> bool:
        return (self.checkpoint / "metadata").exists()

    def _check_checkpoint(self, ledger: Ledger, replaces: str | None) -> None:
        if self._has_checkpoint:
            ledger.check_owner(query_of(self.checkpoint), replaces=replaces)
        elif ledger.last(BATCHES) is not None and replaces is None:
            raise ForeignCheckpointError(
                f"the checkpoint of {self.name!r} is gone ({self.checkpoint}), with which batches up to "
                f"{ledger.last(BATCHES)} were loaded. Spark would begin anew and load them again. Restore it, or start "
                "with a new state directory and an empty table; if only new rows come in, use --replaces "
                f"{ledger.owner}"
            )

    def divide_memory(self, seen: SeenKeys | None, tasks: int) -> Memory:
        """The memory of each lookup, when so many tasks run at once."""
        claims = [claim for step in self.steps if (claim := step.claim(seen)) is not None]
        beside = 0 if self.shed is None else memory_of(self.shed, self.memory, tasks)[0]
        if any(step.in_driver for step in self.steps):
            beside += self.driver_memory
        return divide(claims, self.memory - beside, tasks)
