"""`semistream calibrate`: measure, on this machine, what the cost models only count.

A store of two million rows is made and one of a tenth of that, and every join runs on them for a moment at several
budgets and skews: a small budget makes small pieces of the stream, and only on a large store many tuples per piece, so
two sizes tell apart what a piece costs and what a read does. From rows, reads, pages, hits and seconds of these runs
its six terms are fitted (never below zero). A machine that others use too is now faster and now slower, so the same
short run stands before and after every few of them, and its rate tells at which pace they were measured. The steps that
the papers name (probe, insert, delete, output), encoding of keys and the device's s + t·b are measured one by one.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.budget import Budget
from semistream.joins import JOINS, choose_join
from semistream.joins.contract import Profile
from semistream.joins.output import MOST_BYTES, Output
from semistream.joins.papers.stream_table import StreamTable
from semistream.keys import KeyCodec
from semistream.lookup.bind import bind
from semistream.lookup.spec import LookupSpec
from semistream.planner.machine import fingerprint
from semistream.planner.rates import Costs, Terms
from semistream.stats import Stats
from semistream.stores import MasterStore
from semistream_lab.measuring import BATCH, endless, measure
from semistream_lab.pace import PACE_ROWS, pace
from semistream_lab.workloads.zipf import ZipfWorkload

ROWS = 10 * PACE_ROWS
_PARTS = {1: (0.01, 0.05, 0.3), 10: (0.005, 0.03, 0.3)}  # of the rows, and the budgets on that store
_SKEWS = (0.0, 0.5, 0.8, 1.1)
_COLUMNS = ["surrogate", "price", "vendor"]
_STEP = 200_000  # tuples for the papers' steps
_FILL = 20  # a large cache takes longer to fill: so many times the seconds of a run for one of two million rows
# As in `Terms`: read, page, miss, hit, piece, far.
_USUAL: npt.NDArray[np.float64] = np.array([100e-6, 3e-6, 0.5e-6, 0.2e-6, 200e-6, 0.1e-6])
_TRUST = 0.05  # in them, against a relative error of one run
Report = Callable[[str, int, int], None]


def calibrate(
    directory: Path | None = None,
    *,
    joins: Sequence[str] = tuple(JOINS),
    rows: int = ROWS,
    seconds: float = 0.4,
    report: Report = lambda *_: None,
) -> Costs:
    """Measure everything, in about twenty minutes. Stores are made in ``directory``, a temporary one if none."""
    joins = [choose_join("joins", name) for name in joins]
    with tempfile.TemporaryDirectory(dir=directory, prefix="semistream-calibration-") as place:
        report("making stores", 0, len(joins) + 2)
        stores = {
            part: MasterStore.build(ZipfWorkload(rows // part).master(), Path(place) / f"store{part}", key="key")
            for part in _PARTS
        }
        runs: dict[str, list[_Run]] = {name: [] for name in joins}
        paces = [pace(stores[10])]
        for number, name in enumerate(joins, 1):
            report(name, number, len(joins) + 2)
            for skew in _SKEWS:
                # A node of pcsrj is an sscj, and tells what it counted only at the end of a stream.
                found = list(_runs("sscj" if name == "pcsrj" else name, stores, skew, seconds))
                paces.append(pace(stores[10]))
                runs[name] += [run.at_pace((paces[-2] + paces[-1]) / 2) for run in found]
        usual = statistics.median(paces)
        terms = {name: _fit([run.at_pace(1 / usual) for run in found]) for name, found in runs.items()}
        report("keys, steps and device", len(joins) + 1, len(joins) + 2)
        steps = _steps(stores[1], ZipfWorkload(rows, skew=0.0))
        return Costs(fingerprint(), terms, _keys(), steps, dict(stores[1].manifest.device), usual)


def completed(costs: Costs, known: Costs) -> Costs:
    """With the joins that were not measured as they are known."""
    return replace(costs, joins=known.joins | costs.joins)


@dataclass(frozen=True)
class _Run:
    """A short run: what was counted, and the seconds beside the device's."""

    counts: list[float]  # requests, pages, misses, hits, pieces, far rows
    seconds: float

    def at_pace(self, pace: float) -> _Run:
        """What it would have taken at a pace of one, if this was the machine's then."""
        return replace(self, seconds=self.seconds * pace)


