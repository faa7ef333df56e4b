"""A cluster whose hosts have disks of their own: one version for all tasks of a batch, or a refusal by name."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from semistream import MasterStore
from semistream.spark.area import directories
from semistream.spark.spec import Transport
from tests.spark.cluster import Cluster
from tests.spark.streams import add_file, build, keys, master_table, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

REFUSED = "OtherVersionError: "
ONCE = "spark.task.maxFailures=1"  # else a task that is refused may be tried again on the host that has the right copy
# A stream of one batch in four tasks on two hosts; says how many rows have which mark beside their price.
STREAM = """
df = spark.readStream.schema("id bigint, n bigint").parquet(str(shared / "in")).repartition(4)
result = enrich(df, shared / "{store}", on="id", memory=2_000_000, transport="{transport}")
def each(batch, number):
    marks = batch.selectExpr("price - id mark").groupBy("mark").count().collect()
    print("batch", number, sorted((row["mark"], row["count"]) for row in marks), flush=True)
run(result, place / "check-{store}-{transport}", each)
print("done", flush=True)
"""
ROWS = 8_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as made:
        for host in (made.shared, made.other):
            add_file(host / "in", keys(*(number % 100 for number in range(ROWS))))
        yield made


def copied(cluster: Cluster, name: str) -> MasterStore:
    """A store, and the second host's copy of it."""
    store = build(cluster.shared / name)
    shutil.copytree(store.path, cluster.other / name)
    return store


class TestCopies:
    @pytest.mark.parametrize("transport", ["rows", "keys"])
    def test_an_older_one(self, cluster: Cluster, transport: Transport) -> None:
        name = f"older-{transport}"
        copied(cluster, name).upsert(master_table(mark=0.5))
        said = cluster.ended(STREAM.format(store=name, transport=transport), ONCE)
        assert REFUSED in said, said[-3000:]
        assert "Give every host the same copy of the store" in said
        assert "batch 0" not in said
        shutil.rmtree(cluster.other / name)  # as the message says
        shutil.copytree(cluster.shared / name, cluster.other / name)
        said = cluster.ended(STREAM.format(store=name, transport=transport))
        assert f"batch 0 [(0.5, {ROWS})]" in said, said[-3000:]

    def test_a_newer_one(self, cluster: Cluster) -> None:
        """It has the driver's version too; what the driver pinned counts, for the replay too."""
        copied(cluster, "newer")
        MasterStore.open(cluster.other / "newer").upsert(master_table(mark=0.5))
        script = STREAM.format(store="newer", transport="rows")
        failing = script.replace("    print(", "    raise OSError('the warehouse is ' + 'down')\n    print(", 1)
        assert "the warehouse is down" in cluster.ended(failing)
        MasterStore.open(cluster.shared / "newer").upsert(master_table(mark=0.75))
        assert f"batch 0 [(0.0, {ROWS})]" in cluster.ended(script)
        assert not (cluster.other / "newer" / "pins").exists()
        [pin] = (cluster.shared / "newer" / "pins").rglob("*.json")
        assert json.loads(pin.read_text())["version"] == 1

    def test_one_of_its_own(self, cluster: Cluster) -> None:
        """The same number of versions, other rows: built on each host by itself."""
        build(cluster.shared / "own")
        build(cluster.other / "own", master_table(mark=0.5))
        said = cluster.ended(STREAM.format(store="own", transport="rows"), ONCE)
        assert REFUSED in said, said[-3000:]
        assert "this host has a copy of another one" in said

    @pytest.mark.parametrize("version", ["'latest'", "2"])
    def test_a_batch_job(self, cluster: Cluster, version: str) -> None:
        if not (cluster.shared / "job").exists():
            copied(cluster, "job").upsert(master_table(mark=0.5))
        script = f"""
            df = spark.range(1000).repartition(4)
            print("rows", enrich(df, shared / "job", on="id", master_version={version}, transport="rows").count())
        """
        said = cluster.ended(script, ONCE)
        assert REFUSED in said, said[-3000:]
        assert "rows 1000" not in said


BUSY = """
def slowly(batches):
    for batch in batches:
        time.sleep({pause})
        yield batch
spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
df = spark.range(20_000).selectExpr("id % 100 id", "id n").repartition(8)
options = {{"memory": 2_000_000, "algorithm": "sweep", "transport": "rows"}}
result = enrich(df.mapInArrow(slowly, df.schema), shared / "busy", on="id", **options)
print("application", FrameFacts.of(df).application, flush=True)
found = result.selectExpr("count(*) c", "sum(price - id) s").collect()[0]
print("rows", found.c, found.s, flush=True)
"""


@pytest.fixture
def busy(cluster: Cluster) -> None:
    if not (cluster.shared / "busy").exists():
        copied(cluster, "busy")


@pytest.mark.usefixtures("busy")
class TestLifetime:
    """Shared memory on the hosts of the workers."""

    def test_gone_after_a_normal_end(self, cluster: Cluster) -> None:
        run = cluster.driver(BUSY.format(pause=0))
        path = directories(run.line("application "))[0]
        wait_until(path.is_dir)
        assert run.line("rows ") == "20000 0.0"
        run.process.wait(60)
        wait_until(lambda: not path.exists())

    def test_gone_after_the_driver_is_killed(self, cluster: Cluster) -> None:
        run = cluster.driver(BUSY.format(pause=0.5))
        path = directories(run.line("application "))[0]
        wait_until(lambda: list(path.glob("*-cache")))
        run.process.kill()
        wait_until(lambda: not path.exists())

    def test_executors_are_killed(self, cluster: Cluster) -> None:
        """Their tasks run again elsewhere, in a later attempt at the stage; the rows are the same."""
        run = cluster.driver(BUSY.format(pause=0.02), "spark.task.maxFailures=20")
        application = run.line("application ")
        path = directories(application)[0]
        for _ in range(2):
            wait_until(lambda: list(path.glob("*-cache")))
            victims = wait_until(lambda: executors(cluster))[:1]
            os.kill(victims[0], signal.SIGKILL)
            wait_until(partial(gone, cluster, victims[0]))
        assert run.line("rows ") == "20000 0.0"
        run.process.wait(60)
        wait_until(lambda: not path.exists())

    def test_speculation(self, cluster: Cluster) -> None:
        """A second attempt at a slow task runs beside it, each with a place of its own."""
        eager = ["speculation=true", "speculation.interval=100ms", "speculation.multiplier=1.01"]
        eager += ["speculation.quantile=0.1", "speculation.minTaskRuntime=100ms"]
        said = cluster.ended(BUSY.format(pause=0.02), *(f"spark.{setting}" for setting in eager))
        assert "rows 20000 0.0" in said, said[-3000:]


def gone(cluster: Cluster, pid: int) -> bool:
    return pid not in executors(cluster)


def executors(cluster: Cluster) -> list[int]:
    """The executors of this cluster's workers."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            work = os.readlink(process / "cwd")
        except OSError:
            continue
        if b"CoarseGrainedExecutorBackend" in command and work.startswith(str(cluster.place / "work")):
            found.append(int(process.name))
    return found
