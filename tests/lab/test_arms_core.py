"""Every arm of `bench core` on tiny data, in fresh processes as in a real run: same rows, all figures there."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from semistream_lab import commands, suites
from semistream_lab.arms_core import Batches, run
from semistream_lab.cells import Cell
from semistream_lab.data import BenchData
from semistream_lab.errors import BenchmarkError
from semistream_lab.results import Results, disagreements
from semistream_lab.settings import CORE_ARMS, Settings
from semistream_lab.workloads.zipf import ZipfWorkload

long = pytest.mark.long  # nine fresh processes


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    place = tmp_path_factory.mktemp("core")
    given = Settings(
        "core",
        rows=20_000,
        out=place / "out",
        data=place / "data",
        batch_rows=(2_000,),
        repetitions=1,
        batches=3,
        warmup=4,
    )
    commands.run_suite(given, Console(stderr=True))
    return given


@long
def test_all_arms_agree(settings: Settings) -> None:
    results = Results.load(settings.out)
    assert results.failed == []
    assert {line["arm"] for line in results.done} == set(CORE_ARMS)
    assert disagreements(results.done) == []
    joins = [line for line in results.done if line["arm"] != "build"]
    for line in joins:
        assert set(line["checksum"]) >= {"0", "2", "7"}, line["arm"]
        assert line["matched"] == line["rows"] == 2_000 * 3, line["arm"]
        assert line["rows_per_second"] > 0
        assert line["batch_seconds"] > 0
        assert line["pss_growth_bytes"] >= 0


@long
def test_counters_of_ours(settings: Settings) -> None:
    lines = [line for line in Results.load(settings.out).done if line["arm"] == "sweep"]
    assert {line["params"]["direct"] for line in lines} == {False, True}
    for line in lines:
        assert 0 < line["hit_ratio"] < 1
        assert 0 < line["peak_bytes"] <= line["budget_bytes"]
        assert line["pages_read"] > 0
        assert line["bytes_read"] > 0


@long
def test_build_is_measured(settings: Settings) -> None:
    (line,) = [line for line in Results.load(settings.out).done if line["arm"] == "build"]
    assert line["rows"] == 20_000
    assert line["peak_bytes"] > 10_000_000
    assert list(settings.data.rglob(".build-*")) == []


@long
def test_a_second_run_does_nothing(settings: Settings) -> None:
    before = (settings.out / "results.jsonl").read_bytes()
    assert suites.missing(suites.cells(settings), Results.load(settings.out)) == []
    commands.run_suite(settings, Console(stderr=True))
    assert (settings.out / "results.jsonl").read_bytes() == before


@long
def test_report_is_there(settings: Settings) -> None:
    page = Path(settings.out / "report.html").read_text()
    assert "20,000 master rows" in page
    assert "sweep, 10%, O_DIRECT" in page
    assert settings.command in page


def test_batches_are_held_unless_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    load = ZipfWorkload(1000)
    held = Batches(load, 10, [3, 4], [0, 1])
    assert [held[number].column("key").to_pylist() for number in (0, 4)] == [
        load.stream(start, 10).column("key").to_pylist() for start in (0, 40)
    ]
    assert held.making == 0
    monkeypatch.setattr("semistream_lab.arms_core.MOST_HELD", 30)
    made = Batches(load, 10, [3, 4], [0, 1])
    assert made[1] == held[1]
    assert made.making > 0
    assert list(made.stream([3, 4])) == [held[3], held[4]]


def test_a_curve_has_all_rows() -> None:
    batches = Batches(ZipfWorkload(1000), 10, range(200), [])
    batches.moments = [number * 0.5 for number in range(200)]
    curve = batches.curve()
    assert len(curve) == 60
    assert curve[-1] == [1990, 20]


def test_the_same_rows_with_and_without_a_column_group(tmp_path: Path) -> None:
    data = BenchData(tmp_path / "data", 20_000)
    params = {"rows": 20_000, "stream": "narrow", "batch_rows": 2_000, "columns": "narrow", "memory": "20%"}
    params |= {"warmup": 3, "batches": 3, "threads": 1, "direct": False}
    plain, grouped = (run(Cell("core", arm, params), data) for arm in ("sweep", "sweep_groups"))
    assert plain["checksum"] == grouped["checksum"]
    assert plain["budget_bytes"] == grouped["budget_bytes"]
    assert grouped["bytes_read"] < plain["bytes_read"] / 2


def test_a_master_too_large_for_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = {"rows": 5_000, "stream": "narrow", "batch_rows": 500, "columns": "three", "memory": "200%"}
    cell, data = Cell("core", "whole", {**params, "warmup": 1, "batches": 2}), BenchData(tmp_path / "data", 5_000)
    assert run(cell, data)["matched"] == 1_000
    monkeypatch.setattr("semistream_lab.arms_core.available_bytes", lambda: 100_000)
    with pytest.raises(BenchmarkError, match=r"takes about .* of memory, and 100.0 kB are free"):
        run(cell, data)


@pytest.mark.parametrize("arm", ["sweep", "sweep_groups", "duckdb_table"])
def test_one_text_column(tmp_path: Path, arm: str) -> None:
    params = {"rows": 5_000, "stream": "narrow", "batch_rows": 500, "columns": "text", "memory": "40%"}
    params |= {"warmup": 1, "batches": 2, "threads": 1}
    found = run(Cell("core", arm, params), BenchData(tmp_path / "data", 5_000))
    assert found["rows"] == found["matched"] == 1_000


@pytest.mark.parametrize("arm", ["sweep", "duckdb_table"])
def test_a_cold_start_in_this_process(tmp_path: Path, arm: str) -> None:
    pytest.importorskip("duckdb")
    params = {"rows": 5_000, "stream": "narrow", "batch_rows": 500, "columns": "narrow", "skew": 0.0}
    params |= {"warmup": 0, "batches": 6, "memory": "20%", "threads": 1, "cold": True}
    found = run(Cell("core", arm, params), BenchData(tmp_path / "data", 5_000))
    assert [point[0] for point in found["curve"]] == [500, 1000, 1500, 2000, 2500]
    assert found["rows"] == found["matched"] == 3_000
    assert set(found["checksum"]) == {"6"}
    assert found["rss_growth_bytes"] is None or found["rss_growth_bytes"] >= 0
