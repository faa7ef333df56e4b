"""A join that was renamed is still found by its former name, in arguments and in files that users have."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from semistream import MasterStore, join
from semistream.errors import ArgumentError
from semistream.joins import FORMER_NAMES, JOINS, ReferenceJoin, WholeJoin, choose_join
from semistream.lookup.run import make_join
from semistream.lookup.spec import LookupSpec
from semistream.pipeline import lookup
from semistream.planner.machine import fingerprint
from semistream.planner.rates import Costs, default_costs

STREAM = pa.record_batch({"id": [2, 9]})


@pytest.fixture
def store(tmp_path: Path) -> MasterStore:
    return MasterStore.build(pa.table({"id": [1, 2], "price": [1.5, 4.0]}), tmp_path / "store", key="id")


def test_every_former_name_has_a_present_one() -> None:
    assert FORMER_NAMES == {"reference": "whole"}
    assert set(FORMER_NAMES.values()) <= set(JOINS)
    assert not set(FORMER_NAMES) & set(JOINS)
    assert ReferenceJoin is WholeJoin
    assert choose_join("algorithm", "reference") == choose_join("algorithm", "whole") == "whole"
    for wrong in ("referense", None, ["whole"]):
        with pytest.raises(ArgumentError, match=r"algorithm=.*'auto', 'whole', 'inl'"):
            choose_join("algorithm", wrong, "auto")


def test_join(store: MasterStore) -> None:
    made = make_join(STREAM.schema, store, on="id", memory="1MB", algorithm="reference")
    assert made.name == "whole"
    named = [list(join([STREAM], store, on="id", memory="1MB", algorithm=name)) for name in ("reference", "whole")]
    assert named[0] == named[1]
    assert pa.Table.from_batches(named[0]).sort_by("id").column("price").to_pylist() == [4.0, None]


def test_a_step_of_a_pipeline(store: MasterStore) -> None:
    assert lookup(store.path, on="id", algorithm="reference") == lookup(store.path, on="id", algorithm="whole")


def test_a_lookup_that_was_written_down(store: MasterStore) -> None:
    """As the log of shed rows has it."""
    spec = LookupSpec.from_json(LookupSpec(on="id", algorithm="reference").as_json())
    made = make_join(STREAM.schema, store, on=spec.on, memory="1MB", algorithm=spec.algorithm)
    assert made.name == "whole"


def test_a_calibration(tmp_path: Path) -> None:
    known = default_costs().joins["whole"]
    Costs(fingerprint(), {"reference": known}).save(tmp_path / "calibration.json")
    assert Costs.load(tmp_path / "calibration.json").joins == {"whole": known}
