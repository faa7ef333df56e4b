"""A calibration: measured, completed by what is known, written and read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from semistream.joins import JOINS
from semistream.planner.rates import Costs, current_costs, default_costs
from semistream_lab.calibration import calibrate, completed


@pytest.mark.long
def test_calibrate_save_load(no_calibration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semistream_lab.pace._SECONDS", 0.01)  # what is measured does not matter here
    told: list[str] = []
    some = ("whole", "hybrid", "sweep")
    costs = calibrate(tmp_path, joins=some, rows=50_000, seconds=0.01, report=lambda what, *_: told.append(what))
    assert set(some) <= set(told)
    assert set(costs.joins) == set(some)
    for terms in costs.joins.values():
        assert min(vars(terms).values()) >= 0
        assert sum(vars(terms).values()) > 0
    assert set(costs.steps) == {"insert", "probe", "delete", "output"}
    assert costs.keys["string"] > 0
    assert costs.device["cached_request_seconds"] > 0
    assert costs.pace > 0
    assert not list(tmp_path.glob("semistream-calibration-*"))
    known = default_costs()
    both = completed(costs, known)
    assert {name for name in JOINS if both.joins[name] != known.joins[name]} == set(some)
    assert (both.pace, both.device) == (costs.pace, costs.device)
    costs.save(no_calibration)
    assert current_costs() == Costs.load(no_calibration) == costs
