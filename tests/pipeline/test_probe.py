"""Hosts whose disks differ are noticed before the first batch, by name; shown with a real cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from semistream.pipeline.ledger import Ledger
from semistream.pipeline.probe import is_local, probe
from tests.pipeline.cluster import ROOT, standalone
from tests.pipeline.driver import MASTER
from tests.pipeline.shop import Model, Row, Shop, sale
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_nothing_is_left_behind(shop: Shop, spark: SparkSession) -> None:
    places = [shop.root / name for name in ("state", "warehouse")]
    for place in places:
        place.mkdir()
    probe(spark, places, [shop.products, shop.customers])
    assert is_local(spark)  # where it is not asked
    assert [list(place.iterdir()) for place in places] == [[], []]


def ran(shop: Shop, master: str) -> subprocess.CompletedProcess[str]:
    """The shop's pipeline in a driver of its own, on a cluster."""
    return subprocess.run(
        [sys.executable, "-m", "tests.pipeline.driver", str(shop.root)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", MASTER: master},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("hidden", ["state", "warehouse", "stores/products", ""])
def test_a_worker_with_a_disk_of_its_own(shop: Shop, tmp_path: Path, hidden: str) -> None:
    rows: list[Row | str] = [sale(n) for n in range(30)]
    shop.arrive(0, rows)
    for name in ("state", "warehouse"):
        (shop.root / name).mkdir()
    with standalone(tmp_path / "cluster", [shop.root / hidden] if hidden else []) as master:
        done = ran(shop, master)
        said = done.stdout + done.stderr
        if hidden:
            assert done.returncode != 0
            assert "driver and tasks do not see the same files" in said
            assert str(shop.root / hidden) in said
            assert Ledger(shop.root / "state", "sales").last("batches") is None
            return
    assert done.returncode == 0, said
    model = Model()
    model.batch(rows)
    last = Ledger(shop.root / "state", "sales").newest()
    assert last is not None
    model.agrees(shop.warehouse(), last.totals)
