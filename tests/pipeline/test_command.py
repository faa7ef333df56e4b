"""`semistream run` as people meet it: what it prints, how it ends, where the rest goes; and no word of secrets."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import traceback
import urllib.parse
from pathlib import Path

import pytest

from semistream import MasterStore
from semistream.errors import SemistreamError
from semistream.pipeline import Pipeline, compute, lookup, source
from semistream.pipeline.file import load
from semistream.pipeline.ledger import Ledger
from semistream.pipeline.status import at_work, reason, status_of, stopped
from semistream.warehouse import SinkError
from semistream.warehouse.contract import BatchWrites
from semistream.warehouse.delta_tables import DeltaWarehouse
from semistream.warehouse.postgres import PostgresWarehouse
from tests.pipeline.shop import Shop, products, sale
from tests.warehouse.postgres_server import PASSWORD

FILE = """\
state = "state"
max_bad_rate = 0.5

[source]
format = "json"
path = "incoming"
schema = {{ sale_id = "bigint", product = "string", quantity = "int" }}
maxFilesPerTrigger = 1

[[step]]
compute = {{ share = "100 / quantity" }}

[sink]
postgres = "{address}"
schema = "{schema}"
table = "sales"
"""


ESCAPED = PASSWORD.replace("'", "\\'")  # as an address has it


def run(root: Path, password: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as from a shell."""
    secret = {**os.environ, "SECRET": password}
    # Java says on standard error that it reads this variable; Spark's own hands over the same options in silence.
    given = secret.pop("JDK_JAVA_OPTIONS", ""), secret.get("SPARK_SUBMIT_OPTS", "")
    secret["SPARK_SUBMIT_OPTS"] = " ".join(given)
    command = [sys.executable, "-c", "from semistream.commands.main import main; main()", "run", "sales.toml", "--once"]
    return subprocess.run(command, cwd=root, env=secret, capture_output=True, text=True, check=False)


def written(shop: Shop, postgres: str) -> None:
    address = postgres.replace(ESCAPED, "${SECRET}")
    assert address != postgres
    (shop.root / "sales.toml").write_text(FILE.format(address=address, schema=shop.root.name), encoding="utf-8")


def test_what_it_prints_and_what_it_keeps_to_itself(shop: Shop, postgres: str) -> None:
    written(shop, postgres)
    shop.arrive(0, [sale(1), sale(2), "poison"])
    os.utime(shop.incoming / "0000.json", (1, 1))  # files come in the order of their times
    shop.arrive(1, [sale(3, quantity=0)])
    done = run(shop.root, PASSWORD)
    assert "batch 0: 3 rows" in done.stdout
    log = shop.root / "state" / "run.log"
    first, *rest = done.stderr.splitlines()  # nothing of Spark's own, neither at the start nor at the end
    assert first.startswith("semistream: sales stopped: [DIVIDE_BY_ZERO] ")
    assert rest == [f"the stack is in {log}"]
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    with pytest.raises(SinkError, match="password authentication failed") as wrong:
        _loaded(shop, PASSWORD + "x").sink.check("sales", "0b7f61f3-d9f5-4942-945a-e7a65429d651")

    said = [done.stdout, done.stderr, "".join(traceback.format_exception(wrong.value))]
    pipeline = _loaded(shop, PASSWORD)
    said += [repr(pipeline), repr(pipeline.sink), str(vars(pipeline)), *pipeline.check()]
    said += [str(line) for line in status_of(pipeline.state, pipeline.name, {}).lines()]
    assert isinstance(pipeline.sink, PostgresWarehouse)
    said += [str(pipeline.sink.read(table).to_pylist()) for table in ("sales", "sales_quarantine")]
    files = [path for path in shop.root.rglob("*") if path.is_file()]
    assert len(files) > 10
    said += [path.read_bytes().decode("utf-8", "replace") for path in files]
    for form in (PASSWORD, ESCAPED, urllib.parse.quote(PASSWORD, safe=""), repr(PASSWORD)[1:-1]):
        assert not [text[:200] for text in said if form in text]


def _loaded(shop: Shop, password: str) -> Pipeline:
    os.environ["SECRET"] = password
    try:
        return load(shop.root / "sales.toml")
    finally:
        del os.environ["SECRET"]


