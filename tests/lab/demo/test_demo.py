"""The demo: what it shows, what it refuses, that it notices broken promises, and a short run of all of it."""

from __future__ import annotations

import datetime as dt
import io
import re
import shutil
import subprocess
import sys
import threading
import time
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from rich.console import Console

from semistream.errors import ArgumentError, SemistreamError
from semistream.stats import Stats
from semistream.stores import MasterStore
from semistream_lab import demo
from semistream_lab.demo import Place, Settings
from semistream_lab.demo.checks import check
from semistream_lab.demo.lag import Lag
from semistream_lab.demo.query import Outcome, Query, Reading
from semistream_lab.demo.shop import Arrivals
from semistream_lab.demo.summary import summary
from semistream_lab.demo.view import View, short
from semistream_lab.workloads.retail import RetailWorkload

ROWS = 100


def enriched(*, unknown: int = 3) -> pa.Table:
    known = ROWS - unknown
    return pa.table(
        {
            "sale_id": list(range(ROWS)),
            "sold_at": [dt.datetime(2026, 1, 2, 7, tzinfo=dt.UTC)] * ROWS,
            "product": [f"P{n:08}" for n in range(ROWS)],
            "customer": [f"C{n % 7}" for n in range(ROWS)],
            "customer_key": [n % 7 + 1 for n in range(ROWS)],
            "product_key": [*range(known), *[None] * unknown],
            "vendor": [*["Vendor 0001"] * known, *[None] * unknown],
            "price": pa.array([*[Decimal("1.25")] * known, *[None] * unknown], pa.decimal128(10, 2)),
        }
    )


def outcome(name: str, path: Path, table: pa.Table, **more: Any) -> Outcome:
    write_deltalake(path, table.sort_by([("sale_id", "descending")]))
    return Outcome(name, path, [(50, 9.0), (50, 9.0), (50, 0.5)], **more)


def ours(path: Path, table: pa.Table | None = None, *, replayed: int = 1, **stats: int) -> Outcome:
    counted = Stats(**{"rows_in": ROWS, "matched": ROWS - 3, "unmatched": 3, **stats})
    members = path.with_name("customers")
    write_deltalake(members, pa.table({"customer": [f"C{n}" for n in range(7)], "customer_key": list(range(1, 8))}))
    table = enriched() if table is None else table
    return outcome("semistream", path, table, stats=counted, replayed=replayed, customers=members)


class TestVerdict:
    def test_all_promises_kept(self, tmp_path: Path) -> None:
        spark = outcome("Spark's join", tmp_path / "spark", enriched().slice(0, 60).drop_columns(["customer_key"]))
        verdict = check(ROWS, ours(tmp_path / "ours"), [spark])
        assert verdict.good
        assert verdict.same == {"Spark's join": (60, True)}
        assert verdict.sample.column("sale_id").to_pylist() == [0, 1, 97]
        assert verdict.ours.rate == 100  # the first two batches do not count

    def test_a_sale_twice(self, tmp_path: Path) -> None:
        table = pa.concat_tables([enriched(), enriched().slice(5, 1)])
        verdict = check(ROWS, ours(tmp_path / "ours", table), [])
        assert (verdict.once, verdict.accounted, verdict.good) == (False, False, False)

    def test_one_sale_twice_and_another_lost(self, tmp_path: Path) -> None:
        table = pa.concat_tables([enriched().slice(1), enriched().slice(5, 1)])
        verdict = check(ROWS, ours(tmp_path / "ours", table), [])
        assert (verdict.once, verdict.accounted, verdict.good) == (False, True, False)

    @pytest.mark.parametrize(
        "wrong", [{"rows_in": ROWS + 50}, {"matched": ROWS - 4}, {"matched": ROWS, "unmatched": 0}]
    )
    def test_counters_that_do_not_agree(self, tmp_path: Path, wrong: dict[str, int]) -> None:
        verdict = check(ROWS, ours(tmp_path / "ours", **wrong), [])
        assert (verdict.once, verdict.accounted, verdict.good) == (True, False, False)

    def test_a_customer_with_two_keys(self, tmp_path: Path) -> None:
        table = enriched()
        keys = pa.array([99, *table.column("customer_key").to_pylist()[1:]])
        table = table.set_column(table.schema.get_field_index("customer_key"), "customer_key", keys)
        verdict = check(ROWS, ours(tmp_path / "ours", table), [])
        assert (verdict.numbered, verdict.once, verdict.good) == (False, True, False)

    def test_no_batch_was_replayed(self, tmp_path: Path) -> None:
        assert not check(ROWS, ours(tmp_path / "ours", replayed=0), []).good

    @pytest.mark.parametrize("rows", [0, ROWS])
    def test_spark_says_something_else(self, tmp_path: Path, rows: int) -> None:
        spark = outcome("Spark's join", tmp_path / "spark", enriched(unknown=4).slice(0, rows))
        verdict = check(ROWS, ours(tmp_path / "ours"), [spark])
        assert verdict.same == {"Spark's join": (rows, False)}
        assert not verdict.good


