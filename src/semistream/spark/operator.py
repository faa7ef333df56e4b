"""The operator that runs inside Spark's tasks: everything it needs to know, and how one task runs.

Modules hold its state, never closures: Spark's Python workers live on between tasks and may change partitions.
"""

import gc
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from semistream.budget import Budget
from semistream.errors import MatchRateError, OtherVersionError, SchemaError, StoreNotFoundError, UnmatchedRowError
from semistream.joins import JOINS
from semistream.joins.contract import Join
from semistream.joins.sizes import projected, text_bytes
from semistream.joins.sweep.cache import TupleCache, key_cell
from semistream.joins.sweep.join import SweepJoin, SweepSettings
from semistream.joins.sweep.split import Division
from semistream.joins.whole import WholeJoin
from semistream.lookup.bind import LookupPlan, bind
from semistream.lookup.run import open_store
from semistream.lookup.spec import How
from semistream.rows import Projection
from semistream.spark.area import Area, area
from semistream.spark.pins import PinService, pinned_version, running_attempt, running_batch
from semistream.spark.shared import PLACES, SharedCache, judge_together, place, shared_table
from semistream.spark.spec import EnrichSpec
from semistream.stats import Stats
from semistream.stores import MasterStore
from semistream.stores.contract import Store
from semistream.stores.paged.manifest import StoreVersion

CACHE_SHARE = 0.85  # of what buffers leave; the windows of all tasks share the rest
_LENT = 0.75  # of a window, to the answers of blocks: most rows of a block are hits, which do not wait
_LEAST_WINDOW = 256 << 10  # that is not lent: a row that waits may be long
_ROOM = 16  # answers to blocks get one part in so many of a task's memory, at least
_MAX_DEADLINE = 1e9  # a task's input ends by itself: only the window's size makes it sweep earlier


@dataclass(frozen=True)
class Operator:
    """One enrichment, as it is shipped to the workers."""

    spec: EnrichSpec  # without what stays at the driver
    store: str
    columns: dict[str, str]  # that the master gives, with their types
    names: tuple[str, ...]  # of these in the output, where all the stream's columns are
    memory_bytes: int
    algorithm: str
    planned: StoreVersion  # what the driver saw
    tasks: int
    ignore_case: bool
    application: str  # name of the directory of shared files
    identity: str  # of those who share cached rows
    sample: str  # of those whose small tasks are judged together
    pinned_by: PinService | None = None  # None: by the tasks themselves
    shed_bytes: int = 0  # of the host's memory, for shedding in all tasks
    counts_bytes: int = 0  # of these, for the rows that keys have
    operator_count: int = 1  # that run in one task

    @property
    def inputs(self) -> tuple[str, ...]:
        """The stream's columns that decide what matches: those of the key, and then that of the moment."""
        moment = self.spec.as_of
        return tuple(dict.fromkeys([*self.spec.keys, *([] if moment is None else [moment])]))

    def content(self) -> StoreVersion:
        """The master's version for the running task's batch."""
        batch = running_batch()
        if self.spec.master_version != "latest" or batch is None:
            return self.planned
        if self.pinned_by is not None:
            return self.pinned_by.ask(self.store, *batch, self.spec.refresh, self.planned)
        return pinned_version(Path(self.store), *batch, self.spec.refresh, self.planned)

    def plan(self, stream: pa.Schema, store: MasterStore, how: How | None = None) -> LookupPlan:
        """The join's plan for a stream; a version whose columns changed since the query began is refused."""
        gone = [name for name in self.columns if name not in store.schema.names]
        if gone:
            raise SchemaError(
                f"version {store.version} of {self.store} has no column {gone[0]!r}, which version "
                f"{self.planned.number}, with which the query began, had; restart the query to do without it"
            )
        spec = self.spec if how in (None, self.spec.how) else replace(self.spec, how=how, defaults=None, status=None)
        plan = bind(spec, stream, store, ignore_case=self.ignore_case)
        types = {column: str(plan.master.field(column).type) for column in self.columns}
        if types != self.columns:
            raise SchemaError(
                f"version {store.version} of {self.store} has other column types than version {self.planned.number}, "
                f"with which the query began: {types} instead of {self.columns}; restart the query to take them on"
            )
        return plan


