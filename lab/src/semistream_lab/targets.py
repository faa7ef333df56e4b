"""What the benchmark has to reach, and whether it does.

A ratio of two arms is the median of the ratios of each repetition: both ran within the same minutes, so the machine's
mood is mostly divided out.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from semistream.budget import format_bytes
from semistream_lab.cells import COLUMN_WORDS
from semistream_lab.results import Group

STATED_FOR = 10_000_000  # master rows
NATIVE = ("plain", "bucketed", "broadcast_stream")
_MEMORY_SHARE, _MEMORY_WORKER = 1.1, 64 << 20
_MEMORY = "10%"
_CORE_PLACE = ("rows", "batch_rows", "columns", "skew")
OURS = {"sweep": "sweep, plain store", "sweep_groups": "sweep, store with a column group"}  # each is judged apart
_WIDE = ("text", "all")  # columns that are most of a row
# each of them against DuckDB's table, one thread each, by rows of a batch and memory
_CORE = {(200_000, "10%"): 3.0, (200_000, "1%"): 1.5, (2_000_000, "10%"): 2.5, (2_000_000, "1%"): 1.2}
_TWO = 2.0  # the same, two threads each
_AHEAD = 1.0  # the same with columns that are most of a row, or a master larger than `STATED_FOR`
_BOTH = 1.8  # two threads against one
_RATE = 7e6  # rows a second, one thread
_GROWTH = 0.75  # of the smallest master's rate, with the largest


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
        ("narrow", 200_000, 0.92, 5.0),
        ("narrow", 2_000_000, 0.9, 2.5),
        ("wide", 200_000, 1.8, None),
        ("wide", 2_000_000, 1.8, None),
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


def rival(group: Group, groups: Iterable[Group]) -> Group | None:
    """DuckDB's own table on the same stream, with the same memory and as many threads."""
    same = {name: group.params.get(name) for name in (*_CORE_PLACE, "memory", "cold")}
    threads = group.params.get("threads", 1)
    return _one(groups, "duckdb_table", **same, threads=threads)


def _core(groups: list[Group]) -> Iterator[Target]:
    for arm, words in OURS.items():
        yield from _of_arm([g for g in groups if g.suite == "core"], arm, words)


def _of_arm(groups: list[Group], arm: str, words: str) -> Iterator[Target]:
    ours = [g for g in groups if g.arm == arm and not g.params.get("cold")]
    for group in ours:
        params, threads = group.params, group.params.get("threads", 1)
        if params.get("direct") or params.get("skew", 1.0) != 1.0 or params["batch_rows"] not in (200_000, 2_000_000):
            continue
        where = core_place(group)
        much = params["columns"] in _WIDE or params["rows"] > STATED_FOR
        if params["memory"] == _MEMORY and threads == 1 and not much:
            rate = group.rate
            what = f"{words}: one thread, warm"
            yield Target(where, what, f"≥ {_RATE / 1e6:g} M rows/s", f"{rate / 1e6:.2f} M rows/s", rate >= _RATE)
        other = rival(group, groups)
        if other is not None and params["memory"] in ("10%", "1%"):
            aim = _AHEAD if much else _CORE[params["batch_rows"], params["memory"]] if threads == 1 else _TWO
            what = f"{words}: against DuckDB's table, {threads} thread{'s' if threads > 1 else ''} each"
            yield _at_least(where, what, aim, ratio(group, other))
        single = {name: params.get(name) for name in (*_CORE_PLACE, "memory", "direct")}
        one = next((g for g in ours if _has(g, **single) and g.params.get("threads", 1) == 1), None)
        if threads == 2 and one is not None:
            yield _at_least(where, f"{words}: two threads against one", _BOTH, ratio(group, one))
        if threads == 1 and params["memory"] == _MEMORY:
            place = {name: params.get(name) for name in _CORE_PLACE}
            direct = _one(ours, arm, **place, memory=_MEMORY, direct=True)
            if direct:
                yield _at_least(where, f"{words}: with O_DIRECT against warm", 0.5, ratio(direct, group))
            small = next((g for g in ours if _has(g, **place, memory="1%") and g.params.get("threads", 1) == 1), None)
            if small:
                yield _at_least(where, f"{words}: at 1 % memory against 10 %", 0.5, ratio(small, group))


def core_place(group: Group) -> str:
    """Batches, memory, columns and keys of a cell, in words."""
    params = group.params
    columns = COLUMN_WORDS[params["columns"]]
    skew = params.get("skew", 1.0)
    keys = "" if skew == 1.0 else ", uniform keys" if skew == 0 else f", skew {skew:g}"
    return f"core, {params['batch_rows']:,}-row batches, memory {params['memory']}, {columns}{keys}"


def grown(groups: Iterable[Group]) -> list[tuple[str, dict[int, Group]]]:
    """Arms that were run with several masters, all else being the same: their results by rows of the master."""
    found: dict[str, dict[int, Group]] = {}
    for group in groups:
        if group.suite == "core" and group.arm != "build" and not group.params.get("cold"):
            same = {k: v for k, v in group.params.items() if k not in ("rows", "warmup", "batches")}
            found.setdefault(json.dumps([group.arm, same], sort_keys=True), {})[group.params["rows"]] = group
    return [(key, dict(sorted(sizes.items()))) for key, sizes in found.items() if len(sizes) > 1]


def growth_targets(groups: Iterable[Group]) -> Iterator[Target]:
    """Does the rate hold as the master grows, at the same share of it as memory?"""
    for _, sizes in grown(groups):
        small, large = next(iter(sizes.values())), list(sizes.values())[-1]
        if large.arm in OURS and not large.params.get("direct") and large.params.get("threads", 1) == 1:
            rows = [group.params["rows"] for group in (small, large)]
            what = f"{OURS[large.arm]}: rate with {rows[1]:,} rows against {rows[0]:,}"
            yield _at_least(core_place(large), what, _GROWTH, ratio(large, small))


def _build(groups: list[Group]) -> Iterator[Target]:
    for group in groups:
        if group.arm == "build":
            seconds, peak = group.median("batch_seconds") or 0.0, group.median("peak_bytes") or 0.0
            where = f"store build, {group.params['rows']:,} unsorted rows"
            yield Target(where, "time to build", "≤ 60 s", f"{seconds:.1f} s", seconds <= 60)
            yield Target(where, "peak memory of the build", "≤ 2 GB", format_bytes(peak), peak <= 2e9)


def _memory(groups: list[Group]) -> Iterator[Target]:
    """Of each of our arms the run that comes nearest to its bound, or passes it by most."""
    for arm, words in {"semistream": "semistream", **OURS}.items():
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
            what = f"memory growth of {words}"
            yield Target(where, what, f"≤ {format_bytes(bound)}", format_bytes(growth), growth <= bound)


def _one(groups: Iterable[Group], arm: str, **params: object) -> Group | None:
    return next((group for group in groups if group.arm == arm and _has(group, **params)), None)


def _has(group: Group, **params: object) -> bool:
    return all(group.params.get(name) == value for name, value in params.items())


def _words(arm: str) -> str:
    return arm.replace("_", " ")


def _at_least(where: str, what: str, wanted: float, measured: float) -> Target:
    return Target(where, what, f"≥ {wanted:g}×", f"{measured:.2f}×", measured >= wanted)
