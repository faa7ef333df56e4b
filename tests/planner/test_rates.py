"""Calibrations: written, read again, refused from elsewhere; and rates that follow from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from semistream.errors import CalibrationError
from semistream.joins import JOINS
from semistream.joins.contract import Profile
from semistream.lookup.bind import LookupPlan
from semistream.lookup.choose import choose_algorithm
from semistream.planner.machine import fingerprint
from semistream.planner.rates import Costs, current_costs, default_costs, key_kind
from semistream.stores import MasterStore


def test_figures_come_with_semistream(store: MasterStore, question: LookupPlan) -> None:
    costs = default_costs()
    assert set(costs.joins) == set(JOINS)
    for name, kind in JOINS.items():
        rate = costs.rate(name, kind.predict(store.facts, question, store.bytes, Profile()), store.facts)
        assert 10_000 < rate < 100_000_000, name


def test_another_machine_is_refused(no_calibration: Path, store: MasterStore, question: LookupPlan) -> None:
    costs = default_costs()
    elsewhere = {**fingerprint(), "id": "elsewhere", "cpu": "Other 9000", "cores": 64}
    Costs(elsewhere, costs.joins).save(no_calibration)
    with pytest.raises(CalibrationError, match=r"another machine \(Other 9000, 64 cores; this one is .*calibrate"):
        current_costs()
    # A join that only asks which way is quicker goes on, and says so.
    with pytest.warns(UserWarning, match="another machine"):
        choice = choose_algorithm("auto", store, question, store.bytes // 10)
    assert choice.join.name == "sweep"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 1}', '{"format": 1, "machine": {}, "joins": {"a": 1}}'])
def test_a_damaged_file_is_named(text: str, no_calibration: Path) -> None:
    no_calibration.write_text(text, encoding="utf-8")
    with pytest.raises(CalibrationError, match=r"calibration\.json is not a calibration"):
        current_costs()


def test_an_old_format_is_named(no_calibration: Path) -> None:
    no_calibration.write_text(json.dumps({"format": 0, "joins": {}}), encoding="utf-8")
    with pytest.raises(CalibrationError, match="of another version of semistream"):
        current_costs()


def test_hashed_keys_cost_more(store: MasterStore) -> None:
    import pyarrow as pa

    assert [key_kind(kind) for kind in (pa.int32(), pa.string(), pa.decimal128(9, 2), pa.binary())] == [
        "integer",
        "string",
        "decimal",
        "binary",
    ]
    assert default_costs().key_seconds(store.facts) == 0
