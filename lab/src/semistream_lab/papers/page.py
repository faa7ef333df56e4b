"""`semistream lab report`: one page with every figure redrawn from our data, beside what its paper states.

The page needs no other file and no script; the pictures are also written as PNG.
"""

from __future__ import annotations

import itertools
from collections import Counter
from html import escape
from pathlib import Path
from typing import Any

from semistream_lab import texts
from semistream_lab.papers import SUITES
from semistream_lab.papers.claims import verdict
from semistream_lab.papers.drawing import draw, number
from semistream_lab.papers.figures import Drawn, Figure, Suite
from semistream_lab.report import busy_note, environments, noted, notes, table
from semistream_lab.results import Group, Results, grouped

MARKS = {"reproduced": "✓", "smaller": "≈", "differs": "✗", "not measured": "…"}
_WORDS = {
    "reproduced": "reproduced",
    "smaller": "with a smaller effect",
    "differs": "differ",
    "not measured": "not judged whole",
}
_STYLE = """
body { max-width: 60rem; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(19rem, 100%), 1fr)); gap: 1rem; }
.panels svg { max-width: 30rem; }
.verdict { padding: .4rem .8rem; border-left: 4px solid #9aa5ad; background: #f5f7f8; }
.verdict.reproduced { border-color: #1a7f37; background: #e9f6ec; }
.verdict.smaller { border-color: #e0b13c; background: #fff8e5; }
.verdict.differs { border-color: #b42318; background: #fdecea; }
.says { color: #37424a; } summary { cursor: pointer; margin: .4rem 0; }
nav a { display: inline-block; margin: 0 .8rem .3rem 0; }
"""
_HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>semistream: the papers' figures</title><style>{style}</style></head><body>
<h1>The papers' figures, from our data</h1>
<p>Each figure of the semi-stream join papers is run again with this library's joins and drawn from what was measured,
with the paper's statements beside it. Ratios are compared, not the rates of old machines. <b>Stream tuples per page
read</b> (4 KiB) depend on no machine's speed or load once caches are full; rates and seconds do. A stated
advantage counts as reproduced (✓)
when at least four fifths of it are seen, as smaller (≈) when only the direction is the same. Times that were taken on
a busy machine are shown and not judged (…). Reasons for differences are our reading, not tested one by one.</p>
"""
_METHOD = """
<h2>How it was measured</h2>
<ul>
<li>Every point is a fresh process. A stream first fills tables and caches; then counters and clock are read as rows go
in, in eight segments. Thin bars are 95 % confidence intervals over repetitions, or over the segments of a single run.
</li>
<li>The master has rows of 120 bytes, the stream rows of 20; three columns are added. Keys follow Zipf's law and are
shuffled over the pages, unless a figure says sorted. Sizes and budgets keep the papers' proportions.</li>
<li>A quick run reads R out of the system's page cache, where a random read costs microseconds: rates then show the
processor's work more than the disk's. A full run reads past it (O_DIRECT).</li>
<li>All joins of a point gave the same rows for a checked part of the stream.</li>
</ul>
"""


def write_page(directory: Path, names: tuple[str, ...] = tuple(SUITES)) -> Path:
    """Make ``lab.html`` and ``figures/*.png`` from the results of a directory."""
    target = directory / "lab.html"
    page = make_page(Results.load(directory), noted(directory), names, directory / "figures")
    target.write_text(page, encoding="utf-8")
    return target


def make_page(results: Results, run: dict[str, Any], names: tuple[str, ...], pictures: Path | None = None) -> str:
    """The page as text."""
    ours = [line for line in results.done if line["suite"] == "lab"]
    groups = grouped(ours)
    drawn = {name: figures_of(SUITES[name], groups, run["environments"]) for name in names}
    used = {line["environment"] for line in ours}
    machines = environments([one for key, one in run["environments"].items() if key in used])
    body = _HEAD.format(style=texts.STYLE + _STYLE) + busy_note(ours, run["environments"])
    failed = (f"{line['arm']}: {line['error']}" for line in results.failed if line["suite"] == "lab")
    body += _overview(drawn) + notes("note", "Could not be run:", failed)
    body += "".join(_section(SUITES[name], figures, run, pictures) for name, figures in drawn.items())
    return f"{body}{_METHOD}<h2>Machine and versions</h2>{machines or '<p>Nothing was run yet.</p>'}</body></html>\n"


def _overview(drawn: dict[str, list[Drawn]]) -> str:
    """How many figures came out how, and a link to each."""
    states: Counter[str] = Counter(verdict(one).state for figures in drawn.values() for one in figures)
    counts = ", ".join(f"{states[state]} {MARKS[state]} {word}" for state, word in _WORDS.items() if states[state])
    lines = []
    for name, figures in drawn.items():
        links = "".join(
            f"<a href='#{name}-{one.figure.name}'>{MARKS[verdict(one).state]} {one.figure.name}</a>" for one in figures
        )
        lines.append([f"<a href='#{name}'>{escape(SUITES[name].title)}</a>", links])
    return f"<p>Of {states.total()} figures: {counts}.</p><nav>{table(['', 'figures'], lines)}</nav>"


def figures_of(suite: Suite, groups: list[Group], machines: dict[str, Any]) -> list[Drawn]:
    """A suite's figures with their data, at the scale that was run most."""
    made: list[list[Drawn]] = []
    sizes = [None, *dict.fromkeys(group.params["rows"] for group in groups)]
    for name, direct, rows in itertools.product(("quick", "full"), (True, False), sizes):
        scale = suite.scale(name, direct=direct, rows=rows)
        made.append([Drawn(figure, groups, machines) for figure in suite.figures(scale)])
    counts = [sum(len(drawn.found) for drawn in figures) for figures in made]
    return made[counts.index(max(counts))]


def _section(suite: Suite, drawn: list[Drawn], run: dict[str, Any], pictures: Path | None) -> str:
    text = f"<h2 id='{suite.name}'>{escape(suite.title)}</h2><p>{escape(suite.paper)}</p>"
    commands = [one for one in run["commands"] if one.startswith(f"semistream lab run {suite.name} ")]
    if not commands and any(one.found for one in drawn):
        commands = run["commands"]  # suites share cells
    text += "".join(f"<pre>{escape(one)}</pre>" for one in commands or [f"semistream lab run {suite.name} --quick"])
    text += "".join(_figure(suite, one, pictures) for one in drawn if one.found)
    return text + _not_run(suite, [one for one in drawn if not one.found])


def _not_run(suite: Suite, drawn: list[Drawn]) -> str:
    """Figures without a point, a line each: who looks for what was measured should not have to leaf through them."""
    names = ((one.figure.name, escape(f"{one.figure.name}: {one.figure.title}")) for one in drawn)
    lines = "".join(f"<li id='{suite.name}-{name}'>{words}</li>" for name, words in names)
    return f"<p>Not run yet:</p><ul>{lines}</ul>" if lines else ""


def _figure(suite: Suite, drawn: Drawn, pictures: Path | None) -> str:
    figure, found = drawn.figure, verdict(drawn)
    kind = found.state.replace(" ", "-")
    text = f"<h3 id='{suite.name}-{figure.name}'>Figure {escape(figure.name)}: {escape(figure.title)}</h3>"
    text += f"<p class=says><b>{_whose(suite)}:</b> {escape(figure.says)}</p>"
    text += f"<p class='verdict {kind}'><b>{MARKS[found.state]}</b> {escape(found.words)}.</p>"
    if figure.note:
        text += f"<p class=says><b>Note:</b> {escape(figure.note)}</p>"
    pictures_text = "".join(
        f"<div>{picture}</div>"
        for panel in figure.panels
        if (picture := draw(drawn, panel, _png(pictures, suite, figure, panel.measure)))
    )
    text += f"<div class=panels>{pictures_text}</div>"
    lines = [_claim(drawn, number) for number in range(len(figure.claims))]
    text += table(["", f"{_whose(suite).lower()}", "we see"], lines)
    if drawn.missing and drawn.found:
        text += f"<p><small>{drawn.missing} points are not measured yet.</small></p>"
    if drawn.cold:
        cold = f"In {drawn.cold} of {len(drawn.found)} cells the clock ended the warm-up early: caches may not be full."
        text += f"<p><small>{cold}</small></p>"
    return text + _numbers(drawn)


def _whose(suite: Suite) -> str:
    return "Wanted" if suite.name == "sweep" else "The paper"


def _claim(drawn: Drawn, place: int) -> list[str]:
    claim = drawn.figure.claims[place]
    seen = claim.check(drawn)
    mark = {"reproduced": "met", "differs": "missed"}.get(seen.state, "")
    stated = f"{escape(claim.text)}<br><small>{escape(claim.where)}</small>"
    return [f"<span class='{mark}'>{MARKS[seen.state]}</span>", stated, escape(seen.text)]


def _numbers(drawn: Drawn) -> str:
    """All values, for those who want them."""
    if not drawn.found:
        return ""
    figure = drawn.figure
    measures = list(dict.fromkeys(m for panel in figure.panels for m in (panel.measure, panel.model) if m))
    lines = []
    for label in drawn.labels:
        for arm in figure.arms:
            group = drawn.at(arm, label)
            if group is not None:
                lines.append([escape(label), escape(figure.name_of(arm)), *(_value(group, m) for m in measures)])
    header = [escape(figure.across), "join", *(measure.replace("_", " ") for measure in measures)]
    body = table(header, lines, numbers=range(2, len(header)), kind="arms")
    return f"<details><summary>The numbers</summary>{body}</details>"


def _value(group: Group, measure: str) -> str:
    value, interval = group.median(measure), group.interval(measure)
    if value is None:
        return "–"
    half = f" ± {number((interval[1] - interval[0]) / 2, measure)}" if interval else ""
    return escape(number(value, measure) + half)


def _png(pictures: Path | None, suite: Suite, figure: Figure, measure: str) -> Path | None:
    return pictures / f"{suite.name}-{figure.name}-{measure}.png" if pictures is not None else None