@dataclass
class Task:
    """A running task: its join, at one version of the master."""

    operator: Operator
    store: MasterStore
    join: Join
    area: Area
    cache: SharedCache | None = None
    room: int = 0  # bytes for answers that are held until they are in order
    held_bytes: int = 0  # that they took at most

    def finish(self) -> Stats:
        """Check the accounting and what the user demanded; returns the task's counters."""
        operator, spec, stats = self.operator, self.operator.spec, self.join.stats
        stats.check(f"enrich with {operator.store}")
        sample = ", ".join(map(repr, self.join.unmatched_sample))
        if spec.on_miss == "fail" and stats.unmatched:
            raise UnmatchedRowError(
                f"on_miss='fail': {stats.unmatched:,} of {stats.rows_in:,} rows have no match in {operator.store} "
                f"(version {stats.master_version}), for example {sample}; nothing of this batch is written. Add the "
                "missing rows to the master, or use on_miss='null' or 'drop'"
            )
        wanted, enough = spec.min_match_rate, spec.min_match_rows
        rows, matched = stats.rows_in - stats.shed, stats.matched
        if wanted > 0 and 0 < rows < enough:
            rows, matched = judge_together(self.area, f"{operator.sample}-small", rows, matched, enough, wanted)
        if rows and matched / rows < wanted:
            raise MatchRateError(
                f"only {matched:,} of {rows:,} rows ({matched / rows:.1%}) matched {operator.store}, "
                f"min_match_rate={wanted:g} asks for more; unmatched are for example {sample}"
            )
        if self.join.plan.how != spec.how:  # by keys: rows without a match go out too, or they alone
            stats.rows_out = stats.unmatched + (stats.rows_out if spec.how == "left" else 0)
        if not isinstance(self.join, WholeJoin):  # whose table is shared by all tasks
            stats.peak_bytes *= operator.tasks
        stats.peak_bytes += operator.shed_bytes + self.held_bytes * operator.tasks
        if self.cache is not None:
            stats.cached_rows, stats.cached_bytes = self.cache.rows, self.cache.used_bytes
            stats.peak_bytes += self.cache.used_bytes
        return stats


_stores: dict[tuple[str, bool], MasterStore] = {}  # each at one version: the codes that updates changed are in memory
_caches: dict[tuple[Path, str], SharedCache] = {}
_modules = 0  # that were loaded when garbage was last looked for among all objects


def open_content(operator: Operator) -> MasterStore:
    """The store with this batch's content; a worker keeps those used last, two for each of its operators."""
    content, key = operator.content(), (operator.store, operator.spec.direct)
    store = _stores.pop(key, None)
    if store is None or store.manifest.identity != content:
        del store
        store = _open(operator, content)
        while len(_stores) >= 2 * operator.operator_count:
            _stores.pop(next(iter(_stores)))
    _stores[key] = store  # the last one is the one used last
    return store


def _open(operator: Operator, content: StoreVersion) -> MasterStore:
    try:
        store = MasterStore.open(operator.store, content.number, direct=operator.spec.direct)
    except StoreNotFoundError as error:
        raise OtherVersionError(
            f"this task reads version {content.number} of {operator.store}, and host {socket.gethostname()} has "
            f"another copy of the store, or none: {error}. Give every host the same copy of the store"
        ) from error
    content.check(store.manifest, store.path)
    return open_store(store, allow_empty=operator.spec.allow_empty)


