"""Nothing stays in shared memory after the application, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from semistream.spark.area import directories
from tests.spark.streams import build, master_table, wait_until

ROOT = Path(__file__).parents[2]
# A query that runs for ever; the driver says its application's name once the cache is there, and ends while it runs.
RUNS = """
import sys, time
from pathlib import Path
from semistream.spark import enrich
from semistream.spark.area import directories
from semistream.spark.prepare import FrameFacts
from semistream.spark.session import local_session

spark = local_session("ends", "local[2,2]")
ticks = spark.readStream.format("rate").option("rowsPerSecond", 2000).load().selectExpr("value % 500 id")
result = enrich(ticks, sys.argv[1], on="id", memory="4MB", algorithm="sweep")
query = result.writeStream.format("noop").option("checkpointLocation", sys.argv[2]).start()
[path] = directories(FrameFacts.of(ticks).application)[:1]
while not list(path.glob("*-cache")):
    assert query.isActive, query.exception()
    time.sleep(0.05)
print("application", FrameFacts.of(ticks).application, flush=True)
if sys.argv[3] == "exits":
    sys.exit(3)
if sys.argv[3] == "stops":
    spark.stop()
time.sleep(600)
"""


@pytest.mark.long
@pytest.mark.parametrize("ending", ["exits", "killed", "stops"])
def test_with_a_query_running(tmp_path: Path, ending: str) -> None:
    store = build(tmp_path / "s", master_table(500))
    with (tmp_path / "said").open("wb") as out:
        driver = subprocess.Popen(
            [sys.executable, "-c", RUNS, str(store.path), str(tmp_path / "checkpoint"), ending],
            stdout=out,
            stderr=out,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        )
    try:

        def application() -> str | None:
            said = (tmp_path / "said").read_text()
            found = [line.split()[1] for line in said.splitlines() if line.startswith("application ")]
            assert found or driver.poll() is None, said[-3000:]
            return found[0] if found else None

        path = directories(wait_until(application))[0]
        if ending == "exits":
            assert driver.wait(60) == 3
        elif ending == "killed":
            assert path.is_dir()
            driver.kill()
        wait_until(lambda: not path.exists())
        assert ending != "stops" or driver.poll() is None  # the driver's process lives on, its application does not
    finally:
        driver.kill()
        driver.wait()
