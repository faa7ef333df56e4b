"""Where a row's time goes in one cell of `bench core`: CPU time and counts of each phase, and the machine's limits.

The names by which `sweep` calls its kernels are replaced, for the timed batches only, by functions that read the
thread's CPU clock before and after. A phase is charged what it took itself, without the phases inside it; what no phase
took is the interpreter's and numpy's. Counts depend on nothing but the data, as long as no row waits to its deadline.
CPU time leaves out when others had the core, but not that they share its caches; the limits, measured in the same
process, grow as well.

One kernel, `collect`, reads, checks, searches and projects. It is taken apart by doing a sample of its calls once more:
reads alone, reads and checks, and so on; its time is divided as these are. The repetition is not in the totals.
"""

from __future__ import annotations

import importlib
import inspect
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import wraps
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.stores import MasterStore
from semistream_lab import limits
from semistream_lab.arms_core import Batches, OurArm, load_code, store_of
from semistream_lab.cells import Cell, enriched
from semistream_lab.data import BenchData

_SAMPLED = 4  # of the calls of `collect`, one in so many is repeated
_CLOCKS = 10_000  # readings from which the cost of one follows
_clock = time.thread_time_ns


@dataclass
class Phase:
    """What a phase took: CPU time of its own, and how often it was called for how many rows and bytes."""

    calls: int = 0
    rows: int = 0
    bytes: int = 0
    ns: int = 0


Count = Callable[[Sequence[Any], Any], int]  # of the arguments and the result


def _length(position: int) -> Count:
    return lambda given, _: len(given[position])


def _rows(position: int) -> Count:
    return lambda given, _: int(given[position].num_rows)


@dataclass(frozen=True)
class Name:
    """A function by its module and name, and the phase that it is."""

    phase: str
    where: str
    rows: Count | None = None
    bytes: Count | None = None


_KERNELS, _JOINS, _PAGED = "semistream.kernels", "semistream.joins", "semistream.stores.paged"
NAMES = (
    Name("encode", "semistream.keys:KeyCodec.encode", lambda given, _: len(given[1][0])),
    Name("probe", f"{_KERNELS}.cache:probe", _length(1)),
    Name("hits and misses apart", f"{_KERNELS}.cache_values:found_values"),
    Name("hits and misses apart", f"{_KERNELS}.cache_values:missing_values", _length(0)),
    Name("gather", "semistream.rows:RowLayout.unpack", _length(1), lambda _, made: int(made.nbytes)),
    Name(
        "take stream rows",
        f"{_JOINS}.output:Output.pairs",
        _length(4),
        lambda given, made: 0 if given[2] is None else sum(made.column(n).nbytes for n in range(given[1].num_columns)),
    ),
    Name("let misses wait", f"{_JOINS}.sweep.join:SweepJoin._wait"),
    Name("let misses wait", f"{_JOINS}.window:Window.add", _rows(1), lambda given, _: int(given[1].nbytes)),
    Name("sort waiting rows", f"{_JOINS}.window:Window.take"),
    Name("sort waiting rows", f"{_JOINS}.groups:Waiting.__init__", _length(2)),
    Name("locate", f"{_PAGED}.store:MasterStore.locate", _length(1)),
    Name("locate", f"{_PAGED}.lookups:wanted"),
    Name("plan reads", f"{_KERNELS}.reading:plan_reads", _length(0)),
    Name("cold reads", f"{_KERNELS}.reading:read_ranges"),
    Name("collect", f"{_KERNELS}.pages:collect"),
    Name("pair", f"{_JOINS}.groups:Waiting.pair", _length(1)),
    Name("pair", f"{_JOINS}.sweep.lane:groups_of"),
    Name("admission", f"{_JOINS}.sweep.cache:TupleCache.offer", _length(1)),
    Name("admission", f"{_JOINS}.sweep.cache:TupleCache.offer_absent", _length(1)),
    Name("divide the memory", f"{_JOINS}.sweep.join:SweepJoin._learn"),
)
PARTS = ("read", "check pages", "search", "project")  # of `collect`
PHASES = tuple(dict.fromkeys(part for one in NAMES for part in (PARTS if one.phase == "collect" else (one.phase,))))


