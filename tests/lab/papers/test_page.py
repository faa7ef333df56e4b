"""The page: with nothing, with a part of the cells, with everything, with a failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semistream_lab.papers import SUITES
from semistream_lab.papers.page import make_page
from semistream_lab.papers.runs import LabRun
from semistream_lab.papers.summary import make_summary
from semistream_lab.results import Results
from tests.lab.papers.test_figures import MEASURES
from tests.lab.samples import ENVIRONMENT

RUN: dict[str, Any] = {"environments": {"abc": ENVIRONMENT}, "commands": ["semistream lab run sscj --quick --rows 5"]}


def filled(tmp_path: Path, suite: str, every: int = 1) -> Results:
    results = Results.load(tmp_path)
    for number, cell in enumerate(LabRun(suite, tmp_path, tmp_path).cells):
        if number % every == 0:
            values = dict.fromkeys(MEASURES, 2.0 + number) | {"segments": {"tuples_per_page": [2.0, 2.5, 3.0]}}
            results.lines.append(
                {"suite": "lab", "arm": cell.arm, "params": cell.params, "repetition": 0, **values}
                | {"environment": "abc", "checksum": {}}
            )
    return results


def test_nothing_was_run(tmp_path: Path) -> None:
    page = make_page(Results.load(tmp_path), {"environments": {}, "commands": []}, tuple(SUITES))
    assert "Not run yet" in page
    assert "<svg" not in page
    assert all(f"id='{name}'" in page for name in SUITES)


@pytest.mark.parametrize("suite", SUITES)
def test_missing_cells_are_no_trouble(tmp_path: Path, suite: str) -> None:
    page = make_page(filled(tmp_path, suite, every=3), RUN, (suite,))
    assert "<svg" in page
    assert "points are not measured yet" in page
    assert "A &lt;fast&gt; one" in page


def test_everything_and_pictures(tmp_path: Path) -> None:
    results = filled(tmp_path, "sscj")
    page = make_page(results, RUN, ("sscj",), tmp_path / "figures")
    assert "points are not measured yet" not in page
    assert "semistream lab run sscj --quick --rows 5" in page
    assert " ± " in page
    assert "the clock ended the warm-up early" in page  # these cells say nothing of a warm-up
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert "sscj-4a-tuples_per_page.png" in names
    assert len(names) == page.count("<svg")
    assert "Of 8 figures" in page


def test_failures_are_told(tmp_path: Path) -> None:
    results = filled(tmp_path, "pcsrj", every=5)
    results.lines.append({**results.lines[0], "repetition": 7, "error": "no <room> left"})
    assert "no &lt;room&gt; left" in make_page(results, RUN, ("pcsrj",))


def test_summary_has_a_line_for_every_statement(tmp_path: Path) -> None:
    text = make_summary(filled(tmp_path, "moij"), {})
    claims = sum(len(figure.claims) for suite in SUITES.values() for figure in suite.figures(suite.scale("quick")))
    assert (
        len([line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| figure")]) == claims
    )
    assert "not measured yet" in text  # the other suites
