"""Targets and the page that is made of results."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from semistream_lab import report_core
from semistream_lab.report import make_page
from semistream_lab.results import grouped
from semistream_lab.targets import growth_targets, targets
from tests.lab.samples import ENVIRONMENT, core_cell, result, spark_cell, written

RUN: dict[str, Any] = {"environments": {"abc": ENVIRONMENT}, "commands": ["semistream bench spark --rows 10000000"]}


def test_ratios_are_taken_within_repetitions(tmp_path: Path) -> None:
    # Medians of the rates would say 0.53, since one run of ours is missing; within each repetition it is 0.95.
    rates = [(1e6, 0.95e6), (1e5, 0.95e5), (2e6, 1.9e6)]
    cells = []
    for number, (through, ours) in enumerate(rates):
        cells.append((spark_cell("passthrough", number), result(through)))
        if number != 2:
            cells.append((spark_cell("semistream", number), result(ours, workers=2)))
    found = targets(grouped(written(tmp_path, cells).done))
    assert [(t.what, t.wanted, t.measured, t.met) for t in found] == [
        ("semistream against pass-through", "≥ 0.92×", "0.95×", True)
    ]


def test_all_targets(tmp_path: Path) -> None:
    budget = 100_000_000
    ours: dict[str, Any] = {"workers": 2, "budget_bytes": budget}
    cells = [
        (spark_cell("passthrough"), result(400e3)),
        (spark_cell("plain"), result(18e3)),
        (spark_cell("bucketed"), result(76e3)),
        (spark_cell("semistream"), result(380e3, pss_growth_bytes=300_000_000, **ours)),
        (core_cell("sweep", direct=False), result(5e6, pss_growth_bytes=170_000_000, workers=1, budget_bytes=budget)),
        (core_cell("sweep", direct=True), result(2e6, pss_growth_bytes=100_000_000, workers=1, budget_bytes=budget)),
        (
            core_cell("sweep", direct=False, memory="1%"),
            result(3e6, pss_growth_bytes=1, workers=1, budget_bytes=budget // 10),
        ),
        (core_cell("sweep", direct=False, threads=2), result(5e6)),
        (core_cell("sweep_groups", direct=False, threads=1), result(8e6)),
        (core_cell("sweep_groups", direct=False, threads=1, columns="text"), result(2e6)),
        (core_cell("duckdb_table", threads=1, columns="text"), result(4e6)),
        (core_cell("duckdb_table", threads=1), result(0.5e6)),
        (core_cell("duckdb_table", threads=2), result(0.9e6)),
        (core_cell("build"), {**result(250e3), "batch_seconds": 40.0, "peak_bytes": 1e9, "checksum": {}}),
    ]
    found = {(t.what, t.measured, t.met) for t in targets(grouped(written(tmp_path, cells).done))}
    assert found == {
        ("semistream against pass-through", "0.95×", True),
        ("against the best native arm, bucketed", "5.00×", True),
        ("sweep, plain store: one thread, warm", "5.00 M rows/s", False),
        ("sweep, plain store: against DuckDB's table, 1 thread each", "10.00×", True),
        ("sweep, plain store: against DuckDB's table, 2 threads each", "5.56×", True),
        ("sweep, plain store: two threads against one", "1.00×", False),
        ("sweep, plain store: with O_DIRECT against warm", "0.40×", False),
        ("sweep, plain store: at 1 % memory against 10 %", "0.60×", True),
        ("sweep, store with a column group: one thread, warm", "8.00 M rows/s", True),
        ("sweep, store with a column group: against DuckDB's table, 1 thread each", "16.00×", True),
        ("sweep, store with a column group: against DuckDB's table, 1 thread each", "0.50×", False),
        ("time to build", "40.0 s", True),
        ("peak memory of the build", "1.0 GB", True),
        ("memory growth of semistream", "300.0 MB", False),  # 110 MB and 64 MiB for each of two workers
        ("memory growth of sweep, plain store", "170.0 MB", True),
    }


def test_page_stands_alone(tmp_path: Path) -> None:
    cells = [
        (spark_cell(arm, n), result(rate + n)) for n in range(3) for arm, rate in (("plain", 1e4), ("semistream", 1e6))
    ]
    page = make_page(written(tmp_path, cells), RUN)
    assert page.count("<svg") == 1
    assert "10,000,000 master rows" in page
    assert "A &lt;fast&gt; one" in page
    assert RUN["commands"][0] in page
    assert not re.search(r"<script|<link|src=|@import", page)
    assert "width=device-width" in page


def test_times_of_arms_that_differ_are_not_shown(tmp_path: Path) -> None:
    cells = [
        (spark_cell("plain"), result(12345)),
        (spark_cell("semistream"), result(1e6, "1:bb")),
        (spark_cell("plain", stream="wide"), result(54321)),
        (spark_cell("bucketed"), {"error": "ran out of <memory>"}),
    ]
    page = make_page(written(tmp_path, cells), RUN)
    assert "different rows" in page
    assert "12.3 k" not in page
    assert "54.3 k" in page
    assert "ran out of &lt;memory&gt;" in page


def test_empty_page(tmp_path: Path) -> None:
    assert "no results yet" in make_page(written(tmp_path, []), {"environments": {}, "commands": []})


def test_a_busy_machine_is_named(tmp_path: Path) -> None:
    quiet = written(tmp_path / "quiet", [(spark_cell("plain"), result(1e5, load_before=1.9))])
    assert "was busy" not in make_page(quiet, RUN)
    loud = written(tmp_path / "loud", [(spark_cell("plain"), result(1e5, load_before=7.5))])
    assert "1 of 1 runs began at a load of 7.5" in make_page(loud, RUN)
    noted = written(tmp_path / "noted", [(spark_cell("plain"), result(1e5, others_share=0.43, load_before=0.1))])
    page = make_page(noted, RUN)
    assert "The machine was busy: 43 % of its CPU time went to others; these rates are not to be believed." in page
    assert "43% (busy)" in page  # beside the arm


def test_commits_of_one_machine_stand_together(tmp_path: Path) -> None:
    results = written(tmp_path, [(spark_cell("plain"), result(1e5)), (spark_cell("bucketed"), result(1e5))])
    results.lines[1]["environment"] = "def"
    run = {**RUN, "environments": {"abc": ENVIRONMENT, "def": {**ENVIRONMENT, "id": "def", "commit": "12345"}}}
    page = make_page(results, run)
    assert page.count("processor") == 1
    assert "not from a repository, 12345" in page


def test_all_columns_and_large_masters_have_to_be_ahead(tmp_path: Path) -> None:
    cells = []
    for more in ({"columns": "all"}, {"rows": 100_000_000}):
        cells += [
            (core_cell("sweep", direct=False, threads=1, **more), result(1.1e6)),
            (core_cell("duckdb_table", threads=1, **more), result(1e6)),
        ]
    for group in (grouped(written(tmp_path, cells).done)[:2], grouped(written(tmp_path, cells).done)[2:]):
        assert [(t.wanted, t.measured, t.met) for t in targets(group)] == [("≥ 1×", "1.10×", True)]


def test_growth_and_cold_starts(tmp_path: Path) -> None:
    cells = [
        (core_cell("sweep", direct=False, rows=rows, warmup=rows), result(rate))
        for rows, rate in ((10**6, 5e6), (10**7, 4e6), (10**8, 3e6))
    ]
    curve = [[1e5, 1e6], [2e5, 2e6], [3e5, 3e6]]
    cells += [
        (
            core_cell("sweep", direct=False, cold=True),
            result(2e6, curve=curve, rss_growth_bytes=10**8, pages_read=12_345, bytes_read=5 * 10**7),
        ),
        (core_cell("duckdb_table", threads=1, cold=True), result(1e6, curve=curve)),
    ]
    results = written(tmp_path, cells)
    (target,) = growth_targets(grouped(results.done))
    assert (target.what, target.measured, target.met) == (
        "sweep, plain store: rate with 100,000,000 rows against 1,000,000",
        "0.60×",
        False,
    )
    page = make_page(results, RUN)
    assert "As the master grows" in page
    assert "From an empty cache" in page
    shown = {title: lines for title, _, lines in report_core.tables(grouped(results.done))}
    cold = shown["10 M rows, 200 k-row batches, three columns, from an empty cache"]
    assert cold[0] == ["sweep, 10%", "2 M", "12,345", "50 B", "2.00", "100.0 MB", "–"]
    assert cold[1][2:4] == ["–", "–"]  # DuckDB's reads are not known
    assert "<td class=n>12,345</td>" in make_page(written(tmp_path / "warm", [(core_cell("sweep"), warm())]), RUN)


def warm() -> dict[str, Any]:
    return result(2e6, pages_read=12_345, bytes_read=5 * 10**7)
