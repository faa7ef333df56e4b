"""One batch: pin, compute once, decide, carry out. The only module that knows the order of these four.

pin         which version of each master the batch reads; a replay reads the same
compute     one Spark job writes the rows of every route into files; nobody sees them yet
decide      new surrogate keys, held rows, the accounting; all that the decision needs is looked at, in the warehouse
            too; then it is written, whole or not at all
carry out   dimensions, then all tables, then the keys that were loaded; each passes over what it holds already
"""

import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from semistream.budget import Budget
from semistream.changes.duplicates import SeenKeys
from semistream.durable import sync_directory
from semistream.errors import AccountingError, BadRecordsError, MatchRateError, StateError, UnmatchedRowError
from semistream.failpoints import reach
from semistream.pipeline import routes as names
from semistream.pipeline.decision import CAME, COUNTS, WAITED, WENT, Decision, Masters, Read, find_newest
from semistream.pipeline.dimensions import check_mirror, mirror, resolve
from semistream.pipeline.held import Held, Released, new_held_file, read_granted
from semistream.pipeline.layout import Layout, Schemas
from semistream.pipeline.ledger import BATCHES, PINS, Ledger
from semistream.pipeline.staging import SUMMARY, Staged, plain
from semistream.stores import MasterStore
from semistream.stores.paged.manifest import Manifest
from semistream.warehouse import StaleWriterError
from semistream.warehouse.contract import BatchWrites, Warehouse, Write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class BatchId:
    """A batch of Spark's, or work beside it, with a number of its own."""

    kind: str
    number: int
    app: str
    query: str

    @property
    def label(self) -> str:
        return f"{'b' if self.kind == BATCHES else 's'}{self.number:09d}"

    @property
    def prefix(self) -> str:
        """With which the names of files begin that it writes beside a warehouse's tables."""
        return plain(f"{self.app}-{self.query[:8]}-{self.label}")


