"""`bench pipeline`: both arms give the same table, a soak is accounted for, and the report says what was reached."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from semistream_lab.cells import Cell
from semistream_lab.data_pipeline import SALE, SalesData
from semistream_lab.errors import BenchmarkError
from semistream_lab.pipeline_bench import PipelineSettings
from semistream_lab.report import make_page
from semistream_lab.report_pipeline import targets
from semistream_lab.results import disagreements, grouped
from tests.lab.samples import ENVIRONMENT, written

# In a process of its own: the session of other tests has other settings.
SCRIPT = """
import json, sys
from pathlib import Path
from semistream_lab.arms_pipeline import run_in
from semistream_lab.arms_spark import session
from semistream_lab.cells import Cell
from semistream_lab.data_pipeline import SalesData
root = Path(sys.argv[1])
data = SalesData(root / "data", 5000)
common = {"rows": 5000, "batch_rows": 500, "warmup": 1}
timed = {**common, "batches": 2, "closed": 2}
soak = {**common, "memory": "64MB", "minutes": 0.05, "rate": 1000}
cells = [("semistream", {**timed, "memory": "64MB"}), ("spark", timed), ("soak_changes", soak)]
spark = session(root)
found = {}
for arm, params in cells:
    place = root / arm
    place.mkdir()
    found[arm] = run_in(spark, Cell("pipeline", arm, params), data, place)
spark.stop()
print(json.dumps(found))
"""


def settings(tmp_path: Path, **more: Any) -> PipelineSettings:
    return PipelineSettings(rows=10_000_000, out=tmp_path / "out", data=tmp_path / "data", **more)


def test_arms_take_turns(tmp_path: Path) -> None:
    cells = settings(tmp_path, repetitions=2).cells()
    assert [(cell.arm, cell.repetition) for cell in cells] == [
        ("semistream", 0),
        ("spark", 0),
        ("spark", 1),
        ("semistream", 1),
    ]
    assert len({cell.place for cell in cells}) == 1


def test_soaks_follow_the_measured_rate(tmp_path: Path) -> None:
    assert settings(tmp_path).soaks(1e5) == []
    cells = settings(tmp_path, minutes=30, changes=True).soaks(1e5)
    assert [(cell.arm, cell.params["rate"]) for cell in cells] == [("soak", 80_000), ("soak_changes", 80_000)]


@pytest.mark.parametrize(
    "more", [{"rows": 0}, {"batches": 0}, {"batch_rows": 1}, {"load": 0}, {"minutes": -1}], ids=str
)
def test_bad_settings(tmp_path: Path, more: dict[str, Any]) -> None:
    with pytest.raises(BenchmarkError, match=next(iter(more)) if "minutes" not in more else "soak"):
        PipelineSettings(**{"rows": 1000, "out": tmp_path, "data": tmp_path, **more})


def test_sales_ask_for_keys_that_are_there(tmp_path: Path) -> None:
    data = SalesData(tmp_path, 5000)
    sales = pq.read_table(data.sales(2, 500))
    assert sales.column_names == list(SALE)
    assert sales.column("sale_id").to_pylist() == list(range(1000))
    for name, most in (("product", 5000), ("customer", 500), ("shop", 5)):
        keys = sales.column(name).to_numpy()
        assert 0 <= keys.min() <= keys.max() < most
    assert [len(list(place.iterdir())) for place in sorted(data.sales(2, 500).iterdir())] == [2, 2]


def cell(arm: str, repetition: int = 0, **params: Any) -> Cell:
    return Cell("pipeline", arm, {"rows": 10_000_000, "batch_rows": 200_000, **params}, repetition)


def timed(rate: float, latency: float, checksum: str = "9:1") -> dict[str, Any]:
    return {
        "rows_per_second": rate,
        "batch_seconds": 200_000 / rate,
        "rows": 10**6,
        "latency_p50": latency,
        "latency_p99": latency,
        "latencies": [latency] * 5,
        "accounted": True,
        "pss_peak_bytes": 10**8,
        "checksum": {"0+9": checksum},
    }


def soaked(slope: float = 0.0, last: float = 1.0, p99: float = 0.5) -> dict[str, Any]:
    return {
        "rows_per_second": 4e5,
        "batch_seconds": 0.4,
        "batch_p99": p99,
        "rows": 10**7,
        "lag_p50": 0.5,
        "lag_p99": 1.0,
        "lag_p99_first_third": 1.0,
        "lag_p99_last_third": last,
        "pss_bytes": 4e8,
        "pss_slope_bytes_an_hour": slope,
        "memory_curve": [[0.0, 4e8], [1.0, 4e8]],
        "lag_curve": [[0.0, 0.5], [1.0, 0.6]],
        "accounted": True,
        "checksum": {},
    }


def test_targets_and_page(tmp_path: Path) -> None:
    soak: dict[str, Any] = {"memory": "10%", "minutes": 30.0, "rate": 400_000, "warmup": 6}
    results = written(
        tmp_path,
        [
            (cell("semistream", memory="10%"), timed(5e5, 0.4)),
            (cell("spark"), timed(1e5, 1.6)),
            (cell("soak", **soak), soaked(slope=-1e6)),
            (cell("soak_changes", **soak), soaked(slope=1e9, last=3.0, p99=1.0)),
        ],
    )
    assert disagreements(results.done) == []
    found = [(one.what.partition(" against")[0], one.measured, one.met) for one in targets(grouped(results.done))]
    assert ("rate", "5.00×", True) in found
    assert ("p99 latency", "1/4.00", False) in found
    assert ("memory's slope in an hour, of driver's Python and workers", "−1.0 MB", True) in found
    assert ("memory's slope in an hour, of driver's Python and workers", "+1.0 GB", False) in found
    assert ("p99 batch time while a master changes, against none".partition(" against")[0], "2.00×", False) in found
    page = make_page(results, {"environments": {"abc": ENVIRONMENT}, "commands": [settings(tmp_path).command]})
    assert page.count("<svg") == 4
    assert "bench pipeline --rows 10000000" in page


def test_tables_that_differ_are_found(tmp_path: Path) -> None:
    cells = [(cell("semistream", memory="10%"), timed(5e5, 0.4)), (cell("spark"), timed(1e5, 1.6, "9:2"))]
    assert len(disagreements(written(tmp_path, cells).done)) == 1


@pytest.mark.long  # three pipelines, and a Spark that starts for them
def test_arms_under_spark(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    assert found["semistream"]["checksum"] == found["spark"]["checksum"] != {}
    for arm, result in found.items():
        assert result["accounted"], arm
        assert result["rows_per_second"] > 0
    assert len(found["spark"]["latencies"]) == 2
    assert found["semistream"]["rows"] == 1000
    soak = found["soak_changes"]
    assert soak["rows"] == 3000  # six batches, the least
    assert soak["changes"] >= 1
    assert len(soak["lag_curve"]) == 6