def find(where: str) -> tuple[Any, str, Callable[..., Any]]:
    """The owner of a name, what it is called there, and what it is now."""
    module, _, path = where.partition(":")
    owner: Any = importlib.import_module(module)
    *above, name = path.split(".")
    for one in above:
        owner = getattr(owner, one)
    return owner, name, getattr(owner, name)


@dataclass
class Recorder:
    """Phases, charged as they nest."""

    phases: dict[str, Phase] = field(default_factory=lambda: {one.phase: Phase() for one in NAMES})
    repeated_ns: int = 0  # by taking `collect` apart
    parts_ns: list[int] = field(default_factory=lambda: [0] * len(PARTS))
    pages: int = 0  # that `collect` went through
    wanted: int = 0  # codes that it searched for
    found: int = 0  # rows that it projected
    projected_bytes: int = 0
    _inside: threading.local = field(default_factory=threading.local)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """While the names stand for timed functions."""
        found = [(one, *find(one.where)) for one in NAMES]
        try:
            for one, owner, name, function in found:
                inner = self._taken_apart(function) if one.phase == "collect" else function
                setattr(owner, name, self._timed(one, inner))
            yield
        finally:
            for _, owner, name, function in found:
                setattr(owner, name, function)

    def _timed(self, one: Name, function: Callable[..., Any]) -> Callable[..., Any]:
        phase = self.phases[one.phase]

        def count(given: Sequence[Any], made: Any) -> None:
            phase.calls += 1
            phase.rows += one.rows(given, made) if one.rows else 0
            phase.bytes += one.bytes(given, made) if one.bytes else 0

        @wraps(function)
        def call(*given: Any, **more: Any) -> Any:
            with self._charged(phase):
                made = function(*given, **more)
            count(given, made)
            return made

        @wraps(function)
        def generate(*given: Any, **more: Any) -> Iterator[Any]:
            count(given, None)
            made = function(*given, **more)
            try:
                while True:
                    with self._charged(phase):
                        item = next(made, self)
                    if item is self:
                        return
                    yield item
            finally:
                made.close()

        return generate if inspect.isgeneratorfunction(function) else call

    @contextmanager
    def _charged(self, phase: Phase) -> Iterator[None]:
        """Charge a phase what passes, less what is charged to phases inside it."""
        inside = self._inside.__dict__.setdefault("stack", [])
        inside.append(0)
        start = _clock()
        try:
            yield
        finally:
            took = _clock() - start
            phase.ns += took - inside.pop()
            if inside:
                inside[-1] += took

    def _taken_apart(self, collect: Callable[..., int]) -> Callable[..., int]:
        """`collect`, some of whose calls are repeated part by part; arguments as that kernel has them."""
        from semistream.kernels import pages as kernels
        from semistream_lab.profile_kernels import CHECK, READ, SEARCH, collect_parts

        calls = 0

        def call(*given: Any) -> int:
            nonlocal calls
            fd, buffer, _, ranges, first_page, pages, codes, *_, offsets, index, state = given
            before = state.copy()
            status = collect(*given)
            some = slice(int(before[kernels.PAGE]), int(state[kernels.PAGE]))
            self.pages += some.stop - some.start
            self.wanted += int((pages[some, 4] - pages[some, 3]).sum())
            self.found += int(state[kernels.ROWS] - before[kernels.ROWS])
            self.projected_bytes += int(state[kernels.BYTES] - before[kernels.BYTES])
            calls += 1
            if fd < 0 or calls % _SAMPLED:
                return status
            first, last = int(before[kernels.RANGE]), int(state[kernels.RANGE])
            start = previous = _clock()
            for number, depth in enumerate((READ, CHECK, SEARCH)):
                collect_parts(fd, buffer, ranges, first_page, pages, codes, first, last, some.start, some.stop, depth)
                now = _clock()
                self.parts_ns[number] += now - previous
                previous = now
            collect(*given[:-3], offsets.copy(), index.copy(), before)
            now = _clock()
            self.parts_ns[len(PARTS) - 1] += now - previous
            self.repeated_ns += now - start
            self._inside.__dict__["stack"][-1] += now - start  # not the phase's
            return status

        return call

    def result(self) -> dict[str, Phase]:
        """The phases; `collect` in its parts."""
        found = {name: replace(phase) for name, phase in self.phases.items() if name != "collect"}
        whole, (read, check, search, project) = self.phases["collect"], self.parts_ns
        shares = np.diff([0, *np.maximum.accumulate([read, check, search, project])]) / max(1, *self.parts_ns)
        counts = (self.pages, self.pages, self.wanted, self.found)
        for name, share, count in zip(PARTS, shares.tolist(), counts, strict=True):
            found[name] = Phase(whole.calls, count, 0, round(whole.ns * share))
        found["project"].bytes = self.projected_bytes
        return {name: found[name] for name in PHASES}


