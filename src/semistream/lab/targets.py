"""What the benchmark has to reach, and whether it does.

A ratio of two arms is the median of the ratios of each repetition: both ran within the same minutes, so the machine's
mood is mostly divided out.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from semistream.budget import format_bytes, parse_bytes
from semistream.lab.results import Group

STATED_FOR = 10_000_000  # master rows
NATIVE = ("plain", "bucketed", "broadcast_stream")
_MEMORY_SHARE, _MEMORY_WORKER = 1.1, 64 << 20
_MEMORY = "10%"


@dataclass(frozen=True)
class Target:
    """One line of the table of targets."""

    what: str
    wanted: str
    measured: str
    met: bool


def ratio(above: Group, below: Group) -> float:
    """Rate of one arm over that of another, repetition by repetition."""
    rates = {result["repetition"]: result["rows_per_second"] for result in below.results}
    pairs = [r["rows_per_second"] / rates[r["repetition"]] for r in above.results if r["repetition"] in rates]
    return statistics.median(pairs) if pairs else above.rate / below.rate


def targets(groups: list[Group]) -> list[Target]:
    """All targets for which something was measured; the groups are of one number of master rows."""
    return [*_spark(groups), *_core(groups), *_build(groups), *_memory(groups)]


def _spark(groups: list[Group]) -> Iterator[Target]:
    for stream, size, passing, native in (
        ("narrow", 200_000, 0.9, 5.0),
        ("narrow", 2_000_000, 0.75, 2.5),
        ("wide", 200_000, 0.95, None),
        ("wide", 2_000_000, 1.2, None),
    ):
        here = [
            g for g in groups if g.suite == "spark" and (g.params["stream"], g.params["batch_rows"]) == (stream, size)
        ]
        ours = _one(here, "semistream", memory=_MEMORY)
        where = f"Spark, {stream} stream, {size:,}-row batches"
        through = _one(here, "passthrough")
        if ours and through:
            yield _at_least(f"{where}: against pass-through", passing, ratio(ours, through))
        others = [group for group in here if group.arm in NATIVE]
        if ours and others and native is not None:
            best = max(others, key=lambda group: group.rate)
            yield _at_least(f"{where}: against the best native arm ({best.arm})", native, ratio(ours, best))


def _core(groups: list[Group]) -> Iterator[Target]:
    for size, against_duckdb in ((200_000, 8.0), (2_000_000, 2.0)):
        here = [g for g in groups if g.suite == "core" and g.params.get("batch_rows") == size]
        warm = _one(here, "sweep", memory=_MEMORY, direct=False)
        where = f"core, one thread, {size:,}-row batches"
        if warm is None:
            continue
        yield Target(f"{where}: sweep, warm", "≥ 4.00 M rows/s", f"{warm.rate / 1e6:.2f} M rows/s", warm.rate >= 4e6)
        ducks = [
            g for g in here if g.arm.startswith("duckdb") and g.params["threads"] == 1 and g.params["memory"] == _MEMORY
        ]
        if ducks:
            best = max(ducks, key=lambda group: group.rate)
            yield _at_least(f"{where}: sweep against DuckDB's best ({best.arm})", against_duckdb, ratio(warm, best))
        direct = _one(here, "sweep", memory=_MEMORY, direct=True)
        if direct:
            yield _at_least(f"{where}: sweep with O_DIRECT against warm", 0.5, ratio(direct, warm))
        small = _one(here, "sweep", memory="1%", direct=False)
        if small:
            yield _at_least(f"{where}: sweep at 1 % memory against 10 %", 0.5, ratio(small, warm))


def _build(groups: list[Group]) -> Iterator[Target]:
    for group in groups:
        if group.arm == "build":
            seconds, peak = group.median("batch_seconds") or 0.0, group.median("peak_bytes") or 0.0
            yield Target("store build, unsorted rows: time", "≤ 60 s", f"{seconds:.1f} s", seconds <= 60)
            yield Target("store build, unsorted rows: peak memory", "≤ 2.0 GB", format_bytes(peak), peak <= 2e9)


def _memory(groups: list[Group]) -> Iterator[Target]:
    for group in groups:
        if group.arm not in ("semistream", "sweep") or group.median("pss_growth_bytes") is None:
            continue
        budget, workers = group.median("budget_bytes") or 0.0, group.median("workers") or 1
        growth = max(result["pss_growth_bytes"] for result in group.results)
        bound = budget * _MEMORY_SHARE + workers * _MEMORY_WORKER
        extra = " O_DIRECT," if group.params.get("direct") else ""
        what = (
            f"memory of {group.arm}, {group.params['stream']} stream, {group.params['batch_rows']:,}-row batches,"
            f"{extra} budget {group.params['memory']} = {format_bytes(budget)}"
        )
        yield Target(what, f"≤ {format_bytes(bound)}", format_bytes(growth), growth <= bound)


def _one(groups: Iterable[Group], arm: str, **params: object) -> Group | None:
    def fits(group: Group) -> bool:
        return group.arm == arm and all(_same(group.params.get(name), value) for name, value in params.items())

    return next((group for group in groups if fits(group)), None)


def _same(have: object, want: object) -> bool:
    if isinstance(have, str) and isinstance(want, str) and have.endswith("%") and want.endswith("%"):
        return parse_bytes(have, 10**6) == parse_bytes(want, 10**6)
    return have == want


def _at_least(what: str, wanted: float, measured: float) -> Target:
    return Target(what, f"≥ {wanted:g}×", f"{measured:.2f}×", measured >= wanted)
