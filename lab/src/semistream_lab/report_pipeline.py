"""The part of the report that `bench pipeline` fills: rates, latencies, the soak's curves, and the targets."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

import numpy as np

from semistream.budget import format_bytes
from semistream_lab import plots, report_core
from semistream_lab.results import Group
from semistream_lab.targets import Target, ratio

RATE, LATENCY = 5.0, 5.0  # what is aimed at, against the same pipeline by Spark's joins
_LAG_GROWTH = 1.2  # of the last third's p99 over the first third's, which counts as the same
_MEMORY_GROWTH = 0.05  # of the memory, in an hour
_CHANGES = 1.25  # p99 of a batch's time while a master changes, over that when none does
STATED_FOR = "10,000,000 products and batches of 200,000 rows"
METHOD = f"""
<p>Targets are stated for {STATED_FOR}.</p>
<p>Sales of five columns get surrogate keys and attributes of three masters (of all, a tenth and a thousandth of the
rows), a computed column, and go into a Delta table exactly once. <b>semistream</b> is a pipeline with three lookups,
<b>spark</b> the same pipeline whose source is joined with the same three masters, as Parquet in key order, by Spark's
stream-static left joins as Spark plans them. All else is the same: reading, staging, ledger, commits. Both tables are
compared by count and sum of row hashes. <i>Backlog</i>: all batches wait; rows over the time between commits, after the
first batches. <i>Closed loop</i>: the next batch arrives when the last one is done; latency is from arrival to commit.
Fresh process a run, in turns; <code>local[2]</code>, 4 GB for the driver, all files in the page cache.</p>
"""


def places(groups: list[Group]) -> list[tuple[int, int]]:
    """(master rows, rows per batch), largest first."""
    return sorted({(group.params["rows"], group.params["batch_rows"]) for group in groups}, reverse=True)


def at(groups: list[Group], place: tuple[int, int]) -> list[Group]:
    """The groups of one place."""
    return [group for group in groups if (group.params["rows"], group.params["batch_rows"]) == place]


def waits(group: Group, share: float) -> float:
    """A quantile of the latencies of all repetitions together."""
    return float(np.quantile([one for result in group.results for one in result["latencies"]], share))


def targets(groups: list[Group]) -> Iterator[Target]:
    """What the pipeline has to reach."""
    for place in places(groups):
        here = at(groups, place)
        where = f"{place[0]:,} products, {place[1]:,}-row batches"
        ours, spark = (next((group for group in here if group.arm == arm), None) for arm in ("semistream", "spark"))
        if ours and spark:
            rate = ratio(ours, spark)
            yield Target(where, "rate against Spark's joins", f"≥ {RATE:g}×", f"{rate:.2f}×", rate >= RATE)
            for share, name in ((0.5, "p50"), (0.99, "p99")):
                part = waits(ours, share) / waits(spark, share)
                what = f"{name} latency against Spark's joins"
                yield Target(where, what, f"≤ 1/{LATENCY:g}", f"1/{1 / part:.2f}", part <= 1 / LATENCY)
        for group in here:
            if group.arm.startswith("soak"):
                yield from _soaked(group, f"{where}, {_soak_name(group)}")
        still = next((group for group in here if group.arm == "soak"), None)
        changing = next((group for group in here if group.arm == "soak_changes"), None)
        if still and changing:
            growth = ratio(changing, still, "batch_p99")
            what = "p99 batch time while a master changes, against none"
            yield Target(where, what, f"≤ {_CHANGES:g}×", f"{growth:.2f}×", growth <= _CHANGES)
        for group in here:
            good = all(result["accounted"] for result in group.results)
            what = f"every row in the table once: {group.arm.replace('_', ' ')}"
            yield Target(where, what, "all", "all" if good else "not all", good)


def _soaked(group: Group, where: str) -> Iterator[Target]:
    first, last = group.median("lag_p99_first_third") or 0.0, group.median("lag_p99_last_third") or 0.0
    yield Target(
        where,
        "p99 lag of the last third against the first",
        f"≤ {_LAG_GROWTH:g}×",
        f"{last:.2f} s / {first:.2f} s = {last / first:.2f}×",
        last <= _LAG_GROWTH * first,
    )
    grows, size = group.median("pss_slope_bytes_an_hour") or 0.0, group.median("pss_bytes") or 1.0
    yield Target(
        where,
        "memory's slope in an hour, of driver's Python and workers",
        f"≤ {_MEMORY_GROWTH:.0%} of {format_bytes(size)}",
        f"{'−' if grows < 0 else '+'}{format_bytes(abs(grows))}",
        grows <= _MEMORY_GROWTH * size,
    )


def _soak_name(group: Group) -> str:
    params = group.params
    change = ", a master changing" if group.arm == "soak_changes" else ""
    return f"soak of {params['minutes']:g} minutes at {params['rate']:,.0f} rows/s{change}"


def pictures(groups: list[Group]) -> Iterator[tuple[str, str]]:
    """(title, picture): rates, latencies, and the curves of each soak."""
    for place in places(groups):
        here = at(groups, place)
        where = f"{place[0]:,} products, {place[1]:,}-row batches"
        arms = [group for group in here if not group.arm.startswith("soak")]
        if arms:
            bars = [plots.Bar(g.arm, g.rate, *g.spread("rows_per_second"), color=_color(g)) for g in arms]
            yield f"Backlog: {where}", plots.rate_bars(bars)
            yield f"Closed loop, seconds from arrival to commit: {where}", _latencies(arms)
        for group in here:
            if group.arm.startswith("soak"):
                yield f"{_soak_name(group)}: {where}", _curves(group)


def table(groups: list[Group]) -> tuple[list[str], list[list[str]]]:
    """A line an arm."""
    header = [
        "arm",
        "products",
        "batch",
        "memory",
        "rows/s",
        "s a batch",
        "p50",
        "p99",
        "Python's memory",
        "CPU to others",
    ]
    lines = []
    for group in groups:
        soaked = group.arm.startswith("soak")
        p50, p99 = (
            (group.median("lag_p50"), group.median("lag_p99")) if soaked else (waits(group, 0.5), waits(group, 0.99))
        )
        lines.append(
            [
                f"<b>{escape(group.arm.replace('_', ' '))}</b>",
                plots.short(group.params["rows"]),
                plots.short(group.params["batch_rows"]),
                group.params.get("memory", "–"),
                plots.short(group.rate),
                f"{group.median('batch_seconds'):.3g}",
                f"{p50:.2f} s",
                f"{p99:.2f} s",
                format_bytes(group.median("pss_bytes" if soaked else "pss_peak_bytes") or 0),
                report_core.to_others(group),
            ]
        )
    return header, lines


def _color(group: Group) -> str:
    return plots.OTHERS if group.arm == "spark" else plots.OURS


def _latencies(groups: list[Group]) -> str:
    """The share of batches that were in the table by then."""
    with plots.figure(3.0, repr([group.arm for group in groups])) as (axes, text):
        for group in groups:
            found = np.sort([one for result in group.results for one in result["latencies"]])
            axes.step(found, np.arange(1, len(found) + 1) / len(found), where="post", color=_color(group), linewidth=2)
            axes.annotate(group.arm, (found[len(found) // 2], 0.5), (4, 4), textcoords="offset points")
        axes.set_xlim(left=0)
        axes.set_xlabel("seconds from arrival to commit")
        axes.set_ylabel("share of batches")
        axes.set_ylim(0, 1.02)
        axes.spines[["top", "right"]].set_visible(False)
    return text.getvalue()


def _curves(group: Group) -> str:
    """Lag and memory over time, of the last repetition."""
    result = group.results[-1]
    with plots.figure(4.2, repr(group.params) + group.arm, 2) as ((above, below), text):
        for axes, name, scale, words in (
            (above, "lag_curve", 1.0, "lag, s"),
            (below, "memory_curve", 1e-6, "memory, MB"),
        ):
            curve = np.array(result[name]).reshape(-1, 2)
            axes.plot(curve[:, 0] / 60, curve[:, 1] * scale, color=plots.OURS, linewidth=1.5)
            axes.set_ylabel(words)
            axes.set_ylim(bottom=0)
            axes.spines[["top", "right"]].set_visible(False)
        below.set_xlabel("minutes")
    return text.getvalue()
