"""`semistream bench plan`: settings that can be drawn again, and what was reached at the machine's pace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from semistream_lab import plan_check


def test_settings_are_drawn_again() -> None:
    drawn = list(plan_check.settings(20, 9))
    assert drawn == list(plan_check.settings(20, 9))
    assert drawn != list(plan_check.settings(20, 8))
    assert sum(one["asks"] == "rate" for one in drawn) == 10


def test_a_slow_machine_is_not_the_planner_s_fault() -> None:
    result = {"rows_per_second": 600.0, "expected_rows_per_second": 1000.0, "pace": 0.6}
    assert plan_check.reached(result) == pytest.approx(1.0)
    assert plan_check.reached(result, pace=False) == pytest.approx(0.6)


def test_medians_are_taken_of_what_was_reached() -> None:
    came = {800.0: 0.8, 1000.0: 0.5, 1200.0: 1.5}
    runs = [{"rows_per_second": rows, "expected_rows_per_second": 1e3, "pace": pace} for rows, pace in came.items()]
    result = plan_check.middle(runs)
    assert (result["rows_per_second"], result["at_pace"], result["as_it_came"]) == (1000.0, 1.0, 1.0)


@pytest.mark.long
def test_one_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # nobody has calibrated here
    monkeypatch.setattr(plan_check, "_ROWS", (100_000,))
    done: list[tuple[int, int]] = []
    (result,) = plan_check.run(1, 1, tmp_path / "data", 0.1, tmp_path / "out", 2, lambda *some: done.append(some))
    assert done == [(1, 2), (2, 2)]
    lines = (tmp_path / "out" / "plan.jsonl").read_text(encoding="utf-8").splitlines()
    rates = [json.loads(line)["rows_per_second"] for line in lines]
    assert min(rates) <= result["rows_per_second"] <= max(rates)
    assert result["at_pace"] == result["as_it_came"] > 0
    assert (result["rows"], result["asks"], result["pace"]) == (100_000, "memory", 1.0)
    assert result["rows_per_second"] > 0
