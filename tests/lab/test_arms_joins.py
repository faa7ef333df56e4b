"""Cells of `bench joins`: every arm runs, gives the same rows, and the page shows them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from semistream_lab import suites
from semistream_lab.arms_joins import ARMS, run
from semistream_lab.cells import Cell
from semistream_lab.data import BenchData
from semistream_lab.errors import BenchmarkError
from semistream_lab.grid_joins import Grid
from semistream_lab.report import write_report
from semistream_lab.results import Results, check_agreement
from semistream_lab.settings import Settings

ROWS = {"warm_rows": 8_000, "measured_rows": 12_000, "stream_batch": 1_000}  # however long they take
SOME = ("mesh", "hybrid", "sscj", "pcsrj", "sweep")


@pytest.mark.parametrize("arms", [SOME, pytest.param(ARMS, marks=pytest.mark.long)], ids=["some", "all"])
def test_arms_give_the_same_rows_and_stand_on_the_page(tmp_path: Path, arms: tuple[str, ...]) -> None:
    grid = Grid((4_000,), ("40%",), (1.0, 0.0), ("shuffled",), 4_000, warm_seconds=math.inf, seconds=math.inf)
    asked = Settings("joins", 4_000, tmp_path / "out", tmp_path / "data", grid=grid, repetitions=1, arms=arms)
    data = BenchData(asked.data, 4_000)
    results = Results.load(asked.out)
    cells = [cell for cell in suites.cells(asked) if cell.params["skew"] == 1 or cell.arm in ("mesh", "hybrid")]
    assert {cell.arm for cell in cells} == set(arms)
    for cell in cells:
        some = replace(cell, params={**cell.params, **ROWS})
        results.add(cell, "here", run(some, data))
    check_agreement(results.done)
    for line in results.done:
        assert line["peak_bytes"] <= line["budget_bytes"], line["arm"]
        assert line["tuples_per_page"] > 0
    page = write_report(asked.out).read_text(encoding="utf-8")
    assert "Every join on one grid" in page
    assert "hybrid against mesh, tuples per page" in page
    assert all(f"<b>{arm.replace('_', ' ')}</b>" in page for arm in arms)
    assert page.count("<svg") == 2  # by skew: tuples per page and rows per second


def test_part_of_a_round_is_not_a_rate(tmp_path: Path) -> None:
    where = {"rows": 20_000, "memory": "50%", "skew": 1.0, "layout": "shuffled", "columns": "three"}
    short = {
        "settings": {"wait_seconds": math.inf},
        "warm_rows": 500,
        "measured_rows": 500,
        "stream_batch": 100,
        "warm_seconds": math.inf,
        "seconds": math.inf,
    }
    with pytest.raises(BenchmarkError, match="nothing was read yet for those that wait"):
        run(Cell("joins", "sweep_patient", {**where, **short}), BenchData(tmp_path, 20_000))
