"""Passwords and the names of private directories: in no plan, page, event log, checkpoint, ledger or process list."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from tests.pipeline.shop import Shop, sale
from tests.waiting import PATIENCE
from tests.warehouse.postgres_server import PASSWORD

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
# Runs the shop into PostgreSQL, and writes down what anyone could see meanwhile: Spark's pages and the process list.
DRIVER = """
import os, sys, threading, urllib.request
from pathlib import Path
from semistream.warehouse import PostgresWarehouse
from semistream.spark.prepare import FrameFacts
from semistream.spark.session import local_session
from tests.pipeline.shop import Shop

shop, seen = Shop(Path(sys.argv[1])), Path(sys.argv[2])
events = seen / "events"
events.mkdir()
spark = local_session("secrets", spark__ui__enabled="true", spark__ui__port="0", spark__eventLog__enabled="true",
                      spark__eventLog__dir=f"file://{events}", spark__eventLog__compress="false")
stop = threading.Event()

def watch():
    processes = set()
    while not stop.wait(0.5):
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                processes.add(path.read_bytes())
            except OSError:
                pass
    (seen / "processes").write_bytes(b"\\n".join(processes))

watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
sink = PostgresWarehouse(os.environ["SHOP_ADDRESS"], staging=shop.root / "staging", schema="secrets")
shop.pipeline(sink).run(spark, once=True)
(seen / "private").write_text(FrameFacts.of(spark.range(1)).application)
base = spark.sparkContext.uiWebUrl
plans = spark.sparkContext._jsc.sc().applicationId()
for page in ("jobs/", "stages/", "SQL/", "environment/", "executors/", "StreamingQuery/",
             f"api/v1/applications/{plans}/sql?length=1000&planDescription=true&details=true"):
    with urllib.request.urlopen(f"{base}/{page}") as answer:
        (seen / page.strip("/").replace("/", "_")[:40]).write_bytes(answer.read())
stop.set()
watcher.join()
spark.stop()
"""


def test_nowhere_to_be_seen(shop: Shop, tmp_path: Path, postgres: str) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    for number in range(2):
        shop.arrive(number, [sale(row) for row in range(10 * number, 10 * number + 10)])
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with (seen / "said").open("wb") as out:
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, str(shop.root), str(seen)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": paths, "SHOP_ADDRESS": postgres},
            stdout=out,
            stderr=out,
            check=False,
            timeout=PATIENCE,
        )
    assert done.returncode == 0, (seen / "said").read_text()[-3000:]
    private = seen / "private"
    secret = private.read_text().rpartition("-")[2]
    assert len(secret) == 32
    forms = {PASSWORD, quote(PASSWORD), quote(PASSWORD, safe=""), quote_plus(PASSWORD), secret}
    looked_at = [path for root in (seen, shop.root) for path in root.rglob("*") if path.is_file() and path != private]
    assert any(path.is_relative_to(seen / "events") for path in looked_at)
    assert b"semistream-keeper" in (seen / "processes").read_bytes()
    shown = [(path, form) for path in looked_at for form in forms if form.encode() in path.read_bytes()]
    assert not shown
