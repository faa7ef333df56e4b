"""Drivers killed (SIGKILL) at every point of a batch: after a restart the warehouse equals the model.

A kill does not show what a power failure leaves behind.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from semistream import MasterStore
from semistream.failpoints import VARIABLE
from tests.pipeline.shop import Row, Shop, products, sale
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
POINTS = [
    "after_pin",
    "after_staging",
    "before_decision",
    "after_decision",
    "after_dimensions",
    "after_commit",
    "after_keys",
]
EACH_COMMIT = ("after_decision",)


def driver(shop: Shop, *more: str, failpoint: str = "") -> subprocess.Popen[bytes]:
    """A driver of its own process; what it says is in a file."""
    with (shop.root / "said").open("wb") as said:  # a pipe stays open for as long as the orphaned Java takes to leave
        return subprocess.Popen(
            [sys.executable, "-m", "tests.pipeline.driver", str(shop.root), *more],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", VARIABLE: failpoint},
            stdout=said,
            stderr=said,
        )


def ended(shop: Shop, process: subprocess.Popen[bytes], *codes: int) -> None:
    """The driver ends so."""
    assert process.wait(PATIENCE) in codes, (shop.root / "said").read_text()


def verified(shop: Shop) -> subprocess.CompletedProcess[str]:
    """What the verifier says, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "tests.pipeline.verify", str(shop.root)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )


def verdict(shop: Shop) -> None:
    """The verifier finds nothing wrong."""
    done = verified(shop)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "point", [point if point in EACH_COMMIT else pytest.param(point, marks=pytest.mark.long) for point in POINTS]
)
def test_killed_at(point: str, shop: Shop, spark: SparkSession) -> None:
    files: list[list[Row | str]] = [[sale(n) for n in range(20 * k, 20 * k + 30)] for k in range(3)]
    files[1] += ["no sale at all", sale(777, product="p6")]
    for number, rows in enumerate(files):
        shop.arrive(number, rows)
    process = driver(shop, failpoint=f"{point}:2")  # in the second batch
    ended(shop, process, -signal.SIGKILL)
    # The master moves on before the restart: what was begun goes on with what it read.
    MasterStore.open(shop.products).upsert(products([1, 5], price=3.0))
    shop.pipeline().run(spark, once=True)
    verdict(shop)
    state = {name: shop.warehouse().read(name).num_rows for name in ("sales", "sales_unmatched", "sales_quarantine")}
    shop.pipeline().run(spark, once=True)
    assert state == {name: shop.warehouse().read(name).num_rows for name in state}


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_fifty_random_kills(shop: Shop) -> None:
    """Files keep arriving, the master keeps changing, the driver is killed again and again."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    kills = arrived = 0
    while kills < 50:
        for _ in range(chance.randrange(1, 4)):
            rows: list[Row | str] = [sale(chance.randrange(2000)) for _ in range(chance.randrange(1, 60))]
            if chance.random() < 0.3:
                rows.append("poison")
            shop.arrive(arrived, rows)
            arrived += 1
        if chance.random() < 0.5:
            changed = products([chance.randrange(7)], price=float(chance.randrange(1, 9)))
            MasterStore.open(shop.products).upsert(changed)
        point = chance.choice(["", f"{chance.choice(POINTS)}:{chance.randrange(1, 4)}"])
        process = driver(shop, failpoint=point)
        end = time.monotonic() + chance.uniform(6, 14)
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        if process.poll() is None or process.returncode == -signal.SIGKILL:
            kills += 1
        process.kill()
        ended(shop, process, 0, -signal.SIGKILL)
    ended(shop, driver(shop), 0)  # a driver again: it forgets nothing, and the verifier asks for the whole history
    verdict(shop)