@contextmanager
def run_task(operator: Operator, stream: pa.Schema, how: How | None = None) -> Iterator[Task]:
    """A task within the operator's budget; with ``how`` it is asked by keys, in blocks, and has room for answers."""
    store = open_content(operator)
    plan = operator.plan(stream, store, how)
    store = plan.reads(store)
    with (
        area(operator.application, operator.memory_bytes, operator.identity) as here,
        area(operator.application, 0, PLACES) as everywhere,
        place(everywhere, operator.tasks, running_attempt()),
    ):
        cache: SharedCache | None = None
        own, given = operator.memory_bytes // operator.tasks, operator.memory_bytes + operator.shed_bytes
        if operator.algorithm == "sweep":
            division, room = divide(operator, store, plan, how)
            cache = _open_cache(operator, store, plan, here, division.cache)
            budget = Budget(own - room - division.cache // operator.tasks, given=given)
            settings = SweepSettings(wait_seconds=_MAX_DEADLINE, adapt=False, hot_keys=operator.spec.hot_keys)

            def parts(times: float) -> Division:
                made = divide(operator, store, plan, how, times)[0]
                return made if cache is not None else replace(made, cache=0)  # another version's bytes, or too few

            join: Join = SweepJoin(store, plan, budget, settings, cache=cache, divide=parts)
        elif operator.algorithm == "whole":
            # The first task of a version loads the table, and all of this host share it.
            hold = partial(shared_table, here, operator.identity, store.manifest.identity)
            free = operator.memory_bytes - 2 * WholeJoin.least_bytes(store.facts, plan)  # two versions, at times
            room = 0 if how is None else max(0, min(least_room(operator), free // operator.tasks))
            join = WholeJoin(store, plan, Budget(operator.memory_bytes - room * operator.tasks, given=given), hold=hold)
        else:
            # The tasks are the nodes of pcsrj, and each is a cache join.
            kind = JOINS["sscj" if operator.algorithm == "pcsrj" else operator.algorithm]
            room = 0 if how is None else max(0, min(least_room(operator), own - kind.least_bytes(store.facts, plan)))
            join = kind(store, plan, Budget(max(1, own - room), given=given))
        yield Task(operator, store, join, here, cache, room)
    if running_attempt():
        _keep_loaded()


def divide(
    operator: Operator, store: Store, plan: LookupPlan, how: How | None, times: float = 1.0
) -> tuple[Division, int]:
    """How so many times the memory is divided around the cache of a host, and what of it is lent to answers."""
    memory_bytes = int(operator.memory_bytes * times)
    division = Division.of(store.facts, plan, memory_bytes, CACHE_SHARE, operator.tasks)
    step = max(1, memory_bytes // 32)  # so coarse that a version with a slightly larger index finds the same file
    division = replace(division, cache=division.cache // step * step)
    return (division, 0) if how is None else lend(division)


def lend(division: Division) -> tuple[Division, int]:
    """The division of a join that is asked in blocks, and the bytes that answers to them get of its window."""
    room = max(0, min(int(division.window * _LENT), division.window - _LEAST_WINDOW))
    return replace(division, window=division.window - room), room


def least_room(operator: Operator) -> int:
    """Bytes that answers to blocks should get of a task's memory, at least."""
    return operator.memory_bytes // operator.tasks // _ROOM


def row_bytes(store: Store, plan: LookupPlan) -> float:
    """What the master's columns of an answer take, guessed from the store's means."""
    layout = projected(store.facts, plan)
    return layout.head + text_bytes(store.facts, layout)


def _keep_loaded() -> None:
    """Spark's workers collect garbage after every task: not among what was loaded, which stays as long as they live."""
    global _modules
    if len(sys.modules) > _modules:
        _modules = len(sys.modules)
        gc.collect()
        gc.freeze()


def _open_cache(operator: Operator, store: MasterStore, plan: LookupPlan, here: Area, size: int) -> SharedCache | None:
    """The cache of all tasks of this host, at this task's version."""
    layout = Projection(store.layout, plan.needed).target
    cell_bytes, simple = key_cell(store.facts, layout)
    if not TupleCache.holds_anything(size, cell_bytes):
        return None
    shape, name = {"size": size, "cell_bytes": cell_bytes, "simple": simple}, f"{operator.identity}-cache"
    cache = _caches.pop((here.path, name), None)
    if cache is not None and not cache.serves(here, shape):
        cache.close()
        cache = None
    if cache is None:
        # A worker keeps the last one of each operator: mapping it again would fault in every page again.
        while len(_caches) >= operator.operator_count:
            _caches.pop(next(iter(_caches))).close()
        cache = SharedCache.opened(here, name, layout, shape, store.manifest.identity)
    if cache is not None:
        _caches[here.path, name] = cache  # the last one is the one used last
        cache.layout = layout
        cache.advance(store)
    return cache