class TestReason:
    def test_the_line_that_helps(self) -> None:
        java = "\tat org.apache.spark.X.y(X.scala:1)\n" * 40
        task = f"a.b.PythonException: Traceback (most recent call last):\n  File x\n    y\n{{}}\n{java}"
        for text, expected in (
            (f"An error occurred while calling o9.collect.\n: a.b.C: Job aborted\n{java}", "a.b.C: Job aborted"),
            (
                f"[STREAM_FAILED] Query x terminated: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n{java}",
                "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012",
            ),
            (
                "An error occurred while calling o9.collect.\n: Job aborted\n"
                + task.format("pyarrow.lib.ArrowInvalid: no"),
                "pyarrow.lib.ArrowInvalid: no",
            ),
            ("", "no reason was given"),
        ):
            assert reason(text) == expected

    def test_errors_of_python(self, tmp_path: Path) -> None:
        for error, words in ((KeyError("product"), "KeyError: 'product'"), (RuntimeError(), "RuntimeError")):
            found = stopped("sales", error, Exception("[STREAM_FAILED] x"), tmp_path / "run.log")
            assert str(found) == f"sales stopped: {words}"


class _Watched(DeltaWarehouse):
    """Looks at the status while a batch is at work."""

    def commit(self, batch: BatchWrites) -> bool:
        self.seen = dict(status_of(self.root.parent / "state", "sales", {}).lines())
        return super().commit(batch)


class TestStatus:
    def test_while_a_batch_runs(self, shop: Shop, spark: object) -> None:
        shop.arrive(0, [sale(n) for n in range(5)])
        sink = _Watched(shop.root / "warehouse")
        read = source("json", shop.incoming, schema={"sale_id": "bigint"})
        pipeline = Pipeline(read, [], sink, table="sales", state=shop.root / "state")
        running = pipeline.start(spark, once=True)  # type: ignore[arg-type]
        running.wait()
        assert sink.seen["state"].startswith("running: batch 0 since ")
        assert dict(status_of(pipeline.state, "sales", {}).lines())["state"] == "running: it waits for rows"
        running.stop()
        lines = dict(status_of(pipeline.state, "sales", {}).lines())
        assert lines["state"] == "stopped"
        assert "the last was loaded" in lines["batches"]

    def test_the_first_batch(self, tmp_path: Path) -> None:
        ledger = Ledger(tmp_path, "sales")
        ledger.open()
        with at_work(tmp_path, "batch 0"):
            found = status_of(tmp_path, "sales", {})
            assert found.works_on is not None
            since = found.works_on[1]
            assert dict(found.lines(now=since + 449))["state"].endswith(", for 449 s")
            assert dict(found.lines())["batches"] == "0, none is loaded yet"
            ledger.close()
            with pytest.raises(SemistreamError, match="loaded nothing yet"):  # a crash left the mark behind
                status_of(tmp_path, "sales", {})


def test_rows_sent_again(shop: Shop, spark: object) -> None:
    """What is sent again fails in the same words as a batch."""

    def pipeline(expression: str) -> Pipeline:
        return Pipeline(
            source("json", shop.incoming, schema={"sale_id": "bigint", "product": "string"}),
            [lookup(shop.products, on={"product": "id"}, on_miss="redirect"), compute(share=expression)],
            DeltaWarehouse(shop.root / "warehouse"),
            table="sales",
            state=shop.root / "state",
        )

    shop.arrive(0, [sale(6)])  # there is no such product yet
    pipeline("100 / sale_id").run(spark, once=True)  # type: ignore[arg-type]
    MasterStore.open(shop.products).upsert(products(range(6, 7)))
    with pytest.raises(SemistreamError, match=r"^sales stopped: \[DIVIDE_BY_ZERO\]") as found:
        pipeline("100 / (sale_id - 6)").retry(spark)  # type: ignore[arg-type]
    assert found.value.__notes__ == [f"the stack is in {shop.root / 'state' / 'run.log'}"]
    done = pipeline("100 / sale_id").retry(spark)  # type: ignore[arg-type]
    assert done is not None
    assert done.totals["enriched"] == 1
