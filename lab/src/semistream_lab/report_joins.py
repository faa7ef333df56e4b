"""The part of the report that `bench joins` fills: each axis as curves, the centre as a table, the papers' ratios.

Reads differ in size from join to join, so the yardstick is stream tuples per page read (4 KiB); tuples per read are
shown too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from html import escape

from semistream.budget import format_bytes
from semistream_lab import plots, report_core
from semistream_lab.grid_joins import AXES
from semistream_lab.results import Group
from semistream_lab.targets import Target, ratio

_MAIN = {
    "sweep": plots.OURS,
    "moij": "#b4530a",
    "sscj": "#c99700",
    "hybrid": "#3d8b40",
    "mesh": "#7d4fa8",
    "inl": "#b42318",
}
_UNITS = {"rows": "rows of the master", "memory": "memory, share of the store", "skew": "skew of the stream"}


def centre_of(groups: list[Group]) -> dict[str, object]:
    """The point that most cells share their values with: the first of each axis that was run."""
    return {axis: Counter(group.params[axis] for group in groups).most_common(1)[0][0] for axis in AXES}


def at(groups: list[Group], point: dict[str, object]) -> dict[str, Group]:
    """The arms at one point."""
    return {g.arm: g for g in groups if all(g.params[name] == value for name, value in point.items())}


def curves(groups: list[Group]) -> Iterator[tuple[str, str]]:
    """(title, picture) of every axis with at least two values."""
    centre = centre_of(groups)
    for axis, words in _UNITS.items():
        values = sorted({group.params[axis] for group in groups}, key=lambda v: float(str(v).rstrip("%")))
        for name, title in (("tuples_per_page", "stream tuples per page read"), ("rows_per_second", "rows per second")):
            lines = {}
            for arm in dict.fromkeys(group.arm for group in groups):
                found = [at(groups, {**centre, axis: value}).get(arm) for value in values]
                medians = [g.median(name) if g is not None else None for g in found]  # None: nothing was read
                points = [(str(v), m) for v, m in zip(values, medians, strict=True) if m]
                if len(points) > 1:
                    lines[arm] = points
            if lines:
                labels = [str(value) if axis != "rows" else plots.short(float(value)) for value in values]
                picture = plots.lines(lines, [str(v) for v in values], labels, words, title, _MAIN)
                yield f"{title}, by {words}", picture


def table(groups: list[Group], point: dict[str, object]) -> tuple[list[str], list[list[str]]]:
    """All arms at one point, the best in tuples per page first."""
    header = ["join", "tuples per page", "per read", "bytes per tuple", "hits", "rows/s", "held", "growth"]
    header += ["wait, iterations", "longest", "wait", "longest", "CPU to others"]
    found = sorted(at(groups, point).values(), key=lambda group: -(group.median("tuples_per_page") or 0))
    return header, [_line(group) for group in found]


def _line(group: Group) -> list[str]:
    def number(name: str, form: str) -> str:
        value = group.median(name)
        return "–" if value is None else format(value, form)

    def tuples(name: str) -> str:
        value = group.median(name)
        return "–" if value is None else format(value, ",.0f" if value >= 100 else ".3g")

    def size(name: str) -> str:
        value = group.median(name)
        return "–" if value is None else format_bytes(value)

    def seconds(name: str) -> str:
        value = group.median(name)
        return "–" if value is None else f"{value:.2g} s"

    return [
        f"<b>{escape(group.arm.replace('_', ' '))}</b>",
        tuples("tuples_per_page"),
        tuples("tuples_per_read"),
        number("bytes_per_tuple", ",.0f"),
        number("hit_ratio", ".0%"),
        plots.short(group.rate),
        size("peak_bytes"),
        size("pss_growth_bytes"),
        number("wait_iterations", ",.0f"),
        number("longest_wait_iterations", ",.0f"),
        seconds("wait_seconds"),
        seconds("longest_wait_seconds"),
        report_core.to_others(group),
    ]


def targets(groups: list[Group]) -> Iterator[Target]:
    """The papers' ratios, where both sides were run."""
    centre = centre_of(groups)
    where = f"{centre['rows']:,} rows, {centre['memory']} memory, skew {{}}, {centre['layout']}"
    skewed = at(groups, {**centre, "skew": 1.0})
    uniform = at(groups, {**centre, "skew": 0.0})
    name = "tuples_per_page"
    for above, below, least, most in (
        ("sweep", "moij", 1.0, None),
        ("moij", "sscj", 1.5, 2.0),
        ("sscj", "hybrid", 3.0, 4.5),
        ("hybrid", "mesh", 1.0, None),
        ("mesh", "inl", 8.0, 12.0),
    ):
        if above in skewed and below in skewed:
            yield _between(where.format(1), above, below, least, most, ratio(skewed[above], skewed[below], name))
    if {"hybrid", "mesh"} <= uniform.keys():
        value = ratio(uniform["hybrid"], uniform["mesh"], name)
        yield _between(where.format(0), "hybrid", "mesh", 1.8, 2.2, value)
    if {"pcsrj", "pcsrj_one"} <= skewed.keys():
        value = ratio(skewed["pcsrj"], skewed["pcsrj_one"])
        yield Target(where.format(1), "pcsrj, two nodes against one, rows/s", "≥ 1.6×", f"{value:.2f}×", value >= 1.6)
    for arm in ("sscj", "moij"):
        large = at(groups, {**centre, "rows": 10_000_000, "skew": 1.0}).get(arm)
        if large is not None:
            met = large.rate >= 1e6
            yield Target("10,000,000 rows", f"{arm}, rows/s", "≥ 1 M", f"{large.rate / 1e6:.2f} M", met)
    over = [(result["peak_bytes"] / result["budget_bytes"], group) for group in groups for result in group.results]
    if over:
        share, group = max(over, key=lambda one: one[0])
        yield Target(f"worst of {len(over)} runs: {group.arm}", "bytes held", "≤ budget", f"{share:.1%}", share <= 1)


def _between(where: str, above: str, below: str, least: float, most: float | None, value: float) -> Target:
    wanted = f"≥ {least:g}×" if most is None else f"{least:g}× to {most:g}×"
    met = value >= least and (most is None or value <= most)
    return Target(where, f"{above} against {below}, tuples per page", wanted, f"{value:.2f}×", met)
