"""Memory of all Python workers together, as the kernel counts it, and the files of the shared cache."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pytest

from semistream import MasterStore
from semistream.spark import Metrics, enrich
from semistream.spark.spec import Transport
from semistream_lab.memory import python_workers
from tests.spark.streams import SMALL, add_file, build, frame, keys, master_table, run, stream
from tests.spark.test_foreach_batch import caches
from tests.tables import assert_same_rows, model_join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MASTER_ROWS = 300_000
STREAM_ROWS = 400_000
CONSTANT = 64 << 20  # bytes a worker, beside budget and a tenth of it


def held_bytes(pid: int) -> int:
    """What a process holds of data, its share of what is shared; of code, others map and unmap the same files."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:  # it is gone
        return 0
    parts = [line.split() for line in text.splitlines() if line.startswith(("Pss_Anon:", "Pss_Shmem:"))]
    return sum(int(part[1]) * 1024 for part in parts)


class Sampler:
    """The largest sum, at one moment, of what the workers hold above their idle baseline."""

    def __init__(self) -> None:
        self.idle = {pid: held_bytes(pid) for pid in python_workers(os.getpid())}
        self.growth = 0
        self.workers: set[int] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        usual = sorted(self.idle.values())[len(self.idle) // 2]
        while not self._stop.is_set():
            now = {pid: held_bytes(pid) for pid in python_workers(os.getpid())}
            above = {pid: size - self.idle.get(pid, usual) for pid, size in now.items()}
            self.workers |= {pid for pid, size in above.items() if size > 4 << 20}
            self.growth = max(self.growth, sum(above.values()))
            time.sleep(0.05)


@pytest.fixture(scope="module")
def wide_store(tmp_path_factory: pytest.TempPathFactory) -> MasterStore:
    """About 100 MB of rows, more than any budget below."""
    path = tmp_path_factory.mktemp("wide") / "s"
    numbers = np.arange(MASTER_ROWS)
    text = pa.array([f"{number:0100d}" for number in range(1000)]).take(pa.array(numbers % 1000))
    return build(path, pa.table({"id": numbers, "a": text, "b": text, "c": text, "price": numbers / 2}))


@pytest.mark.parametrize("transport", ["rows", "keys"])
@pytest.mark.parametrize("budget", [32_000_000, pytest.param(64_000_000, marks=pytest.mark.long)])
def test_within_the_budget(
    spark: SparkSession, tmp_path: Path, wide_store: MasterStore, transport: Transport, budget: int
) -> None:
    rng = np.random.default_rng(2)
    ids = np.minimum(rng.zipf(1.2, STREAM_ROWS), MASTER_ROWS + 50) * 7919 % (MASTER_ROWS + 100)
    spread = rng.integers(0, MASTER_ROWS, STREAM_ROWS)
    left = pa.table({"id": np.where(np.arange(STREAM_ROWS) % 2 == 0, ids, spread), "n": np.arange(STREAM_ROWS)})
    for part in (0, 1):
        add_file(tmp_path / "in", left.slice(part * STREAM_ROWS // 2, STREAM_ROWS // 2))
    df = stream(spark, tmp_path / "in").repartition(2)
    metrics = Metrics(spark)
    options: dict[str, Any] = {"memory": budget, "transport": transport}
    before = set(caches(df))
    # Code and libraries are loaded in both workers before the baseline is taken.
    warm = enrich(frame(spark, keys(1, 2), 2), wide_store, on="id", memory=budget - 1, transport=transport)
    warm.toArrow()
    counted: list[int] = []

    def each(batch: DataFrame, number: int) -> None:
        counted.append(batch.selectExpr("count(*) c", "sum(price)", "max(a)", "max(b)", "max(c)").collect()[0]["c"])

    with Sampler() as sampler:
        run(enrich(df, wide_store, on="id", metrics=metrics, **options), tmp_path / "checkpoint", each)
    metrics.close()
    assert sum(counted) == STREAM_ROWS
    allowed = budget * 1.1 + CONSTANT * max(2, len(sampler.workers))
    grown, most, workers = sampler.growth / 1e6, allowed / 1e6, len(sampler.workers)
    print(f"{transport}, {budget / 1e6:.0f} MB: growth {grown:.0f} MB of {most:.0f} MB, {workers} workers")
    assert sampler.growth <= allowed
    assert 0 < metrics.total.peak_bytes <= budget
    made = set(caches(df)) - before
    assert len(made) == 2  # one for each of the two enrichments
    assert all(budget // 3 < path.stat().st_size <= budget for path in made)
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in made)


@pytest.mark.parametrize("transport", ["rows", "keys"])
def test_more_tasks_than_places(spark: SparkSession, tmp_path: Path, transport: Transport) -> None:
    store = build(tmp_path / "s", master_table(2_000))
    left = keys(*range(1_500), *range(1_500))
    options: dict[str, Any] = {"memory": SMALL, "algorithm": "sweep", "transport": transport, "tasks_per_host": 1}
    result = enrich(frame(spark, left, 6), store, on="id", **options).toArrow()
    assert_same_rows(result, model_join(left, master_table(2_000), "id"))
