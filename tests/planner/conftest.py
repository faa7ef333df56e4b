"""A store of 60,000 rows, and joins asked about it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from semistream.contracts import JoinPlan
from semistream.stores import MasterStore
from semistream.workloads.zipf import ZipfWorkload

ROWS = 60_000


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> MasterStore:
    """With a device of fixed cost: where sweep draws its line must not depend on how busy the machine was."""
    path = tmp_path_factory.mktemp("planner") / "store"
    built = MasterStore.build(ZipfWorkload(ROWS).master(), path, key="key").manifest
    costs = {"request_seconds": 1e-6, "byte_seconds": 8e-11}
    device = {f"{way}_{name}": value for way in ("cached", "direct") for name, value in costs.items()}
    return MasterStore(path, replace(built, device=device))


@pytest.fixture(scope="session")
def question(store: MasterStore) -> JoinPlan:
    schema = ZipfWorkload(ROWS).stream(0, 1).schema
    return JoinPlan.make(schema, store.schema, store.codec, "key", "left", ["surrogate", "price", "vendor"])


@pytest.fixture(autouse=True)
def no_calibration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Tests use the figures that come with semistream, whatever this machine has."""
    path = tmp_path / "calibration.json"
    monkeypatch.setenv("SEMISTREAM_CALIBRATION", str(path))
    return path
