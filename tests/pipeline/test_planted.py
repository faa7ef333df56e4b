"""Does the verifier bite? Eight bugs are planted, one at a time, and each must be found.

One history goes through all that a driver meets: it crashes three times in one batch while the master moves on, the
batch comes once more although it is done, rows wait and are released, and a second driver tries to cut in. With sound
code the verifier finds nothing; with each of the bugs it does.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from semistream import MasterStore
from semistream.errors import SemistreamError
from semistream.warehouse import StaleWriterError
from tests.pipeline.faults import BUGS, CrashError, at, crash
from tests.pipeline.shop import Row, Shop, products, sale
from tests.pipeline.test_crashes import verified

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def history(shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole history; what a bug makes of it is for the verifier to say."""

    def run() -> None:
        with suppress(SemistreamError, CrashError):  # of a crash, or of a bug that our own checks find
            shop.pipeline().run(spark, once=True)

    def change(*numbers: int, price: float) -> None:
        MasterStore.open(shop.products).upsert(products(numbers, price))

    def second_driver() -> None:
        with suppress(StaleWriterError):
            shop.pipeline().retry(spark)

    files: list[list[Row | str]] = [
        [sale(n) for n in range(30)],
        [*(sale(n) for n in range(20, 50)), sale(60, customer=None, quantity=1), "poison"],
        [sale(n) for n in range(45, 70)],
    ]
    shop.arrive(0, files[0])
    run()
    change(5, price=1.0)
    change(1, price=3.0)
    shop.arrive(1, files[1])
    for point in ("after_pin", "before_decision", "after_commit"):
        at(monkeypatch.setattr, {point: crash}, shop.root / "state", int(point == "after_commit"))
        run()
        change(2, price=5.0)
    at(monkeypatch.setattr, {})
    run()
    change(6, price=1.0)
    shop.arrive(2, files[2])
    at(monkeypatch.setattr, {"after_staging": second_driver})
    run()
    at(monkeypatch.setattr, {})
    for name in ("2", ".2.crc"):
        (shop.root / "state" / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    run()


@pytest.mark.long
def test_sound_code_is_right(shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    history(shop, spark, monkeypatch)
    done = verified(shop)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS)
def test_is_found(bug: str, shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[bug](monkeypatch.setattr)
    history(shop, spark, monkeypatch)
    done: subprocess.CompletedProcess[str] = verified(shop)
    assert done.returncode == 1, f"{bug} is not found: {done.stdout}"
    assert done.stdout.startswith("WRONG"), done.stderr  # found, and not stumbled over
