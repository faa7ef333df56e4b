"""The arms of `bench core`: our joins and DuckDB on the same batches, without Spark.

A run is warm-up batches, timed batches and one more. Every second of the first eighty and the last are checked: rows
go into a checksum that must be the same for all arms. Timed batches only count their rows, so the clock sees nothing
but the join. Arms that keep nothing from batch to batch need less warm-up; all are timed on the same batches.

`sweep` gets the timed batches as a stream: rows that miss may wait for those of later batches, up to a second, and all
have left when the clock stops. `sweep_groups` is the same on a store that also has a column group of the columns asked
for. `sweep_each` answers every batch whole before the next one comes, as the others do.

With ``cold`` there is no warm-up: all batches are timed from an empty cache on, and the result has the rate over time.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from semistream import kernels
from semistream.budget import format_bytes
from semistream.stats import Stats
from semistream.stores import MasterStore
from semistream_lab.abilities import join_takes
from semistream_lab.cells import GROUPS, Cell, algorithm_of, enriched
from semistream_lab.checks import Checksum
from semistream_lab.data import BenchData, warm_page_cache
from semistream_lab.errors import BenchmarkError
from semistream_lab.memory import MemorySampler, available_bytes, give_back_memory, peak_rss, reset_peak_rss
from semistream_lab.workloads.zipf import ZipfWorkload

STATELESS_WARMUP = 3
_CHECKED_ROWS = 1 << 15
_MOST_CHECKED = 80  # the number of a warm-up batch from which none is checked: a large master has hundreds
_POINTS = 60  # of a curve
MOST_HELD = 60_000_000  # stream rows that are made before the run, 20 bytes each
_LOADED = 2  # times the master's bytes, while `whole` puts its pieces together
INL_BATCHES = 3  # one read a row is slow; its rate needs no more


class Arm(Protocol):
    """Joins one batch after the other."""

    def join(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All rows of some batches, with the master's columns."""

    def counters(self) -> Stats:
        """Its counters, as far as it has them."""

    def details(self) -> dict[str, Any]:
        """What else a result should say."""


Maker = Callable[[Cell, BenchData, pa.Schema], Arm]


