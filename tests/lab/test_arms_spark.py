"""Every arm of `bench spark` on tiny data, one after the other in one session: same rows, all figures there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from semistream_lab.settings import SPARK_ARMS

pytestmark = pytest.mark.long  # six queries, and a Spark that starts for them

# In a process of its own: the session of other tests has other settings.
SCRIPT = """
import json, sys
from pathlib import Path
from semistream_lab.arms_spark import run_in, session
from semistream_lab.cells import Cell
from semistream_lab.data import BenchData
root = Path(sys.argv[1])
data = BenchData(root / "data", 5000)
params = {"rows": 5000, "stream": "wide", "batch_rows": 500, "columns": "all", "memory": "10%"}
params |= {"large": 1, "large_rows": 2000, "warmup": 2, "batches": 2}
spark = session(root)
spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "3")  # a real run has more batches than Spark keeps
found = {}
for arm in ["make_bucketed", *sys.argv[2:]]:
    place = root / arm
    place.mkdir()
    found[arm] = run_in(spark, Cell("spark", arm, params), data, place)
spark.stop()
print(json.dumps(found))
"""


SOME = ("source", "passthrough", "bucketed", "semistream")  # each takes some ten seconds


@pytest.fixture(scope="module", params=[SOME, pytest.param(SPARK_ARMS, marks=pytest.mark.long)], ids=["some", "all"])
def results(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    place: Path = tmp_path_factory.mktemp("spark")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, place, *request.param], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    del found["make_bucketed"]
    return found


def test_all_arms_agree(results: dict[str, dict[str, Any]]) -> None:
    joining = [results[arm]["checksum"] for arm in results if arm not in ("source", "passthrough")]
    assert len(joining[0]) == 3
    assert all(checksum == joining[0] for checksum in joining)
    assert results["source"]["checksum"] == results["passthrough"]["checksum"]
    assert results["source"]["checksum"] != joining[0]


def test_spark_planned_what_was_meant(results: dict[str, dict[str, Any]]) -> None:
    assert results["bucketed"]["plan"] == ["ShuffledHashJoin"]
    if "broadcast_stream" in results:
        assert results["broadcast_stream"]["plan"] == ["BroadcastHashJoin"]
    assert results["passthrough"]["plan"] == ["MapInArrow"]
    assert results["source"]["plan"] == []


def test_figures(results: dict[str, dict[str, Any]]) -> None:
    for arm in results:
        assert results[arm]["rows"] == 1000
        assert results[arm]["rows_per_second"] > 0
    ours = results["semistream"]
    assert (ours["matched"], ours["workers"]) == (1000, 2)
    assert 0 < ours["hit_ratio"] <= 1
    assert ours["pss_growth_bytes"] > 0
