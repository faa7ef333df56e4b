"""What the benchmark has to reach, and whether it does.

A ratio of two arms is the median of the ratios of each repetition: both ran within the same minutes, so the machine's
mood is mostly divided out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from semistream.budget import format_bytes
from semistream_lab.results import Group

STATED_FOR = 10_000_000  # master rows
NATIVE = ("plain", "bucketed", "broadcast_stream")
_MEMORY_SHARE, _MEMORY_WORKER = 1.1, 64 << 20
_MEMORY = "10%"


@dataclass(frozen=True)
class Target:
    """One line of the table of targets."""

    where: str
    what: str
    wanted: str
    measured: str
    met: bool


def ratio(above: Group, below: Group, name: str = "rows_per_second") -> float:
    """A figure of one arm over that of another, repetition by repetition; NaN where one of them has none."""
    others = {result["repetition"]: result[name] for result in below.results if result[name]}
    pairs = [r[name] / others[r["repetition"]] for r in above.results if r[name] and r["repetition"] in others]
    if pairs:
        return statistics.median(pairs)
    one, other = above.median(name), below.median(name)
    return one / other if one and other else math.nan


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
        place = (stream, size)
        here = [g for g in groups if g.suite == "spark" and (g.params["stream"], g.params["batch_rows"]) == place]
        ours = _one(here, "semistream", memory=_MEMORY)
        where = f"Spark, {stream} stream, {size:,}-row batches"
        through = _one(here, "passthrough")
        if ours and through:
            yield _at_least(where, "semistream against pass-through", passing, ratio(ours, through))
        others = [group for group in here if group.arm in NATIVE]
        if ours and others and native is not None:
            best = max(others, key=lambda group: group.rate)
            yield _at_least(where, f"against the best native arm, {_words(best.arm)}", native, ratio(ours, best))


def _core(groups: list[Group]) -> Iterator[Target]:
    for size, against_duckdb in ((200_000, 8.0), (2_000_000, 2.0)):
        here = [g for g in groups if g.suite == "core" and g.params.get("batch_rows") == size]
        warm = _one(here, "sweep", memory=_MEMORY, direct=False)
        if warm is None:
            continue
        where = f"core, one thread, {size:,}-row batches"
        yield Target(where, "sweep, warm", "≥ 4 M rows/s", f"{warm.rate / 1e6:.2f} M rows/s", warm.rate >= 4e6)
        ducks = [g for g in here if g.arm.startswith("duckdb") and _has(g, threads=1, memory=_MEMORY)]
        if ducks:
            best = max(ducks, key=lambda group: group.rate)
            yield _at_least(where, f"against DuckDB's best arm, {_words(best.arm)}", against_duckdb, ratio(warm, best))
        direct = _one(here, "sweep", memory=_MEMORY, direct=True)
        if direct:
            yield _at_least(where, "with O_DIRECT against warm", 0.5, ratio(direct, warm))
        small = _one(here, "sweep", memory="1%", direct=False)
        if small:
            yield _at_least(where, "at 1 % memory against 10 %", 0.5, ratio(small, warm))


def _build(groups: list[Group]) -> Iterator[Target]:
    for group in groups:
        if group.arm == "build":
            seconds, peak = group.median("batch_seconds") or 0.0, group.median("peak_bytes") or 0.0
            where = f"store build, {group.params['rows']:,} unsorted rows"
            yield Target(where, "time to build", "≤ 60 s", f"{seconds:.1f} s", seconds <= 60)
            yield Target(where, "peak memory of the build", "≤ 2 GB", format_bytes(peak), peak <= 2e9)


def _memory(groups: list[Group]) -> Iterator[Target]:
    """Of each of our arms the run that comes nearest to its bound, or passes it by most."""
    for arm in ("semistream", "sweep"):
        runs = [
            (
                result["pss_growth_bytes"],
                result["budget_bytes"] * _MEMORY_SHARE + result["workers"] * _MEMORY_WORKER,
                group,
            )
            for group in groups
            for result in group.results
            if group.arm == arm and result.get("pss_growth_bytes") is not None
        ]
        if runs:
            growth, bound, group = max(runs, key=lambda run: run[0] / run[1])
            stream, size = group.params["stream"], group.params["batch_rows"]
            where = f"worst of {len(runs)} runs: {stream} stream, {size:,}-row batches, budget {group.params['memory']}"
            what = f"memory growth of {arm}"
            yield Target(where, what, f"≤ {format_bytes(bound)}", format_bytes(growth), growth <= bound)


def _one(groups: Iterable[Group], arm: str, **params: object) -> Group | None:
    return next((group for group in groups if group.arm == arm and _has(group, **params)), None)


def _has(group: Group, **params: object) -> bool:
    return all(group.params.get(name) == value for name, value in params.items())


def _words(arm: str) -> str:
    return arm.replace("_", " ")


def _at_least(where: str, what: str, wanted: float, measured: float) -> Target:
    return Target(where, what, f"≥ {wanted:g}×", f"{measured:.2f}×", measured >= wanted)
