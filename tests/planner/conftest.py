"""A store of 60,000 rows, and joins asked about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from semistream.lookup.bind import LookupPlan, bind
from semistream.lookup.spec import LookupSpec
from semistream.stores import MasterStore
from semistream_lab.workloads.zipf import ZipfWorkload
from tests.devices import steady

ROWS = 60_000


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> MasterStore:
    path = tmp_path_factory.mktemp("planner") / "store"
    return steady(MasterStore.build(ZipfWorkload(ROWS).master(), path, key="key"))


@pytest.fixture(scope="session")
def question(store: MasterStore) -> LookupPlan:
    schema = ZipfWorkload(ROWS).stream(0, 1).schema
    return bind(LookupSpec(on="key", columns=["surrogate", "price", "vendor"]), schema, store)


@pytest.fixture(autouse=True)
def no_calibration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Tests use the figures that come with semistream, whatever this machine has."""
    path = tmp_path / "calibration.json"
    monkeypatch.setenv("SEMISTREAM_CALIBRATION", str(path))
    return path