class OurArm:
    """A join of the registry."""

    def __init__(self, cell: Cell, data: BenchData, schema: pa.Schema) -> None:
        from semistream.lookup.run import make_join

        store = MasterStore.open(store_of(cell, data), direct=bool(cell.params.get("direct")))
        if cell.arm == "whole":
            _check_loading(store, enriched(cell.params["columns"]), schema)
        self.joined_by = make_join(
            schema,
            store,
            on="key",
            memory=cell.params["memory"],
            algorithm=algorithm_of(cell.arm),
            columns=enriched(cell.params["columns"]),
            **({"wait_seconds": cell.params["wait_seconds"]} if "wait_seconds" in cell.params else {}),
            **({"threads": cell.params.get("threads", 1)} if join_takes("threads") else {}),
        )
        self._budget = self.joined_by.budget.total
        self._each = cell.arm.endswith("_each")

    def join(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One call for all, or a call a batch: then nothing waits for the next."""
        if not self._each:
            return self.joined_by.join(batches)
        return itertools.chain.from_iterable(self.joined_by.join([batch]) for batch in batches)

    def counters(self) -> Stats:
        """As they are now."""
        return self.joined_by.stats.copy()

    def details(self) -> dict[str, Any]:
        """The budget in bytes; also the place where the join checks itself."""
        self.joined_by.check()
        return {"budget_bytes": self._budget}


def _check_loading(store: MasterStore, columns: list[str], schema: pa.Schema) -> None:
    """Raise an error where the machine's memory is too small for the whole master: rather that than to be killed."""
    from semistream.joins import JOINS
    from semistream.lookup.bind import bind
    from semistream.lookup.spec import LookupSpec

    plan = bind(LookupSpec(on="key", columns=columns), schema, store)
    needed, there = _LOADED * JOINS["whole"].least_bytes(store.facts, plan), available_bytes()
    if there is not None and needed > there:
        raise BenchmarkError(
            f"loading the whole master takes about {format_bytes(needed)} of memory, and {format_bytes(there)} are free"
        )


class Batches:
    """The stream by numbers of batches: made beforehand where they are not too many, else when they are asked for."""

    def __init__(self, load: ZipfWorkload, size: int, timed: Iterable[int], others: Iterable[int]) -> None:
        self._load, self.size = load, size
        all_of_them = {*timed, *others}
        held = all_of_them if size * len(all_of_them) <= MOST_HELD else set(timed)
        self._held = {number: self._made(number) for number in sorted(held)}
        self.making = 0.0  # seconds spent on making what was not held
        self.moments: list[float] = []  # when each batch was asked for, on a clock without those

    def _made(self, number: int) -> pa.RecordBatch:
        return self._load.stream(number * self.size, self.size)

    def __getitem__(self, number: int) -> pa.RecordBatch:
        if number in self._held:
            return self._held[number]
        began = time.perf_counter()
        batch = self._made(number)
        self.making += time.perf_counter() - began
        return batch

    def stream(self, numbers: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """Some of them, one after the other."""
        for number in numbers:
            batch = self[number]
            self.moments.append(self.clock())
            yield batch

    def clock(self) -> float:
        """Seconds, but for those in which batches were made."""
        return time.perf_counter() - self.making

    def curve(self) -> list[list[float]]:
        """[rows so far, rows a second] at some points of the last stream."""
        edges = sorted({round(part * (len(self.moments) - 1) / _POINTS) for part in range(_POINTS + 1)})
        took = ((one, other, self.moments[other] - self.moments[one]) for one, other in itertools.pairwise(edges))
        return [[other * self.size, round((other - one) * self.size / max(1e-9, s))] for one, other, s in took]


def run(cell: Cell, data: BenchData, kind: Maker | None = None) -> dict[str, Any]:
    """Run one cell in this process; ``kind`` is the arm, unless the cell's name says it."""
    if cell.arm == "build":
        return _build(cell, data)
    pa.set_cpu_count(1 if cell.params.get("threads", 1) == 1 else 2)
    warmup, timed = _batch_numbers(cell)
    last = cell.params["warmup"] + cell.params["batches"]
    checked = {number for number in warmup if number % 2 == 0 and number < _MOST_CHECKED} | {last}
    load = replace(data.load, skew=cell.params.get("skew", 1.0))
    batches = Batches(load, cell.params["batch_rows"], [*timed, last], warmup)
    kind = kind or _arm_class(cell.arm)
    load_code(cell, data)
    give_back_memory()
    with MemorySampler(os.getpid()) as sampler:
        sampler.mark_idle()
        resident = reset_peak_rss()
        arm = kind(cell, data, batches[timed[0]].schema)
        checks = {}
        for number in warmup:
            if number in checked:
                checks[str(number)] = _checksum(arm, batches[number])
            else:
                _consume(arm, [batches[number]], batches.size)
        before, began = arm.counters(), time.time()
        used, start = time.process_time() - batches.making, batches.clock()
        _consume(arm, batches.stream(timed), batches.size * len(timed))
        seconds, used = batches.clock() - start, time.process_time() - batches.making - used
        ended = time.time()
        sampler.look()
        after = arm.counters()
        checks[str(last)] = _checksum(arm, batches[last])
        details = arm.details()
        peak = peak_rss()
    rows = batches.size * len(timed)
    usage = sampler.usage
    return {
        "rows_per_second": rows / seconds,
        "batch_seconds": seconds / len(timed),
        "rows": rows,
        "checksum": checks,
        "pss_growth_bytes": usage.growth,
        "pss_idle_bytes": usage.idle,
        "rss_growth_bytes": None if resident is None or peak is None else max(0, peak - resident),
        "workers": 1,
        "timed": [began, ended],
        "cores_used": used / seconds,
        **({"curve": batches.curve()} if cell.params.get("cold") else {}),
        **counted(after.since(before)),
        **details,
    }


def counted(stats: Stats) -> dict[str, Any]:
    """Counters as a result names them; one who knows of no hits and misses knows of no reads either."""
    if stats.hits + stats.misses == 0:
        return {"matched": stats.matched}
    names = ("matched", "pages_read", "bytes_read", "peak_bytes", "cached_rows", "cached_bytes")
    return {"hit_ratio": stats.hit_ratio, **{name: getattr(stats, name) for name in names}}


def _batch_numbers(cell: Cell) -> tuple[list[int], list[int]]:
    """Batches that warm up and batches that are timed; the timed ones start at the same number for every arm."""
    first, count = cell.params["warmup"], cell.params["batches"]
    if cell.params.get("cold"):
        return [], list(range(count))
    warm = first if cell.arm.startswith("sweep") or cell.suite == "peers" else min(first, STATELESS_WARMUP)
    return list(range(warm)), list(range(first, first + (min(count, INL_BATCHES) if cell.arm == "inl" else count)))


def store_of(cell: Cell, data: BenchData) -> Path:
    """The store that an arm of ours reads."""
    return data.store(cell.params["columns"] if cell.arm.endswith(GROUPS) else "")


def _arm_class(name: str) -> Maker:
    from semistream.joins import JOINS

    if algorithm_of(name) in JOINS:
        return OurArm
    from semistream_lab import arms_duckdb

    if name in arms_duckdb.ARMS:
        return arms_duckdb.ARMS[name]
    raise BenchmarkError(f"arm {name!r} is not known; choose from {', '.join([*JOINS, *arms_duckdb.ARMS, 'build'])}")


def load_code(cell: Cell, data: BenchData) -> None:
    """Kernels and libraries belong to the idle baseline, as they do in a worker; files to the page cache, if warm."""
    kernels.load_all()
    if cell.arm.startswith("duckdb"):
        import duckdb

        duckdb.connect().execute("SELECT 1")
    if cell.suite == "peers":
        from semistream_lab.peers import peer

        warm_page_cache(peer(cell.arm).prepare(data, cell.params["columns"]))
    elif cell.arm.startswith("duckdb"):
        warm_page_cache(data.duckdb_table() if cell.arm == "duckdb_table" else data.master())
    elif cell.arm.endswith(GROUPS):
        for segment in MasterStore.open(store_of(cell, data)).covering(enriched(cell.params["columns"])).segments:
            warm_page_cache(segment.path)
    elif not cell.params.get("direct"):
        warm_page_cache(data.store())


def _consume(arm: Arm, batches: Iterable[pa.RecordBatch], given: int) -> None:
    rows = sum(out.num_rows for out in arm.join(batches))
    if rows != given:
        raise BenchmarkError(f"{rows:,} rows came out of {given:,}; every stream row has exactly one match here")


def _checksum(arm: Arm, batch: pa.RecordBatch) -> str:
    return checksum_of(arm.join([batch]))


def checksum_of(batches: Iterable[pa.RecordBatch]) -> str:
    """Of all rows, whatever their order."""
    total = Checksum()
    for out in batches:
        for start in range(0, out.num_rows, _CHECKED_ROWS):  # so that checking takes no memory worth mentioning
            total.add(out.slice(start, _CHECKED_ROWS))
    return total.text


def _build(cell: Cell, data: BenchData) -> dict[str, Any]:
    """Build a store from unsorted Parquet, in a directory that is removed again."""
    import resource

    source = data.unsorted()
    warm_page_cache(source)
    load_code(Cell("core", "build", {"direct": True}), data)
    with (
        tempfile.TemporaryDirectory(dir=data.directory, prefix=".build-") as place,
        MemorySampler(os.getpid()) as sampler,
    ):
        sampler.mark_idle()
        start = time.perf_counter()
        store = MasterStore.build(source, Path(place) / "store", key="key", memory=cell.params["memory"])
        seconds = time.perf_counter() - start
        sampler.look()
        rows, size = store.rows, store.bytes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "rows_per_second": rows / seconds,
        "batch_seconds": seconds,
        "rows": rows,
        "checksum": {},
        "peak_bytes": peak,
        "pss_growth_bytes": sampler.usage.growth,
        "workers": 1,
        "store_bytes": size,
    }