class TestShown:
    def test_in_a_terminal_and_in_a_log(self) -> None:
        reading = Reading(2_000, 3, 1_000, 0.01, 2, 1.25, Stats(hits=8, misses=2, peak_bytes=900))
        for terminal in (True, False):
            out = io.StringIO()
            view = View(Console(file=out, force_terminal=terminal, width=100, highlight=False))
            with view.building() as progress:
                progress("read and sort", 1, 2)
            with view.live("a query", 4_000, budget_bytes=1_000) as live:
                live.update(Reading(0, -1, 0, 0.0, 0, 0.0))
                live.update(reading)
                live.update(reading)
                live.stopped(3, 2_000)
            said = out.getvalue()
            for text in ("100,000 rows/s", "80% found in the cache", "900 B of 1.0 kB used", "2 files (1.2 s) behind"):
                assert text in said
            assert "batch 3 again" in said
            assert terminal or said.count("batch 3: ") == 1  # a batch is one line of a log

    def test_the_table_has_the_last_word(self) -> None:
        out = io.StringIO()
        view = View(Console(file=out, width=100, highlight=False))
        with view.live("a query", 4_000) as live:
            live.update(Reading(2_000, 3, 1_000, 0.01, 0, 0.0))
            live.finished(3_000)  # it was stopped in a batch that was written already
        assert "a query: 3,000 sales, then stopped: enough to compare" in out.getvalue()

    @pytest.mark.parametrize("good", [True, False])
    def test_the_summary(self, tmp_path: Path, good: bool) -> None:
        natives = [outcome(name, tmp_path / name, enriched()) for name in ("plain", "broadcast")]
        verdict = check(ROWS if good else ROWS + 1, ours(tmp_path / "ours"), natives)
        verdict.ours.batches[-1] = (50, 1e-4)  # quick enough, whatever becomes of the lag
        verdict.ours.lag.note([9.0] * 5 + [3.0] * 5 if good else [3.0] * 5 + [9.0] * 5)
        store = MasterStore.build(next(RetailWorkload(products=1_000).master()), tmp_path / "store", key="product_id")
        out = io.StringIO()
        panel = summary(Place(tmp_path), Settings(1_000), store, verdict, 7.0)
        Console(file=out, width=100).print(panel)
        assert ("✗" in out.getvalue()) != good
        for text in (
            "100 sales in = 97 with a product + 3 of unknown",
            "NULL",
            "7 new customers, each with one key",
            "of memory for",
            "semistream kept up: its lag went from 9.0 s to 3.0 s" if good else "fell behind: its lag grew from 3.0 s",
            "plain would fall behind, by its rate",
            "7 s in all",
        ):
            assert text in out.getvalue()

    def test_paths_as_one_types_them(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert short(tmp_path / "runs" / "demo") == "runs/demo"
        assert short(tmp_path.parent) == str(tmp_path.parent)


class TestArrivals:
    SETTINGS = Settings(1_000, files=5, rows_per_file=10, files_per_second=50)

    def test_all_files_come_at_their_pace(self, tmp_path: Path) -> None:
        arrivals = Arrivals(tmp_path / "sales", RetailWorkload(products=1_000), self.SETTINGS)
        arrivals.write()
        arrivals.start()
        arrivals.join()
        assert len(list(tmp_path.glob("sales/*.parquet"))) == len(arrivals.times) == 5
        assert arrivals.times[-1] - arrivals.times[0] >= 4 / 50

    def test_they_stop_when_told(self, tmp_path: Path) -> None:
        arrivals = Arrivals(
            tmp_path / "sales", RetailWorkload(products=1_000), Settings(1_000, rows_per_file=10, files_per_second=0.01)
        )
        arrivals.write()
        arrivals.start()
        arrivals.stop()
        assert len(arrivals.times) <= 1
        assert arrivals not in threading.enumerate()

    def test_an_error_is_kept(self, tmp_path: Path) -> None:
        arrivals = Arrivals(tmp_path / "sales", RetailWorkload(products=1_000), self.SETTINGS)
        arrivals.write()
        shutil.rmtree(tmp_path / "sales")
        arrivals.start()
        arrivals.join()
        assert isinstance(arrivals.error, OSError)


class TestRefused:
    def test_a_directory_with_other_things(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.txt").write_text("years of work")
        with pytest.raises(ArgumentError, match="not of an earlier demo"):
            demo.run(tmp_path)
        assert (tmp_path / "thesis.txt").exists()

    def test_a_directory_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ArgumentError, match="cannot be written to"):
            demo.run(tmp_path / "file" / "demo")

    def test_an_earlier_demo_is_cleared(self, tmp_path: Path) -> None:
        place = Place(tmp_path / "demo")
        place.prepare()
        place.sales.mkdir()
        place.prepare()
        assert not place.sales.exists()

    def test_too_few_products(self, tmp_path: Path) -> None:
        with pytest.raises(ArgumentError, match="products=5"):
            demo.run(tmp_path, products=5)

    def test_a_package_that_is_missing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "deltalake", None)
        with pytest.raises(SemistreamError, match=r"needs deltalake; run: pip install 'semistream\[pipeline\]'"):
            demo.run(tmp_path)


