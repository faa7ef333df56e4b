"""Every workload of the registry: the contract, the registry's options, and a real join over each."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import semistream
import semistream_lab.workloads
from semistream import MasterStore
from semistream.errors import ArgumentError
from semistream_lab.workloads import WORKLOADS, Workload, make_workload
from semistream_lab.workloads.registry import settings
from tests.tables import assert_same_rows, model_join

OPTIONS: dict[str, dict[str, Any]] = {
    "zipf": {"rows": 2000, "absent": 0.1, "distinct": 600, "master_skew": 0.8, "shift_every": 300},
    "retail": {"rows": 2000, "absent": 0.1},
    "tpch": {"scale_factor": 0.002},
    "weather": {"rows": 2000, "stations": 150, "ships": 40},
}


@pytest.fixture(scope="module", params=sorted(WORKLOADS))
def load(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Workload:
    place = {"directory": tmp_path_factory.mktemp("tpch")} if request.param == "tpch" else {}
    return make_workload(request.param, **OPTIONS[request.param], **place)


def test_all_have_options_here() -> None:
    assert set(OPTIONS) == set(WORKLOADS)
    for name, workload in WORKLOADS.items():
        assert (workload.name, bool(workload.idea), bool(workload.__doc__)) == (name, True, True)


def test_the_contract(load: Workload) -> None:
    assert isinstance(load, Workload)
    assert list(load.on.values()) == load.key
    for ours, theirs in load.on.items():
        assert load.stream_schema.field(ours).type == load.master_schema.field(theirs).type
    master = pa.Table.from_batches(load.master())
    assert master.num_rows == load.master_rows
    assert master.schema.equals(load.master_schema)
    assert load.stream(0, 0).schema.equals(load.stream_schema)
    for column in master.columns:
        column.validate(full=True)


@pytest.mark.parametrize("size", [1, 13, 333])
def test_the_batch_size_changes_nothing(load: Workload, size: int) -> None:
    stream = pa.Table.from_batches([load.stream(700 + at, min(size, 400 - at)) for at in range(0, 400, size)])
    assert stream.combine_chunks().equals(pa.Table.from_batches([load.stream(700, 400)]).combine_chunks())
    assert stream.schema.equals(load.stream_schema)
    master = pa.Table.from_batches(load.master(size * 3)).combine_chunks()
    assert master.equals(pa.Table.from_batches(load.master()).combine_chunks())
    assert pa.Table.from_batches([load.master_slice(100, 50)]).equals(master.slice(100, 50))


def test_rows_that_are_not_there(load: Workload) -> None:
    for start, count in ((-1, 2), (0, -1)):
        with pytest.raises(ArgumentError, match="must be 0 or more"):
            load.stream(start, count)
    with pytest.raises(ArgumentError, match="rows"):
        load.master_slice(load.master_rows, 1)
    if load.stream_rows is not None:
        with pytest.raises(ArgumentError, match=f"{load.stream_rows:,} rows"):
            load.stream(load.stream_rows - 1, 2)


def test_a_join_over_it(load: Workload, tmp_path: Path) -> None:
    store = MasterStore.build(load.master(500), tmp_path / "store", key=load.key)
    batches = [load.stream(start, 100) for start in range(0, 800, 100)]
    joined = semistream.join(batches, store, on=load.on, how="left", memory="1MB", suffix="_master")
    assert_same_rows(
        pa.Table.from_batches(joined),
        model_join(
            pa.Table.from_batches(batches), pa.Table.from_batches(load.master()), load.on, "left", suffix="_master"
        ),
    )


def test_options_as_texts() -> None:
    made = make_workload("zipf", rows="1_000", masterSkew="0.5", DISTINCT="10", shuffled="false", **{"row-bytes": "50"})
    assert settings(made) == settings(
        make_workload("zipf", rows=1000, master_skew=0.5, distinct=10, shuffled=False, row_bytes=50)
    )
    assert settings(make_workload("retail", rows=5, absent=0.5)) == {
        "products": 5,
        "skew": 1.0,
        "unknown": 0.5,
        "seed": 1,
    }
    assert settings(make_workload("tpch", directory="x"))["directory"] == "x"


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("zip", {}, "workload='zip' is not known; choose one of 'zipf', 'retail', 'tpch', 'weather'"),
        ("zipf", {"row": 5}, "no option 'row'; its options are rows, skew"),
        ("zipf", {"rows": "many"}, "rows='many' must be a whole number"),
        ("zipf", {"rows": 1.5}, "rows=1.5 must be a whole number"),
        ("zipf", {"skew": "steep"}, "skew='steep' must be a number"),
        ("zipf", {"shuffled": "perhaps"}, "shuffled='perhaps' must be true or false"),
        ("retail", {"rows": 5, "products": 6}, "'products' of workload retail is given twice"),
        ("tpch", {}, "needs the option 'directory'"),
        ("tpch", {"directory": "x", "rows": 5}, "workload tpch has no option 'rows'"),
        ("tpch", {"directory": "x", "master_table": "nation"}, "choose one of 'partsupp', 'customer'"),
        ("weather", {"edition": "A"}, "choose one of 'B', 'C'"),
    ],
)
def test_bad_options(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make_workload(name, **options)


def test_the_package_is_light() -> None:
    code = "import sys, semistream_lab.workloads as w; "
    code += "print([m for m in ('numpy', 'pyarrow') if m in sys.modules], dir(w))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[] ['WORKLOADS', 'Workload', 'make_workload']"
    with pytest.raises(AttributeError, match="no attribute 'WORKLOAD'"):
        semistream_lab.workloads.WORKLOAD  # noqa: B018


def test_examples_of_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those with Spark are run, in other words, by tests/spark."""
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[3] / "docs" / "workloads.md").read_text(encoding="utf-8")
    examples = [
        text for text in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if "spark" not in text
    ]
    assert len(examples) == 2
    for example in examples:
        exec(compile(example, "docs/workloads.md", "exec"), {"__name__": "page"})