def run(cell: Cell, data: BenchData) -> dict[str, Any]:
    """Run one cell: warm-up as it is, then the timed batches with clocks around every phase; then the limits."""
    params = cell.params
    pa.set_cpu_count(1)
    first, count = params["warmup"], params["batches"]
    timed, warmup = list(range(first, first + count)), list(range(first))
    load = replace(data.load, skew=params.get("skew", 1.0))
    batches = Batches(load, params["batch_rows"], timed, warmup)
    load_code(cell, data)
    arm = OurArm(cell, data, batches[timed[0]].schema)
    for number in warmup:
        _joined(arm, [batches[number]])
    header = _header(arm)
    before, recorder = arm.counters(), Recorder()
    with recorder.recording():
        began, wall, total = time.time(), time.perf_counter(), _clock()
        rows = _joined(arm, batches.stream(timed))
        wall, total, ended = time.perf_counter() - wall, _clock() - total, time.time()
    counted, repeated = arm.counters().since(before), recorder.repeated_ns
    details = arm.details()
    now = _header(arm)
    store = MasterStore.open(store_of(cell, data)).covering(enriched(params["columns"]))
    phases = recorder.result()
    clock = _clock_ns()
    return {
        "rows": rows,
        "rows_per_second": rows / (wall - repeated / 1e9),
        "batch_seconds": (wall - repeated / 1e9) / count,
        "checksum": {},
        "timed": [began, ended],
        "cpu_ns": total - repeated,
        "clock_share": clock * sum(phase.calls for phase in phases.values()) / max(1, total),
        "phases": {name: asdict(phase) for name, phase in phases.items()},
        "counts": {
            "hits": counted.hits,
            "misses": counted.misses,
            "matched": counted.matched,
            "sweeps": counted.sweeps,
            "pages read": counted.pages_read,
            "read requests": counted.read_requests,
            "bytes read": counted.bytes_read,
            **{name: now[name] - header[name] for name in now},
        },
        "cached_rows": counted.cached_rows,
        "cached_bytes": counted.cached_bytes,
        "limits": asdict(limits.measure(store, counted.cached_bytes)),
        **details,
    }


def _joined(arm: OurArm, batches: Any) -> int:
    return sum(out.num_rows for out in arm.join(batches))


def _header(arm: OurArm) -> dict[str, int]:
    """What the cache counts itself."""
    from semistream.kernels import cache as kernels

    cache = getattr(arm.joined_by, "cache", None)
    if cache is None:
        return {}
    names = {"admissions": kernels.ADMISSIONS, "evictions": kernels.EVICTIONS, "rejections": kernels.REJECTIONS}
    return {name: int(cache.header[place]) for name, place in names.items()}


def _clock_ns() -> float:
    start = _clock()
    for _ in range(_CLOCKS):
        _clock()
    return 2 * (_clock() - start) / _CLOCKS  # a phase reads it twice
