"""The one Spark job of a batch: tasks write the rows of each route into files; each returns a line about them.

Tables get to know of the files by the batch's decision. A task that is tried again, or a slow twin of one, writes files
of other names: only the lines of the attempt that Spark commits come back, and the next run removes what nothing names.
"""

import json
import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from semistream.durable import private
from semistream.errors import StateError
from semistream.pipeline.routes import FACT, FIRST, KEYS, REASON, ROUTE, UNRESOLVED
from semistream.spark.metrics import add_reports
from semistream.warehouse.contract import StagedFile

SUMMARY = "about string"  # what a task returns: one line of JSON
_COSTS = ("hits", "misses", "pages_read", "bytes_read", "peak_bytes", "cached_bytes")  # of a lookup, as decisions say


@dataclass(frozen=True)
class Route:
    """Where rows of one kind go: which columns, under which names and types, into which directory."""

    name: str
    columns: tuple[str, ...]  # of the frame, or of the constants
    schema: pa.Schema
    directory: str
    constants: dict[str, Any] = field(default_factory=dict)  # for columns that the frame has not, and for NULLs in it


@dataclass(frozen=True)
class Stage:
    """What every task does; shipped to the workers."""

    prefix: str  # of the files' names
    routes: tuple[Route, ...]
    statuses: dict[str, str]  # of each lookup, the column that tells whether a row matched
    unresolved: tuple[str, ...]  # of those, the ones whose misses the driver resolves
    identity: str | None = None  # a column that numbers input rows, where a lookup may give several rows for one
    carriers: tuple[str, ...] = ()  # columns that may be there, with the counters of lookups in a row per task

    @property
    def columns(self) -> list[str]:
        own = [ROUTE, REASON, *self.statuses.values(), *([self.identity] if self.identity else []), *self.carriers]
        return list(dict.fromkeys([*(name for route in self.routes for name in route.columns), *own]))

    def function(self, names: list[str]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        """For `mapInArrow`, on columns of these names."""
        return lambda batches: _Task(self, names).run(batches)


@dataclass
class Staged:
    """What the tasks wrote."""

    files: dict[str, list[StagedFile]]
    counts: Counter[str]  # input rows of each route
    lookups: dict[str, dict[str, int]]  # of each what matched and what did not, and what it cost
    samples: dict[str, list[str]]

    @staticmethod
    def of(lines: Iterable[Any], statuses: dict[str, str]) -> "Staged":
        """From the lines that the job returned; ``statuses`` are the stage's."""
        staged = Staged({}, Counter(), {}, {})
        abouts = [json.loads(line["about"]) for line in lines]
        for about in abouts:
            for route, file in about["files"].items():
                staged.files.setdefault(route, []).append(StagedFile(**file))
            staged.counts.update(about["counts"])
            for name, seen in about["lookups"].items():
                known = staged.lookups.get(name, {})
                staged.lookups[name] = {word: rows + known.get(word, 0) for word, rows in seen.items()}
            for route, some in about["samples"].items():
                staged.samples[route] = [*staged.samples.get(route, []), *some][:5]
        costs = add_reports(report for about in abouts for report in about["reports"])
        for name, column in statuses.items():
            if column in costs:
                staged.lookups[name] |= {word: getattr(costs[column], word) for word in _COSTS}
        for files in staged.files.values():
            files.sort(key=lambda file: file.path)
        return staged

    def look(self) -> None:
        """Refuse files that the driver does not see as the tasks wrote them, before anything relies on them."""
        for file in (file for files in self.files.values() for file in files):
            shared = "Nothing is decided. State and warehouse must be on a disk that all hosts share, at the same path"
            try:
                size = Path(file.path).stat().st_size
            except OSError as error:
                said = f"a task wrote {file.path}, and the driver cannot read it ({error.strerror})"
                raise StateError(f"{said}. {shared}") from error
            if size != file.bytes:
                raise StateError(
                    f"a task wrote {file.bytes:,} bytes to {file.path}, and the driver finds {size:,}. {shared}"
                )


class _Task:
    """One task: a writer for each route that occurs."""

    def __init__(self, stage: Stage, names: list[str]) -> None:
        from pyspark import TaskContext

        context = TaskContext.get()
        part = 0 if context is None else context.partitionId()
        self.stage = stage
        self.names = names
        self.suffix = f"{part:05d}-{uuid.uuid4().hex[:12]}"
        self.routes = {route.name: route for route in stage.routes}
        self.open: dict[str, ParquetDraft] = {}
        self.counts = Counter[str]()
        self.lookups = {name: {"matched": 0, "unmatched": 0} for name in stage.statuses}
        self.carriers = [name for name in stage.carriers if name in names]
        self.reports: set[str] = set()
        self.samples: dict[str, list[str]] = {}
        self.seen: dict[str, list[Any]] = {}

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                if batch.num_rows:
                    self._add(pa.RecordBatch.from_arrays(batch.columns, names=self.names))
            files = {route: asdict(draft.finish()) for route, draft in self.open.items()}
        except BaseException:
            for draft in self.open.values():
                draft.give_up()
            raise
        if self.stage.identity is not None:
            self._count_once()
        about = {"files": files, "counts": self.counts, "lookups": self.lookups, "samples": self.samples}
        yield pa.RecordBatch.from_pydict({"about": [json.dumps({**about, "reports": sorted(self.reports)})]})

    def _add(self, batch: pa.RecordBatch) -> None:
        stage = self.stage
        routes = pc.fill_null(batch.column(ROUTE), FACT)
        for name, column in stage.statuses.items():
            flags = batch.column(column)
            self.lookups[name]["matched"] += pc.sum(flags).as_py() or 0
            self.lookups[name]["unmatched"] += pc.sum(pc.invert(flags)).as_py() or 0
        for name in self.carriers:
            self.reports.update(batch.column(name).drop_null().to_pylist())
        missing = pa.repeat(False, batch.num_rows)
        for name in stage.unresolved:
            missing = pc.or_(missing, pc.fill_null(pc.invert(batch.column(stage.statuses[name])), False))
        for route in pc.unique(routes).to_pylist():
            chosen = pc.equal(routes, route)
            self._count(route, batch, chosen)
            if route == FACT and KEYS in self.routes:
                self._write(KEYS, batch.filter(chosen))
            if route == FACT and stage.unresolved:
                self._write(UNRESOLVED, batch.filter(pc.and_(missing, chosen)))
                chosen = pc.and_not(chosen, missing)
            if route in self.routes:
                self._write(route, batch if pc.all(chosen).as_py() else batch.filter(chosen))

    def _count(self, route: str, batch: pa.RecordBatch, chosen: pa.Array) -> None:
        if self.stage.identity is not None:
            numbers = batch.column(self.stage.identity).filter(chosen)
            self.seen.setdefault(route, []).append(np.unique(numbers.to_numpy(zero_copy_only=False)))
        else:
            self.counts[route] += pc.sum(chosen).as_py() or 0
        if route != FACT and len(self.samples.get(route, [])) < 3 and REASON in batch.schema.names:
            some = batch.column(REASON).filter(chosen).slice(0, 3).to_pylist()
            self.samples.setdefault(route, []).extend(text for text in some if text is not None)

    def _count_once(self) -> None:
        """Input rows by their route; one whose copies went different ways counts once, for the first of `FIRST`."""
        known = np.empty(0, np.int64)
        for route in sorted(self.seen, key=lambda name: FIRST.index(name.partition(":")[0])):
            new = np.setdiff1d(np.concatenate(self.seen[route]), known)
            self.counts[route] = len(new)
            known = np.concatenate([known, new])

    def _write(self, name: str, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        route = self.routes[name]
        if name not in self.open:
            directory = Path(route.directory)
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = directory / f"{self.stage.prefix}-{plain(name)}-{self.suffix}.parquet"
            self.open[name] = ParquetDraft(path, route.schema)
        columns = [
            _column(batch, column, item.type, route.constants)
            for column, item in zip(route.columns, route.schema, strict=True)
        ]
        self.open[name].write(pa.RecordBatch.from_arrays(columns, schema=route.schema))


class ParquetDraft:
    """A Parquet file that is being written: private, with checksums, and durable once it is finished."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.rows = 0
        self._file = os.fdopen(private(str(path), os.O_RDWR | os.O_CREAT | os.O_EXCL), "wb")
        self._writer = pq.ParquetWriter(self._file, schema, write_page_checksum=True)

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        self._writer.write(rows)
        self.rows += rows.num_rows

    def finish(self) -> StagedFile:
        """Close it; what was written is on the disk."""
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        size = self._file.tell()
        self._file.close()
        return StagedFile(str(self.path), self.rows, size)

    def give_up(self) -> None:
        for one in (self._writer, self._file):
            with suppress(OSError):  # what could not be written then cannot be written now
                one.close()
        self.path.unlink(missing_ok=True)


def plain(name: str) -> str:
    """A name as part of a file's name, whatever a user chose: no separators, nothing that a URL has to encode."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in name)


def _column(batch: pa.RecordBatch, name: str, kind: pa.DataType, constants: dict[str, Any]) -> pa.Array:
    if name not in batch.schema.names:
        return pa.repeat(pa.scalar(constants[name], kind), batch.num_rows)
    column = batch.column(name)
    if name in constants:
        column = pc.fill_null(column, constants[name])
    return column if column.type.equals(kind) else pc.cast(column, kind)