def test_a_short_run_of_all_of_it(tmp_path: Path) -> None:
    # A process of its own: the demo starts and stops Spark, and other tests may have theirs.
    call = """if True:
        import sys
        from pathlib import Path
        from semistream_lab.demo import run
        sys.exit(run(Path("demo"), products=50_000, quick=True))"""
    done = subprocess.run([sys.executable, "-c", call], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")  # what Spark says is in its log
    assert "60,000 rows in the table, 60,000 different sales, 60,000 sold" in done.stdout
    assert "1 batch sent again after the restart, and not written again" in done.stdout
    assert re.search(r"Stopped on purpose after batch \d+\b", done.stdout)  # the query may be ahead of who looks
    assert "✗" not in done.stdout
    for name in ("Spark's join", "Spark's join, broadcast"):  # one count for each, wherever it stands
        shown = re.search(rf"✓ {name}, on the same files: ([\d,]+) sales", done.stdout)
        compared = re.search(rf"([\d,]+) rows of {name} compared", done.stdout)
        assert shown is not None
        assert compared is not None
        assert shown[1] == compared[1]
    assert "20,000 new customers, each with one key" in done.stdout
    assert DeltaTable(tmp_path / "demo" / "warehouse" / "sales").count() == 60_000
    assert (tmp_path / "demo" / "spark.log").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]  # nothing is left beside it


class TestLag:
    def test_steady(self) -> None:
        lag = Lag([5.0, 5.2, 4.9, 5.1, 5.0, 5.3])
        assert not lag.grew(1.0)

    def test_slowly_growing(self) -> None:
        lag = Lag([3 + 0.1 * file for file in range(40)])
        assert lag.grew(1.0)

    def test_nothing_loaded(self) -> None:
        assert Lag().trend == (0.0, 0.0)

    def test_files_that_were_loaded_before_anybody_looked(self, tmp_path: Path) -> None:
        """On a busy machine a query may begin when all sales have arrived: their lag is known all the same."""
        settings = Settings(1_000, files=6, rows_per_file=10, files_per_second=1)
        arrivals = Arrivals(tmp_path / "sales", RetailWorkload(products=1_000), settings)
        arrivals.times = [time.monotonic() - 100 + file for file in range(6)]  # never started, so never alive
        query = Query(Outcome("semistream", tmp_path / "table"), Place(tmp_path), settings, arrivals)
        query.running = SimpleNamespace(recentProgress=[])
        query.outcome.batches = [(40, 1.0)]
        query._look(lambda reading: None)
        query.outcome.batches = [(40, 1.0), (20, 1.0)]
        query._look(lambda reading: None)
        lags = query.outcome.lag.seconds
        assert len(lags) == 6
        assert all(seconds >= 100 - file for file, seconds in enumerate(lags))