@dataclass
class Batches:
    """Runs the batches of one pipeline, in one driver."""

    layout: Layout
    schemas: Schemas
    ledger: Ledger
    warehouse: Warehouse
    seen: SeenKeys | None
    clock: Callable[[], float]
    _stores: dict[str, MasterStore] = field(default_factory=dict)
    # Dimensions as they were when it was checked that their tables can follow.
    _mirrored: dict[str, Read] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._budget = self._new_budget()

    def run(self, frame: "DataFrame", batch: BatchId, *, again: str = "", share: float = 1.0) -> Decision:
        """Do a batch, finish it, or find it done. Of its rows a ``share`` goes on; ``again`` is a key of `WAITED`."""
        decision = self.ledger.decided(batch.kind, batch.number)
        fresh = decision is None
        if decision is None:
            self.ledger.check_not_moved(batch.kind, batch.number)
            decision = self._decide(frame, batch, self.clock(), again, share)
            self.warehouse.ready(decision.writes)
            self.ledger.decide(batch.kind, batch.number, decision)
            self._budget = self._new_budget()
        if not self.carry_out(decision, fresh=fresh):
            self.ledger.withdraw(batch.kind, batch.number)  # nothing of it was written
            raise StaleWriterError(
                f"batch {batch.number} of {batch.app!r} was in {self.warehouse.describe()} already when this driver "
                "had decided it: another copy of the state works on the same tables. Stop one of the two"
            )
        shutil.rmtree(self._staging(batch), ignore_errors=True)
        return decision

    def _staging(self, batch: BatchId) -> Path:
        """A directory for files of a batch that is not decided."""
        return self.ledger.root / "staging" / batch.label

    def held(self, last: Decision | None) -> Held:
        """The rows that wait, as the last decision left them."""
        return Held(last.held if last else (), self.layout.lookups, self.layout.carried, self._budget)

    def _new_budget(self) -> Budget:
        """For all that this driver reads from one decision to the next: rows that wait, members, keys."""
        budget = Budget(self.layout.driver_memory)
        budget.require("lists of keys seen", 0 if self.seen is None else self.seen.listed_bytes)
        return budget

    # -- compute and decide ----------------------------------------------------------------------------------------

    def _decide(self, frame: "DataFrame", batch: BatchId, started: float, again: str, share: float) -> Decision:
        began = time.monotonic()
        layout = self.layout
        pinned = self.ledger.pin(batch.kind, batch.number, find_newest(layout.lookups, self.seen))
        reach("after_pin")
        before = self.ledger.newest()
        staging = self._staging(batch)
        staging.mkdir(parents=True, exist_ok=True, mode=0o700)
        masters = self._open(pinned, batch)
        released = self.held(before).release(masters.stores, before.read if before else {}, started, staging)
        seeds = (uuid.UUID(batch.query).int, batch.number)
        rows = layout.prepare_rows(frame, masters.versions, share, seeds, again)
        rows_in, staged = self._compute(rows, batch, masters, released, started)
        reach("after_staging")
        staged.look()
        counts = _counts({**dict.fromkeys(CAME, 0), again or "rows_in": rows_in, "released": released.rows}, staged)
        try:
            self._check(batch, counts, staged)
        except (UnmatchedRowError, MatchRateError):
            self.ledger.unpin(batch.kind, batch.number)  # it is the master that has to be mended
            raise
        self.check_dimensions()
        if unresolved := staged.files.get(names.UNRESOLVED):
            place, prefix = self.warehouse.place(layout.table), f"{batch.prefix}-{names.FACT}"
            facts = resolve(layout, self.schemas, unresolved, place, prefix, self._budget)
            staged.files.setdefault(names.FACT, []).extend(facts)
        dimensions = {table: Read.of(Manifest.load(store)) for table, store in layout.dimensions.items()}
        segments = list(released.left)
        for route, files in staged.files.items():
            kind, _, master = route.partition(":")
            if kind == names.HELD:
                segments += [new_held_file(master, file) for file in files]
        segments = [replace(segment, path=self._keep(segment.path)) for segment in segments]
        seen = tuple(self._keep(file.path) for file in staged.files.get(names.KEYS, []))
        writes = self._writes(staged, again)
        # The files are durable, each by itself; their names must be too before a decision relies on them.
        for directory in (self.ledger.root / "held", *(self.warehouse.place(one.table) for one in writes)):
            sync_directory(directory)
        return Decision(
            writes=BatchWrites(batch.app, batch.query, batch.number, writes),
            masters=masters.versions,
            counts=counts,
            lookups=staged.lookups,
            totals=_totals(before, counts),
            held=tuple(segments),
            seen=seen,
            dimensions={table: one.number for table, one in dimensions.items()},
            dimension_digests={table: one.digest for table, one in dimensions.items() if one.digest is not None},
            seconds=time.monotonic() - began,  # the clock may be set back meanwhile
            started_at=started,
            decided_at=self.clock(),
            sequence=before.sequence + 1 if before else 0,
            stores={name: one.store for name, one in pinned.items()},
            digests={name: one.digest for name, one in pinned.items() if one.digest is not None},
            driver_bytes=self._budget.peak,
        )

    def check_dimensions(self) -> None:
        """Refuse dimensions whose tables cannot follow them, before members are made and a decision depends on it."""
        for table, store in self.layout.dimensions.items():
            newest = Read.of(Manifest.load(store))
            if self._mirrored.get(table) != newest:
                check_mirror(self.warehouse, table, store)
                self._mirrored[table] = newest

    def _open(self, pinned: dict[str, Read], batch: BatchId) -> Masters:
        """The masters at these versions. One that has not changed stays open: its index need not be read again."""
        for one in self.layout.lookups:
            wanted = pinned[one.name]
            there = Read.of(Manifest.load(one.store, wanted.number))
            if there != (wanted if wanted.digest is not None else wanted._replace(digest=there.digest)):
                raise StateError(
                    f"batch {batch.number} was begun with version {wanted.number} of {one.store}, which has been "
                    "removed and built again since, or restored from a backup and changed: the batch cannot give the "
                    f"same rows. Restore the store, or delete {self.ledger.path(PINS, batch.number)} to begin the "
                    "batch again with the new one"
                )
            if one.name not in self._stores or Read.of(self._stores[one.name]) != there:
                self._stores.pop(one.name, None)  # first, so that both are never in memory
                self._stores[one.name] = MasterStore.open(one.store, wanted.number)
        return Masters(
            versions={name: one.number for name, one in pinned.items()},
            seen=None if self.seen is None else self.seen.store.path,
            stores=dict(self._stores),
            many=any(one.multiple == "all" and not self._stores[one.name].unique for one in self.layout.lookups),
        )

    def _compute(
        self, frame: "DataFrame", batch: BatchId, masters: Masters, released: Released, started: float
    ) -> tuple[int, Staged]:
        from py4j.protocol import Py4JJavaError
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        seen, came = Observation("rows"), frame
        frame = frame.observe(seen, F.count(F.lit(1)).alias("rows"))
        if released.files:
            again = frame.sparkSession.read.parquet(*released.files)
            frame = frame.unionByName(again, allowMissingColumns=True)
        frame = self.layout.apply_steps(frame, masters, self.schemas.taken.values())
        stage = self.layout.make_stage(
            self.schemas, self.warehouse, batch, str(self._staging(batch)), started, many=masters.many
        )
        frame = self.layout.choose_columns(frame, stage)
        lines = frame.mapInArrow(stage.function(frame.columns), SUMMARY).collect()
        try:
            rows = int(seen.get["rows"])
        except Py4JJavaError:  # Spark saw that there is nothing to compute, and left the count out too
            rows = came.count()
        return rows, Staged.of(lines, stage.statuses)

    def _check(self, batch: BatchId, counts: dict[str, int], staged: Staged) -> None:
        """What the user demanded of a batch; nothing of one that fails is written."""
        bad, rows = counts["quarantined"], counts["rows_in"]
        if failed := staged.counts[names.FAILED]:
            some = "; ".join(staged.samples.get(names.FAILED, []))
            raise UnmatchedRowError(
                f"on_miss='fail': {failed:,} of {rows:,} rows of batch {batch.number} have no match "
                f"({some}). Nothing is written. Add the missing rows to the master, or choose another on_miss"
            )
        if rows and bad / rows > self.layout.max_bad_rate:
            some = "; ".join(staged.samples.get(names.QUARANTINE, []))
            raise BadRecordsError(
                f"{bad:,} of {rows:,} rows of batch {batch.number} ({bad / rows:.1%}) are bad ({some}), "
                f"max_bad_rate={self.layout.max_bad_rate:g} allows fewer; nothing of it is written. Mend the source, "
                "or raise max_bad_rate to quarantine them"
            )
        for one in self.layout.lookups:
            known = staged.lookups.get(one.name, {"matched": 0, "unmatched": 0})
            asked = known["matched"] + known["unmatched"]
            if asked and known["matched"] / asked < one.min_match_rate:
                raise MatchRateError(
                    f"only {known['matched']:,} of {asked:,} rows of batch {batch.number} matched {one.store}, "
                    f"min_match_rate={one.min_match_rate:g} asks for more; nothing of it is written"
                )

    def _writes(self, staged: Staged, again: str) -> tuple[Write, ...]:
        emptied = WAITED.get(again)
        return tuple(
            Write(
                self.layout.table_of(route),
                tuple(replace(file, path=Path(file.path).name) for file in staged.files.get(route, [])),
                schema,
                "replace" if route == emptied else "append",
            )
            for route, schema in self.schemas.tables.items()
        )

    def _keep(self, path: str) -> str:
        target = self.ledger.root / "held" / Path(path).name
        if Path(path) != target:
            Path(path).replace(target)
        return str(target)

    # -- carry out ---------------------------------------------------------------------------------------------------

    def carry_out(self, decision: Decision, *, fresh: bool = False) -> bool:
        """Make a decision visible everywhere. Carrying it out again changes nothing; False when the tables had a
        ``fresh`` one: it is another's, and nothing but the tables of dimensions was touched.
        """
        for table, store in self.layout.dimensions.items():
            if (version := decision.dimensions.get(table)) is not None:
                mirror(self.warehouse, table, store, version, decision.dimension_digests.get(table))
        reach("after_dimensions")
        if not self.warehouse.commit(decision.writes) and fresh:
            return False
        reach("after_commit")
        if self.seen is not None and decision.seen:
            token = (f"{decision.writes.app}@{decision.writes.query}", decision.writes.batch)  # each query counts anew
            self.seen.add_pieces(read_granted(decision.seen, self._budget), token, self._budget)
            self._budget.resize("lists of keys seen", self.seen.listed_bytes)
        reach("after_keys")
        self._sweep(decision)
        return True

    def _sweep(self, done: Decision) -> None:
        """Remove files of held rows and keys that no decision needs any more."""
        latest = self.ledger.latest()
        if done.sequence < latest[-1].sequence:  # should the newest be withdrawn, what was held before is held again
            return
        live = {Path(path).name for one in latest for path in (*one.seen, *(part.path for part in one.held))}
        for path in (self.ledger.root / "held").iterdir():
            if path.name not in live:
                path.unlink(missing_ok=True)


def _counts(came: dict[str, int], staged: Staged) -> dict[str, int]:
    """Every row that came is somewhere, once."""
    rows = staged.counts
    counts = {
        **came,
        "enriched": rows[names.FACT],
        "unmatched": rows[names.UNMATCHED] + rows[names.DROPPED] + rows[names.FAILED],
        "held": sum(number for route, number in rows.items() if route.startswith(f"{names.HELD}:")),
        "shed": rows[names.SHED],
        "quarantined": rows[names.QUARANTINE],
        "duplicates": rows[names.DUPLICATE],
        "filtered": rows[names.FILTERED],
    }
    if sum(counts[name] for name in CAME) != sum(counts[name] for name in WENT):
        raise AccountingError(
            f"rows that came and rows that are accounted for differ: {counts}; nothing of this batch was written"
        )
    return counts


def _totals(before: Decision | None, counts: dict[str, int]) -> dict[str, int]:
    totals = {name: counts[name] + (before.totals.get(name, 0) if before else 0) for name in COUNTS}
    # A row that waits is held once, however often it is looked at, and is not held any more when it goes on.
    for again, waits in WAITED.items():
        totals[waits] -= counts[again]
    return totals
