"""A pipeline under steady load for minutes: does its memory stay flat, does the lag stay, is every row accounted for?

Batches arrive by the clock, whether or not the pipeline keeps up, after a few that warm it up. The lag of a batch is
the time from its arrival to its commit; its own time is the same without the wait for the batch before it. In arm
`soak_changes` another process changes a hundredth of the largest master's rows every ten seconds.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from semistream_lab.arms_pipeline import Job
from semistream_lab.cells import Cell
from semistream_lab.data import linked
from semistream_lab.data_pipeline import GROUP, SalesData, batch_name
from semistream_lab.errors import BenchmarkError
from semistream_lab.memory import MemoryCurve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

BATCHES = 25  # different ones; they come again and again
CHANGED, CHANGE_SECONDS = 0.01, 10.0
_ROW_BYTES = 80  # of a row in the table, at most
_POINTS = 300  # of a curve that is kept
_KEPT = 8  # batches that stay where they arrived; Spark lists all of them for every batch
_STALLED_SECONDS = 300.0
Numbers = npt.NDArray[np.float64]


def slope(times: list[float], values: list[float] | list[int]) -> float:
    """What is added in a second, by least squares over the last two thirds.

    >>> slope([0, 1, 2, 3, 4, 5], [9, 9, 2, 3, 4, 5])
    1.0
    """
    first = len(times) // 3
    if len(times) - first < 2:
        return 0.0
    x, y = np.array(times[first:]) - times[first], np.array(values[first:], float)
    return round(float(np.polyfit(x, y, 1)[0]), 9)


class _Load:
    """Batches that arrive as files side by side, and go when they are loaded.

    As directories they would arrive whole, but Spark stops at one that goes while it lists them. So Spark may find one
    of a batch's two files without the other, and what was committed when is told by rows, not by batches.
    """

    def __init__(self, job: Job, sales: Path, batch_rows: int) -> None:
        self._job, self._sales, self._batch_rows = job, sales, batch_rows
        self.arrived: list[float] = []
        self._files: list[list[Path]] = []
        self._removed = 0

    def arrive(self) -> None:
        """The next batch is there, written anew; old ones go."""
        job, number = self._job, len(self.arrived)
        batch = self._sales / batch_name(number % BATCHES)
        drafts = [Path(shutil.copyfile(file, job.place / f"draft-{file.name}")) for file in sorted(batch.iterdir())]
        self.arrived.append(time.time())
        self._files.append([draft.rename(job.incoming / f"{number:06d}-{draft.name}") for draft in drafts])
        while self._removed < sum(one.rows for one in job.done) // self._batch_rows - _KEPT:
            for file in self._files[self._removed]:
                file.unlink()
            self._removed += 1

    def wait(self) -> None:
        """Until all that has arrived is in the table."""
        since = time.monotonic()
        while sum(one.rows for one in self._job.done) < len(self.arrived) * self._batch_rows:
            self._job.look()
            if time.monotonic() - since > _STALLED_SECONDS:
                raise BenchmarkError(f"batches were not loaded for {_STALLED_SECONDS:.0f} s")
            time.sleep(0.02)

    def committed(self) -> Numbers:
        """When each batch was in the table."""
        done = list(self._job.done)
        rows = np.cumsum([one.rows for one in done])
        wanted = self._batch_rows * np.arange(1, len(self.arrived) + 1)
        return np.array([done[n].at for n in np.searchsorted(rows, wanted)])


def soak(spark: SparkSession, cell: Cell, data: SalesData, place: Path) -> dict[str, Any]:
    """Run one cell."""
    params = cell.params
    pause = params["batch_rows"] / params["rate"]
    count = max(6, int(params["minutes"] * 60 / pause))
    _check_room(place, count * params["batch_rows"] * _ROW_BYTES)
    sales = data.sales(BATCHES, params["batch_rows"])
    changing = cell.arm == "soak_changes"
    stores = {"products": _copied(data.store(GROUP), place / "products")} if changing else {}
    job = Job(spark, data, place, params["memory"], stores=stores)
    load = _Load(job, sales, params["batch_rows"])
    with job, MemoryCurve() as memory:
        for _ in range(params["warmup"]):
            load.arrive()
            load.wait()
        with _changes(stores.get("products"), data.rows) as changes:
            began = time.time()
            for number in range(count):
                _pause_until(began + number * pause, job)
                load.arrive()
            load.wait()
    committed, came = load.committed(), np.array(load.arrived[params["warmup"] :])
    lags = committed[params["warmup"] :] - came
    took = committed[params["warmup"] :] - np.maximum(came, committed[params["warmup"] - 1 : -1])
    third = count // 3
    during = [n for n, at in enumerate(memory.times) if at >= began]
    sizes, times = [memory.sizes[n] for n in during], [memory.times[n] - began for n in during]
    return {
        "rows_per_second": count * params["batch_rows"] / float(committed[-1] - came[0]),
        "batch_seconds": float(np.median(took)),
        "batch_p99": _quantile(took, 0.99),
        "rows": count * params["batch_rows"],
        "lag_p50": _quantile(lags, 0.5),
        "lag_p99": _quantile(lags, 0.99),
        "lag_p99_first_third": _quantile(lags[:third], 0.99),
        "lag_p99_last_third": _quantile(lags[-third:], 0.99),
        "pss_bytes": float(np.median(sizes)) if sizes else None,
        "pss_slope_bytes_an_hour": 3600 * slope(times, sizes),
        "memory_curve": _thinned(times, sizes),
        "lag_curve": _thinned((came - began).tolist(), lags.tolist()),
        "accounted": job.accounted(),
        "checksum": {},
        **changes,
    }


def _quantile(values: Numbers, share: float) -> float:
    return float(np.quantile(values, share))


def _thinned(times: list[float], values: list[Any]) -> list[list[float]]:
    """At most so many points, of each stretch the largest value: peaks must not be lost."""
    step = max(1, -(-len(times) // _POINTS))
    return [
        [round(times[n], 2), round(float(max(values[n : n + step])), 4)]
        for n in range(0, min(len(times), len(values)), step)
    ]


def _pause_until(due: float, job: Job) -> None:
    while (left := due - time.time()) > 0:
        time.sleep(min(left, 0.5))
        job.look()


def _copied(store: Path, target: Path) -> Path:
    """A store that may be changed: its files get second names, and an update adds others."""
    shutil.copytree(store, target, copy_function=linked)
    return target


def _check_room(place: Path, needed: int) -> None:
    free = shutil.disk_usage(place).free
    if free < needed:
        raise BenchmarkError(
            f"the soak may write {needed / 1e9:,.0f} GB and {place} has {free / 1e9:,.0f} GB; give fewer minutes, or "
            "set TMPDIR to a larger disk"
        )


@contextmanager
def _changes(store: Path | None, rows: int) -> Iterator[dict[str, Any]]:
    """While another process changes the store; afterwards what it did."""
    told: dict[str, Any] = {}
    if store is None:
        yield told
        return
    command = [sys.executable, "-m", "semistream_lab.soak", str(store), str(rows)]
    changer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield told
    finally:
        said, _ = changer.communicate(timeout=300)
    if changer.returncode:
        raise BenchmarkError(f"the process that changes the master ended with code {changer.returncode}")
    told.update(json.loads(said))


def change(store: Path, rows: int) -> dict[str, Any]:
    """The other process: change some rows every few seconds, until standard input ends."""
    import select

    import pyarrow as pa

    from semistream.stores import MasterStore
    from semistream_lab.workloads.zipf import ZipfWorkload

    load, count, took = ZipfWorkload(rows), max(1, int(CHANGED * rows)), list[float]()
    due = time.monotonic()
    while not select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
        began = time.monotonic()
        part = pa.Table.from_batches([load.master_slice(len(took) * count % (rows - count + 1), count)])
        price = pa.array(np.round(part.column("price").to_numpy() + len(took) + 1, 2))
        part = part.set_column(part.schema.get_field_index("price"), "price", price)
        MasterStore.open(store).apply(upserts=part).merge_deltas()
        took.append(time.monotonic() - began)
        due = max(due + CHANGE_SECONDS, time.monotonic())
    return {"changes": len(took), "changed_rows": len(took) * count, "change_seconds": float(np.median(took or [0.0]))}


if __name__ == "__main__":
    print(json.dumps(change(Path(sys.argv[1]), int(sys.argv[2]))))
