"""What was not tried elsewhere: servers that restart, one warehouse for two, clocks, rewritten input, odd directories.

Each time the warehouse must equal the model.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from semistream import MasterStore
from semistream.errors import SemistreamError
from semistream.pipeline import Decision
from semistream.pipeline.ledger import Ledger
from tests.pipeline.faults import at, crash
from tests.pipeline.shop import Model, Row, Shop, products, sale
from tests.pipeline.test_crashes import POINTS, ROOT, driver, verdict
from tests.waiting import PATIENCE
from tests.warehouse.postgres_server import serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


DATABASE_KILLS, SHARED_KILLS = 30, 10


def run(shop: Shop, spark: SparkSession, **changes: Any) -> Decision:
    done = shop.pipeline(**changes).run(spark, once=True)
    assert done is not None
    return done


class TestClock:
    def test_set_back(self, shop: Shop, spark: SparkSession) -> None:
        """Rows are held by a clock ten years ahead, then it is put right: they wait for an hour from then on."""
        now = 1_700_000_000.0
        times = {"clock": lambda: now}
        model = Model()
        now += 315_000_000
        rows: list[Row | str] = [sale(n) for n in range(14)]
        shop.arrive(0, rows)
        model.batch(rows)
        run(shop, spark, **times)
        now -= 315_000_000
        rows = [sale(n) for n in range(20, 24)]
        shop.arrive(1, rows)
        model.batch(rows)
        done = run(shop, spark, **times)
        model.agrees(shop.warehouse(), done.totals)
        assert done.seconds > 0
        assert run(shop, spark, **times) == done  # nothing is due
        now += 3700
        model.unmatched += model.held
        model.held = []
        model.agrees(shop.warehouse(), run(shop, spark, **times).totals)

    def test_set_back_in_a_batch(self, shop: Shop, spark: SparkSession) -> None:
        ticks = iter(range(1_700_000_000, 0, -10_000))
        model = Model()
        for number in range(2):
            rows: list[Row | str] = [sale(n) for n in range(20 * number, 20 * number + 30)]
            shop.arrive(number, rows)
            model.batch(rows)
        done = run(shop, spark, clock=lambda: float(next(ticks)))
        model.agrees(shop.warehouse(), done.totals)
        assert (done.seconds > 0, done.sequence) == (True, 1)


class TestRewrittenInput:
    """A file is exchanged for another of its name, though it must not be: rows count as they were decided."""

    @pytest.mark.parametrize("point", [pytest.param("after_staging", marks=pytest.mark.long), "after_decision"])
    def test_between_a_crash_and_the_restart(
        self, shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, point: str
    ) -> None:
        first: list[Row | str] = [sale(n) for n in range(20)]
        second: list[Row | str] = [sale(n) for n in range(5, 30)]
        shop.arrive(0, first)
        at(monkeypatch.setattr, {point: crash})
        with pytest.raises(SemistreamError, match="CrashError"):
            run(shop, spark)
        at(monkeypatch.setattr, {})
        shop.arrive(0, second)
        model = Model()
        model.batch(first if point == "after_decision" else second)
        model.agrees(shop.warehouse(), run(shop, spark).totals)
        shop.arrive(0, [sale(77)])  # it was read: nobody looks at it again
        model.agrees(shop.warehouse(), run(shop, spark).totals)


class TestDirectories:
    def test_links(self, shop: Shop, spark: SparkSession) -> None:
        """State, warehouse and input are links, which then lead elsewhere."""
        model = Model()
        shop.incoming.rmdir()
        for name in ("state", "warehouse", "incoming"):
            (shop.root / "first" / name).mkdir(parents=True)
            (shop.root / name).symlink_to(shop.root / "first" / name)
        for number in range(2):
            rows: list[Row | str] = [sale(n) for n in range(20 * number, 20 * number + 30)]
            shop.arrive(number, rows)
            model.batch(rows)
            model.agrees(shop.warehouse(), run(shop, spark).totals)
            if number == 0:  # all of it is moved to another disk, the links stay
                (shop.root / "first").rename(shop.root / "second")
                for name in ("state", "warehouse", "incoming"):
                    (shop.root / name).unlink()
                    (shop.root / name).symlink_to(shop.root / "second" / name)

    @pytest.mark.long
    @pytest.mark.parametrize(
        "name, said",
        [
            ("state", r"StateError: state=.* cannot be used \(Read-only file system"),
            ("warehouse", r"SinkError: .*warehouse/.* cannot be made"),
            ("stores/products", ""),
            ("incoming", ""),
        ],
    )
    def test_read_only(self, shop: Shop, name: str, said: str) -> None:
        """Refused by name where the pipeline must write; masters and input need only be read."""
        shop.arrive(0, [sale(n) for n in range(20)])
        place = shop.root / name
        place.mkdir(exist_ok=True)
        mount = f"mount --bind '{place}' '{place}' && mount -o remount,ro,bind '{place}' && exec \"$@\""
        spaces = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
        done = subprocess.run(
            [*spaces, "sh", "-c", mount, "sh", sys.executable, "-m", "tests.pipeline.driver", str(shop.root)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        if said:
            assert done.returncode == 1
            assert re.search(said, done.stderr), done.stderr
        else:
            assert done.returncode == 0, done.stderr
            verdict(shop)


def arriving(shop: Shop, chance: random.Random, arrived: int) -> int:
    """Some files, and perhaps a change of the master; how many files there are then."""
    for _ in range(chance.randrange(1, 4)):
        rows: list[Row | str] = [sale(chance.randrange(2000)) for _ in range(chance.randrange(1, 60))]
        shop.arrive(arrived, [*rows, "poison"] if chance.random() < 0.3 else rows)
        arrived += 1
    if chance.random() < 0.5:
        MasterStore.open(shop.products).upsert(products([chance.randrange(7)], price=float(chance.randrange(1, 9))))
    return arrived


def decided(shop: Shop) -> int:
    return len(list((shop.root / "state" / "batches").glob("*.json")))


def worked(shop: Shop, process: subprocess.Popen[bytes], more: int, seconds: float) -> None:
    """Wait until a driver has decided so many batches more, however slowly, and then a little; or has ended."""
    ledger, before = Ledger(shop.root / "state", shop.table), decided(shop)
    while process.poll() is None and not (ledger.locked and decided(shop) >= before + more):
        time.sleep(0.02)
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)


def finished(shop: Shop, seed: int) -> None:
    last = driver(shop)
    said, _ = last.communicate(timeout=PATIENCE)
    assert last.returncode == 0, f"seed {seed}\n{said.decode()}"
    verdict(shop)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_thirty_kills_of_driver_and_database(tmp_path: Path) -> None:
    """The driver is killed, or the server, or both, or none; both come back."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    kills = arrived = 0
    with serving() as server:
        shop = Shop(tmp_path).open()
        (shop.root / "address").write_text(server.address, encoding="utf-8")
        while kills < DATABASE_KILLS:
            arrived = arriving(shop, chance, arrived)
            point = chance.choice(
                ["", f"{chance.choice([*POINTS, 'warehouse.before_commit'])}:{chance.randrange(1, 4)}"]
            )
            process = driver(shop, failpoint=point)
            restarts = chance.randrange(4)
            worked(shop, process, chance.choice((0, 1, 1, 2)), chance.uniform(0, 3))
            for _ in range(restarts):
                server.stop()
                server.start()
                kills += 1
                worked(shop, process, chance.choice((0, 1, 1, 2)), chance.uniform(0, 3))
            kills += process.poll() is None or process.returncode == -signal.SIGKILL
            process.kill()
            process.wait()
            said = (shop.root / "said").read_text(encoding="utf-8")
            gone = process.returncode == 1 and "SinkError" in said
            assert process.returncode in (0, -signal.SIGKILL) or (restarts and gone), f"seed {seed}\n{said}"
        finished(shop, seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_two_pipelines_on_one_warehouse(tmp_path: Path) -> None:
    """Each has tables of its own and both the same ledger in the warehouse; they run at once, and are killed."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    shops = []
    for name in ("sales", "orders"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "table").write_text(name, encoding="utf-8")
        (tmp_path / name / "warehouse").symlink_to(tmp_path / "warehouse")
        shops.append(Shop(tmp_path / name).open())
    (tmp_path / "warehouse").mkdir()
    arrived = [0, 0]
    kills = 0
    while kills < SHARED_KILLS:
        arrived = [arriving(shop, chance, number) for shop, number in zip(shops, arrived, strict=True)]
        points = [chance.choice(["", f"{chance.choice(POINTS)}:{chance.randrange(1, 4)}"]) for _ in shops]
        running = [driver(shop, failpoint=point) for shop, point in zip(shops, points, strict=True)]
        for shop, process in zip(shops, running, strict=True):
            worked(shop, process, chance.randrange(3), chance.uniform(0, 2))
        for shop, process in zip(shops, running, strict=True):
            kills += process.poll() is None or process.returncode == -signal.SIGKILL
            process.kill()
            process.wait()
            said = (shop.root / "said").read_text(encoding="utf-8")
            assert process.returncode in (0, -signal.SIGKILL), f"seed {seed}\n{said}"
    for shop in shops:
        finished(shop, seed)
