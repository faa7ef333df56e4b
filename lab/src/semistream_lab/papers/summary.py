"""The verdicts as Markdown tables, for a page of documentation: a line for every statement of a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from semistream_lab.papers import SUITES
from semistream_lab.papers.claims import Seen, verdict
from semistream_lab.papers.page import MARKS, figures_of
from semistream_lab.report import noted
from semistream_lab.results import Results, grouped


def write_summary(directory: Path) -> Path:
    """Make ``summary.md`` from the results of a directory."""
    target = directory / "summary.md"
    target.write_text(make_summary(Results.load(directory), noted(directory)["environments"]), encoding="utf-8")
    return target


def make_summary(results: Results, machines: dict[str, Any]) -> str:
    """A table a suite; reasons stand below it, once each."""
    groups = grouped(line for line in results.done if line["suite"] == "lab")
    text = ""
    for suite in SUITES.values():
        drawn = figures_of(suite, groups, machines)
        text += f"### {suite.title}\n\n| figure | stated | seen | |\n|---|---|---|---|\n"
        reasons: dict[str, list[str]] = {}
        for one in drawn:
            for claim in one.figure.claims:
                seen = claim.check(one)
                if one.figure.stand_in:
                    seen = Seen(f"{seen.text} (a stand-in for the data)", "not measured")
                text += f"| {one.figure.name} | {claim.text} | {seen.text} | {MARKS[seen.state]} |\n"
                if seen.state in ("smaller", "differs") and claim.because:
                    reasons.setdefault(claim.because, []).append(one.figure.name)
        text += "\n"
        for reason, names in reasons.items():
            text += f"- {', '.join(dict.fromkeys(names))}: {reason}.\n"
        cold = [f"{one.figure.name} ({one.cold} of {len(one.found)})" for one in drawn if one.cold]
        if cold:
            text += f"- Cells whose warm-up the clock ended early, so that caches may not be full: {', '.join(cold)}.\n"
        states = [verdict(one).state for one in drawn]
        good = states.count("reproduced")
        open_ones = states.count("not measured")
        text += f"\n{good} of {len(states)} figures reproduced whole, {open_ones} not judged whole.\n\n"
    return text
