"""The suites are well-formed: every figure is there, every claim has data to be checked on, every cell can be built."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from semistream.joins import JOINS
from semistream_lab.arms_joins import PAPER_VARIANTS, VARIANTS
from semistream_lab.papers import SUITES, shedding
from semistream_lab.papers.figures import Drawn, Figure, Suite, places_of
from semistream_lab.results import Group
from semistream_lab.suites import in_turns

WANTED = {
    "meshjoin": ["10a", "10b", "10c", "10d", "11"],
    "sscj": ["4a", "4b", "4c", "4d", "4e", "5a", "5b", "6"],
    "moij": ["6a", "6b", "7a", "7b", "7c", "7d", "7e", "7f"],
    "pcsrj": ["3a", "3b", "3c", "3d", "3e", "3f"],
    "tuned_xhybrid": ["3", "5a", "5b", "6a", "6b"],
    "sweep": ["1", "2", "3", "4", "5"],
}
EVERY = [
    pytest.param(suite, figure, id=f"{suite.name}-{name}-{figure.name}")
    for suite in SUITES.values()
    for name in ("quick", "full")
    for figure in suite.figures(suite.scale(name))
]


def test_every_figure_is_there() -> None:
    found = {name: [figure.name for figure in suite.figures(suite.scale("quick"))] for name, suite in SUITES.items()}
    assert found == WANTED


@pytest.mark.parametrize("suite, figure", EVERY)
def test_figures_are_well_formed(suite: Suite, figure: Figure) -> None:
    assert figure.title
    assert figure.says
    assert figure.claims
    assert figure.panels
    assert len({point.label for point in figure.points}) == len(figure.points)
    assert set(figure.names) <= {*figure.arms, *figure.names}
    if figure.kind == "bars":
        assert len(figure.points) == 1
    for arm, point in itertools.product(figure.arms, figure.points):
        if arm in shedding.ARMS:
            continue
        name = {**VARIANTS, **PAPER_VARIANTS}.get(arm, (arm, None))[0]
        kind: Any = JOINS[name]
        if "settings" in point.params:
            kind.settings_type(**point.params["settings"])


@pytest.mark.parametrize("suite, figure", EVERY)
def test_every_claim_finds_its_data(suite: Suite, figure: Figure) -> None:
    """With a value for everything that a cell gives, no claim is left without an answer."""
    values = dict.fromkeys(MEASURES, 2.0)
    groups = [
        Group("lab", arm, point.params, [{**values, "repetition": 0}]) for point in figure.points for arm in figure.arms
    ]
    drawn = Drawn(figure, groups)
    assert drawn.missing == 0
    for claim in figure.claims:
        assert claim.check(drawn).state != "not measured", claim.text


MEASURES = (
    "rows_per_second",
    "tuples_per_page",
    "tuples_per_read",
    "predicted_rows_per_second",
    "predicted_tuples_per_read",
    "predicted_tuples_per_page",
    "model_tuples_per_page",
    "memory_bytes",
    "processing_seconds",
    "waiting_seconds",
    "results_kept",
    "pinned_pages",
    "swappable_pages",
)


@pytest.mark.parametrize("suite", SUITES.values(), ids=list(SUITES))
def test_cells_of_two_figures_are_run_once(suite: Suite) -> None:
    figures = suite.figures(suite.scale("quick"))
    cells = in_turns("lab", places_of(figures), 2)
    assert len({cell.key for cell in cells}) == len(cells)
    wanted = {(arm, str(point.params)) for figure in figures for point in figure.points for arm in figure.arms}
    assert {(cell.arm, str(cell.params)) for cell in cells} == wanted
    assert all(cell.label for cell in cells if "layout" in cell.params)


@pytest.mark.parametrize("name", ["quick", "full"])
def test_budgets_keep_their_proportion(name: str) -> None:
    scale = SUITES["sscj"].scale(name)
    assert scale.size(100e6) == scale.rows
    share = scale.memory(1.12e9) / (scale.rows * 134)
    assert share == pytest.approx(1.12e9 / 12e9, rel=1e-3)
