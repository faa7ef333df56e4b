"""`results.jsonl` as one page: whether targets are met, plots and tables, how it was measured, and on what.

The page needs no other file and no script, and is laid out for a narrow screen first. Places where arms gave different
rows are named, and their times are not shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from semistream.budget import format_bytes
from semistream_lab import busy, plots, report_core, report_joins, report_pipeline, texts
from semistream_lab.peers import PEERS, peer
from semistream_lab.report_core import name_of
from semistream_lab.results import Group, Result, Results, cell_of, disagreements, grouped
from semistream_lab.targets import NATIVE, STATED_FOR, Target, growth_targets, ratio, rival, targets

OURS = ("semistream", "sweep", "sweep_groups")
BOUNDS = ("source", "passthrough", "whole")
Column = tuple[str, Callable[[Group], str]]


def write_report(directory: Path) -> Path:
    """Make ``report.html`` from the results of a directory."""
    target = directory / "report.html"
    target.write_text(make_page(Results.load(directory), noted(directory)), encoding="utf-8")
    return target


def noted(directory: Path) -> dict[str, Any]:
    """Machines and commands of the runs in a directory."""
    path = directory / "run.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"environments": {}, "commands": []}


def make_page(results: Results, run: dict[str, Any]) -> str:
    """The page as text."""
    differing = disagreements(results.done)
    wrong = {one.place for one in differing}
    usable = [result for result in results.done if cell_of(result).place not in wrong]
    body = notes("wrong", "Not shown, since arms gave different rows:", map(str, differing))
    failures = (f"{cell_of(line).label}: {line['error']}" for line in results.failed)
    body += notes("note", "Could not be run:", failures)
    groups = grouped(usable)
    body += _joins([group for group in groups if group.suite == "joins"])
    body += _pipeline([group for group in groups if group.suite == "pipeline"])
    others = [group for group in groups if group.suite not in ("joins", "pipeline")]
    for rows in sorted({group.params["rows"] for group in others}, reverse=True):
        body += _size(rows, [group for group in others if group.params["rows"] == rows])
    body += _growth(others)
    used = {result["environment"] for result in usable}
    facts = environments([one for key, one in run["environments"].items() if key in used])
    body = busy_note(usable, run["environments"]) + body
    return texts.PAGE.format(
        style=texts.STYLE,
        body=body or "<p>There are no results yet.</p>",
        method=texts.METHOD,
        environments=facts,
        commands="".join(f"<pre>{escape(command)}</pre>" for command in run["commands"]),
    )


def _size(rows: int, groups: list[Group]) -> str:
    """Everything about one number of master rows."""
    text = f"<h2>{rows:,} master rows</h2>"
    if rows != STATED_FOR:
        text += f"<p class=note>A small run. The targets are stated for {STATED_FOR:,} master rows.</p>"
    others = [group for group in groups if group.suite != "peers"]
    return text + _targets(targets(others)) + _spark(groups) + _core(groups) + _legend(others) + _peers(groups)


def _targets(found: Iterable[Target]) -> str:
    lines = [
        [
            "<span class=met>✓</span>" if target.met else "<span class=missed>✗</span>",
            f"{escape(target.what)}<br><small>{escape(target.where)}</small>",
            f"{escape(target.measured)}<br><small>{escape(target.wanted)}</small>",
        ]
        for target in found
    ]
    if not lines:
        return ""
    return "<h3>Targets</h3>" + table(["", "", "measured<br><small>target</small>"], lines, numbers=(2,))


def _joins(groups: list[Group]) -> str:
    """All joins of the literature on one grid."""
    if not groups:
        return ""
    centre = report_joins.centre_of(groups)
    text = f"<h2>Every join on one grid</h2>{texts.JOINS}" + _targets(report_joins.targets(groups))
    for title, picture in report_joins.curves(groups):
        text += f"<h3>{escape(title)}</h3>{picture}"
    points = [centre, *({**centre, axis: v} for axis, v in (("skew", 0.0), ("layout", "sorted")) if v != centre[axis])]
    for point in points:
        header, lines = report_joins.table(groups, point)
        if lines:
            where = f"{point['rows']:,} rows, {point['memory']} memory, skew {point['skew']:g}, {point['layout']}"
            marked = [number for number, line in enumerate(lines) if "<b>sweep</b>" in line[0]]
            text += f"<h3>{escape(where)}</h3>"
            text += table(header, lines, numbers=range(1, len(header)), marked=marked, kind="arms")
    return text


def _pipeline(groups: list[Group]) -> str:
    """Whole pipelines, from files to a table."""
    if not groups:
        return ""
    text = f"<h2>Pipelines: three masters, into a Delta table</h2>{report_pipeline.METHOD}"
    text += _targets(report_pipeline.targets(groups))
    for title, picture in report_pipeline.pictures(groups):
        text += f"<h3>{escape(title)}</h3>{picture}"
    header, lines = report_pipeline.table(groups)
    marked = [number for number, group in enumerate(groups) if group.arm != "spark"]
    return text + table(header, lines, numbers=range(1, len(header)), marked=marked, kind="arms")


def _spark(groups: list[Group]) -> str:
    text = ""
    spark = [group for group in groups if group.suite == "spark"]
    for stream, size, columns in sorted(
        {_spark_place(group) for group in spark}, key=lambda place: (place[0], place[1])
    ):
        here = [group for group in spark if _spark_place(group) == (stream, size, columns)]
        through = next((group for group in here if group.arm == "passthrough"), None)
        natives = [group for group in here if group.arm in NATIVE]
        best = max(natives, key=lambda group: group.rate, default=None)
        columns_shown: list[Column] = [
            ("× pass-through", partial(_ratio, base=through)),
            ("× best native", partial(_ratio, base=best)),
            ("workers' memory growth", lambda g: _size_of(g, "pss_growth_bytes")),
            ("hits", lambda g: _percent(g, "hit_ratio")),
        ]
        extra = "" if columns == "three" else f", {columns} columns"
        text += f"<h3>Spark, {stream} stream, batches of {size:,} rows{extra}</h3>" + _plot_and_table(
            here, columns_shown
        )
    return text


def _spark_place(group: Group) -> tuple[str, int, str]:
    return group.params["stream"], group.params["batch_rows"], group.params["columns"]


def _core(groups: list[Group]) -> str:
    text = ""
    core = [group for group in groups if group.suite == "core" and group.arm != "build"]
    for title, here, curves in report_core.sections(core):
        shown: list[Column] = [
            ("pages per M rows", report_core.pages_per_million),
            ("read per row", report_core.bytes_per_row),
            ("× DuckDB, same threads", partial(_against_duckdb, groups=here)),
            ("memory taken", lambda g: _size_of(g, report_core.taken(g))),
            ("DuckDB's limit", lambda g: _size_of(g, "memory_limit_bytes")),
            ("cores used", lambda g: f"{g.median('cores_used') or 0:.2f}"),
            ("hits", lambda g: _percent(g, "hit_ratio")),
        ]
        text += f"<h3>{escape(title)}</h3>"
        text += _plot_and_table(here, shown) if here else ""
        text += f"<p>From an empty cache, rows a second as the stream goes on:</p>{curves}" if curves else ""
    for group in groups:
        if group.arm == "build":
            seconds, peak = group.median("batch_seconds") or 0, group.median("peak_bytes") or 0
            sorting = group.params["memory"]
            text += (
                f"<h3>Store build</h3><p>{group.params['rows']:,} unsorted rows in {seconds:.1f} s "
                f"({plots.short(group.rate)} rows/s) with "
                f"{format_bytes(peak)} of memory at most, {sorting} of it for sorting.</p>"
            )
    return text


def _peers(groups: list[Group]) -> str:
    """What somebody could take instead."""
    text, found = "", [group for group in groups if group.suite == "peers"]
    for title, here, _ in report_core.sections(found):
        ours = next((group for group in here if group.arm == "semistream"), None)
        shown: list[Column] = [
            ("× semistream", partial(_ratio, base=ours)),
            ("memory taken", lambda g: _size_of(g, report_core.taken(g))),
        ]
        text += f"<h3>{escape(title.replace('Core, no Spark', 'Instead of semistream'))}</h3>"
        text += _plot_and_table(here, shown)
    ideas = (f"<li><b>{name}</b>: {peer(name).idea}</li>" for name in PEERS if name in {g.arm for g in found})
    return f"{text}<ul>{''.join(ideas)}</ul>" if found else ""


def _growth(groups: list[Group]) -> str:
    """The same arms with masters of several sizes."""
    header, lines = report_core.growth(groups)
    if not lines:
        return ""
    text = "<h2>As the master grows</h2><p>Memory is the same share of each store. Rows a second.</p>"
    return text + _targets(growth_targets(groups)) + table(header, lines, numbers=range(2, len(header)), kind="arms")


def _plot_and_table(groups: list[Group], more: list[Column]) -> str:
    ordered = sorted(groups, key=lambda group: -group.rate)
    bars = [plots.Bar(name_of(g), g.rate, *g.spread("rows_per_second"), color=_color(g.arm)) for g in ordered]
    shown: list[Column] = [
        ("rows/s", lambda g: plots.short(g.rate)),
        ("range", _range),
        ("s a batch", lambda g: f"{g.median('batch_seconds') or 0:.3g}"),
        *more,
        ("CPU to others", report_core.to_others),
    ]
    shown = [column for column in shown if any(column[1](group) != "–" for group in ordered)]
    lines = [[f"<b>{escape(name_of(group))}</b>", *(value(group) for _, value in shown)] for group in ordered]
    header = ["arm", *(name for name, _ in shown)]
    marked = [number for number, group in enumerate(ordered) if group.arm in OURS]
    return plots.rate_bars(bars) + table(header, lines, numbers=range(1, len(header)), marked=marked, kind="arms")


def _color(arm: str) -> str:
    return plots.OURS if arm in OURS else plots.BOUND if arm in BOUNDS else plots.OTHERS


def _range(group: Group) -> str:
    low, high = group.spread("rows_per_second")
    return f"{plots.short(low)} – {plots.short(high)}" if len(group.results) > 1 else "–"


def _ratio(group: Group, base: Group | None) -> str:
    return "–" if base is None else f"{ratio(group, base):.2f}"


def _against_duckdb(group: Group, groups: list[Group]) -> str:
    other = rival(group, groups)
    return "–" if other is None or other is group else f"{ratio(group, other):.2f}"


def _size_of(group: Group, name: str) -> str:
    value = group.median(name)
    return "–" if value is None else format_bytes(value)


def _percent(group: Group, name: str) -> str:
    value = group.median(name)
    return "–" if value is None else f"{value:.1%}"


def _legend(groups: Iterable[Group]) -> str:
    groups = list(groups)
    if not groups:
        return ""
    arms = list(dict.fromkeys(group.arm for group in groups))
    lines = [f"<li><b>{escape(arm.replace('_', ' '))}</b>: {texts.ARMS[arm]}</li>" for arm in texts.ARMS if arm in arms]
    return f"<h3>The arms</h3><ul>{''.join(lines)}</ul>"


def table(
    header: list[str], lines: list[list[str]], numbers: Iterable[int] = (), marked: Iterable[int] = (), kind: str = ""
) -> str:
    """A table that scrolls sideways where it does not fit; some columns to the right, some lines marked."""
    right, ours = set(numbers), set(marked)

    def cells(tag: str, values: list[str]) -> str:
        return "".join(f"<{tag}{' class=n' if i in right else ''}>{value}</{tag}>" for i, value in enumerate(values))

    rows = "".join(f"<tr{' class=ours' if i in ours else ''}>{cells('td', line)}</tr>" for i, line in enumerate(lines))
    return f"<div class=scroll><table class='{kind}'><tr>{cells('th', header)}</tr>{rows}</table></div>"


def notes(kind: str, title: str, items: Iterable[str]) -> str:
    """A box with a list; nothing when there is nothing to list."""
    lines = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<div class={kind}><b>{title}</b><ul>{lines}</ul></div>" if lines else ""


def is_busy(result: Result, environments: dict[str, Any]) -> bool:
    """Were others at work on the machine while a cell ran?"""
    return busy.verdict(result, environments.get(result.get("environment", ""), {}).get("cores", 1)) is not None


def busy_note(results: list[Result], environments: dict[str, Any]) -> str:
    """Others at work on the machine spoil every figure: say so first."""
    said = busy.summary(results, environments)
    return f"<p class=note><b>{escape(said[0].upper() + said[1:])}.</b></p>" if said else ""


def environments(found: list[dict[str, Any]]) -> str:
    """The machines; where only the commit differs, one table for all commits."""
    machines: dict[str, list[dict[str, Any]]] = {}
    for facts in found:
        same = {name: value for name, value in facts.items() if name not in ("id", "commit")}
        machines.setdefault(json.dumps(same, sort_keys=True), []).append(facts)
    return "".join(
        _environment(alike[0], [facts["commit"] or "not from a repository" for facts in alike])
        for alike in machines.values()
    )


def _environment(facts: dict[str, Any], commits: list[str]) -> str:
    disk = facts["disk"]
    lines = [
        ["processor", f"{escape(facts['cpu'])}, {facts['cores']} cores"],
        ["memory", format_bytes(facts["memory_bytes"])],
        ["disk", escape(f"{disk['kind']}, {disk['file_system']}, {disk['device']}")],
        ["system", escape(facts["system"])],
        ["Python, Java", escape(f"{facts['python']}, {facts['java']}")],
        ["packages", escape(", ".join(f"{name} {version}" for name, version in facts["packages"].items()))],
        ["commit", escape(", ".join(dict.fromkeys(commits)))],
    ]
    return table(["", ""], lines)
