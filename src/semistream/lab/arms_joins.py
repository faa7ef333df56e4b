"""The arms of `bench joins`: every join of the registry on one Zipf stream, measured while the stream flows.

A run is one stream. First as many rows as fill tables and caches, then those that are measured; counters and clock are
read as rows go in, so neither an empty start nor the end, when everybody leaves, is in the figures. Slow joins stop
after some seconds of either part. Then a short stream is joined and checked: its rows must be the same for all arms.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import pyarrow as pa

from semistream.joins import JOINS
from semistream.joins._meeting import Waits
from semistream.joins.moij import MoijSettings
from semistream.joins.pcsrj import PcsrjSettings
from semistream.lab.arms_core import checksum_of, load_code
from semistream.lab.cells import BenchmarkError, Cell, enriched
from semistream.lab.data import BenchData
from semistream.lab.memory import MemorySampler, give_back_memory
from semistream.stats import Stats
from semistream.stores import MasterStore
from semistream.workloads.zipf import ZipfWorkload

# Joins with other settings than their own, as arms beside them.
VARIANTS: dict[str, tuple[str, Any]] = {
    "pcsrj": ("pcsrj", PcsrjSettings(nodes=2, workers="processes")),
    "pcsrj_one": ("pcsrj", PcsrjSettings(nodes=1, workers="processes")),
    "moij_printed": ("moij", MoijSettings(eviction="printed", inequality="printed")),
}
ARMS = tuple(dict.fromkeys([*(name for name in JOINS if name != "reference"), *VARIANTS]))
BATCH = 20_000
_MOST_WARM, _MOST_MEASURED = 20_000_000, 4_000_000
_MOST_A_SECOND = 4_000_000
_CHECKED = 2_000


@dataclass
class _Moment:
    """Counters and clock at a point of the stream."""

    stats: Stats
    rows: int
    seconds: float
    cpu: float


def run(cell: Cell, data: BenchData) -> dict[str, Any]:
    """Run one cell in this process."""
    from semistream.engine import make_join

    params = cell.params
    load = ZipfWorkload(params["rows"], skew=params["skew"], shuffled=params["layout"] == "shuffled")
    algorithm, settings = VARIANTS.get(cell.arm, (cell.arm, None))
    store = MasterStore.open(data.store(), direct=bool(params.get("direct")))
    warm_rows = min(_MOST_WARM, 3 * params["rows"])
    most = int(min(_MOST_MEASURED, _MOST_A_SECOND * params["seconds"]))
    batches = [load.stream(start, BATCH) for start in range(0, warm_rows + most, BATCH)]
    pa.set_cpu_count(1)
    load_code(cell, data)
    give_back_memory()
    with MemorySampler(os.getpid()) as sampler:
        sampler.mark_idle()
        join: Any = make_join(
            batches[0].schema,
            store,
            on="key",
            memory=params["memory"],
            algorithm=algorithm,
            columns=enriched(params["columns"]),
            settings=settings,
        )
        moments: list[_Moment] = []
        if algorithm == "pcsrj":  # its nodes tell what they counted when a stream ends: so two streams
            rows = _in_two_streams(join, batches, warm_rows, params, moments)
        else:
            rows = sum(out.num_rows for out in join.join(_feed(join, batches, warm_rows, params, moments)))
        if rows != moments[-1].rows:
            raise BenchmarkError(f"{rows:,} rows came out of {moments[-1].rows:,}; every stream row has one match here")
        waits = _waits(join)
        checks = {"last": checksum_of(join.join([load.stream(10**9, _CHECKED)]))}
        join.check()
    begin, end = moments
    counted, seconds = end.stats.since(begin.stats), end.seconds - begin.seconds
    fed = end.rows - begin.rows
    return {
        "rows_per_second": fed / seconds,
        "batch_seconds": seconds / max(1, fed // BATCH),
        "rows": fed,
        "warm_rows": begin.rows,
        "checksum": checks,
        "tuples_per_read": fed / counted.read_requests if counted.read_requests else None,
        "tuples_per_page": fed / counted.pages_read if counted.pages_read else None,
        "bytes_per_tuple": counted.bytes_read / fed,
        "hit_ratio": counted.hit_ratio,
        "matched": counted.matched,
        "pages_read": counted.pages_read,
        "bytes_read": counted.bytes_read,
        "read_requests": counted.read_requests,
        "peak_bytes": join.stats.peak_bytes,
        "budget_bytes": join.budget.total,
        "pss_growth_bytes": sampler.usage.growth,
        "workers": 1,
        "cores_used": (end.cpu - begin.cpu) / seconds,
        **waits,
    }


def _feed(
    join: Any, batches: list[pa.RecordBatch], warm_rows: int, params: dict[str, Any], moments: list[_Moment]
) -> Iterator[pa.RecordBatch]:
    """The stream; notes where the measured part begins and ends."""
    fed, started = 0, time.perf_counter()
    for batch in batches:
        now = time.perf_counter()
        if not moments and (fed >= warm_rows or now - started > params["warm_seconds"]):
            moments.append(_moment(join, fed))
            for one in _meetings(join):
                one.waits = Waits()
        elif moments and now - moments[0].seconds > params["seconds"]:
            break
        yield batch
        fed += batch.num_rows
    moments.append(_moment(join, fed))


def _in_two_streams(
    join: Any, batches: list[pa.RecordBatch], warm_rows: int, params: dict[str, Any], moments: list[_Moment]
) -> int:
    """As `_feed`, but everybody has left before the measured part begins, and before it ends."""
    waiting, fed, rows = iter(batches), 0, 0

    def take(seconds: float, most: int) -> Iterator[pa.RecordBatch]:
        nonlocal fed
        until = time.perf_counter() + seconds
        while fed < most and time.perf_counter() < until and (batch := next(waiting, None)) is not None:
            fed += batch.num_rows
            yield batch

    rows += sum(out.num_rows for out in join.join(take(params["warm_seconds"], warm_rows)))
    moments.append(_moment(join, fed))
    rows += sum(out.num_rows for out in join.join(take(params["seconds"], fed + _MOST_MEASURED)))
    moments.append(_moment(join, fed))
    return rows


def _moment(join: Any, fed: int) -> _Moment:
    return _Moment(_counters(join), fed, time.perf_counter(), time.process_time())


def _parts(join: Any) -> list[Any]:
    """The join itself, or its nodes."""
    return list(getattr(join, "nodes", [join]))


def _counters(join: Any) -> Stats:
    return reduce(add, (part.stats.copy() for part in _parts(join)))


def _meetings(join: Any) -> list[Any]:
    return [part.meeting for part in _parts(join) if hasattr(part, "meeting")]


def _waits(join: Any) -> dict[str, float]:
    """How long tuples waited, where the join makes them wait by itself."""
    waits = [one.waits for one in _meetings(join)]
    tuples = sum(one.tuples for one in waits)
    if not tuples:
        return {}
    return {
        "wait_iterations": sum(one.iterations for one in waits) / tuples,
        "longest_wait_iterations": max(one.longest for one in waits),
        "wait_seconds": sum(one.seconds for one in waits) / tuples,
        "longest_wait_seconds": max(one.longest_seconds for one in waits),
    }