def _runs(name: str, stores: dict[int, MasterStore], skew: float, seconds: float) -> Iterator[_Run]:
    kind = JOINS[name]
    for part, store in stores.items():
        load = ZipfWorkload(store.rows, skew=skew)
        plan = bind(LookupSpec(on="key", columns=_COLUMNS), load.stream(0, 1).schema, store)
        for share in _PARTS[part] if name != "whole" else (2.0,):
            budget = Budget(int(store.bytes * share))
            if kind.least_bytes(store.facts, plan) > budget.total:
                continue
            seen = measure(
                kind(store, plan, budget),
                endless(load, min(BATCH, max(50, store.rows // 50))),
                warm_rows=6 * store.rows,
                warm_seconds=seconds * (3 + _FILL * share * store.rows / ROWS),
                seconds=seconds,
            )
            said, stats = kind.predict(store.facts, plan, budget.total, Profile(skew)), seen.stats
            missing = seen.rows * stats.misses / max(1, stats.hits + stats.misses)
            counts = [stats.read_requests, stats.pages_read, missing, seen.rows - missing]
            counts += [seen.rows / said.piece_rows, seen.rows * said.far_ratio]
            io = store.facts.device.seconds(stats.read_requests, stats.bytes_read)
            yield _Run(counts, max(0.1 * seen.seconds, seen.seconds - io))


def _fit(runs: list[_Run]) -> Terms:
    """Least squares of relative errors, every term at least zero: the best over all choices of terms that are not.

    What the runs do not tell apart (a join that always hits says nothing of misses) stays near what is usual. A run
    that was slow for a reason that is not counted weighs less in relative errors than one that was quick, so the fit
    leans to the quick side: it is scaled until half of the runs took longer than it says.
    """
    rows: npt.NDArray[np.float64] = np.array([run.counts for run in runs]) / [[run.seconds] for run in runs]
    x = np.concatenate([rows, _TRUST * np.diag(1 / _USUAL)])
    y = np.concatenate([np.ones(len(rows)), np.full(len(_USUAL), _TRUST)])
    best: npt.NDArray[np.float64] = _USUAL
    error = np.inf
    for chosen in itertools.product((False, True), repeat=len(_USUAL)):
        some = np.flatnonzero(chosen)
        if len(some) == 0:
            continue
        found = np.zeros(len(_USUAL))
        found[some] = np.linalg.lstsq(x[:, some], y, rcond=None)[0]
        left = float(((x @ found - y) ** 2).sum())
        if (found >= 0).all() and left < error:
            best, error = found, left
    return Terms(*(float(value) for value in best / np.median(rows @ best)))


def _keys() -> dict[str, float]:
    """Seconds to encode a key, by its type."""
    numbers = np.arange(100_000)
    text = pa.array([f"customer-{number}" for number in numbers])
    samples = {
        "integer": pa.array(numbers),
        "string": text,
        "binary": text.cast(pa.binary()),
        "decimal": pa.array([Decimal(int(number)) for number in numbers], pa.decimal128(18, 2)),
    }
    result = {}
    for name, column in samples.items():
        codec = KeyCodec([pa.field("k", column.type)])
        result[name] = _seconds(lambda codec=codec, column=column: codec.encode([column])) / len(column)  # type: ignore[misc]
    return result


def _steps(store: MasterStore, load: ZipfWorkload) -> dict[str, float]:
    """The papers' terms, each a tuple: insert into H, probe of H, delete from H, output."""
    batch = load.stream(0, _STEP)
    plan = bind(LookupSpec(on="key", columns=_COLUMNS), batch.schema, store)
    codes, _ = store.codec.encode([batch.column("key")])
    table = StreamTable(batch.schema, _STEP)
    start = time.perf_counter()
    slots = table.add(batch, codes)
    insert = time.perf_counter() - start
    probe = _seconds(lambda: table.lookup(codes))
    reader = store.reader()  # the rows lie in its buffer
    keys, rows = next(iter(reader.rows()))
    count = min(len(keys), _STEP)
    output, some = Output(plan, store.layout, Stats(), (count, MOST_BYTES)), np.arange(count)
    out = _seconds(lambda: output.pairs(table.take(slots[:count]), some, keys[:count], rows[:count]))
    start = time.perf_counter()
    table.remove(np.unique(table.lookup(codes)))
    delete = time.perf_counter() - start
    return {"insert": insert / _STEP, "probe": probe / _STEP, "delete": delete / _STEP, "output": out / count}


def _seconds(run: Callable[[], object]) -> float:
    """The best of three."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)
