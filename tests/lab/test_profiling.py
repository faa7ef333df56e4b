"""Where a row's time goes: every name that is timed is there, its phases add up, and all is as before afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semistream_lab import profile_bench, profiling
from semistream_lab.cells import Cell
from semistream_lab.data import BenchData

ROWS = 50_000


@pytest.fixture(scope="module", params=["sweep", "sweep_groups"])
def result(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Any]:
    params = {"rows": ROWS, "stream": "narrow", "batch_rows": 10_000, "columns": "three", "memory": "20%"}
    params |= {"warmup": 10, "batches": 5, "threads": 1, "direct": False}
    place: Path = tmp_path_factory.mktemp("profile")
    return profiling.run(Cell("profile", request.param, params), BenchData(place, ROWS))


@pytest.mark.parametrize("one", profiling.NAMES, ids=lambda one: one.where)
def test_the_names_are_there(one: profiling.Name) -> None:
    """Whoever renames one renames it in `profiling.NAMES` too, else its time would go to the rest."""
    assert callable(profiling.find(one.where)[2])


def test_phases(result: dict[str, Any]) -> None:
    phases, counts = result["phases"], result["counts"]
    assert phases["encode"]["rows"] == phases["probe"]["rows"] == result["rows"] == 50_000
    assert counts["hits"] + counts["misses"] == result["rows"]
    assert phases["read"]["rows"] == phases["check pages"]["rows"] == counts["pages read"] > 0
    assert phases["search"]["rows"] == phases["project"]["rows"] <= counts["misses"]
    assert 0 < counts["admissions"] + counts["rejections"] <= phases["admission"]["rows"]
    for name in ("encode", "probe", "gather", "take stream rows", "read", "admission"):
        assert phases[name]["ns"] > 0, name
    assert sum(phase["ns"] for phase in phases.values()) <= result["cpu_ns"]


def test_limits(result: dict[str, Any]) -> None:
    limits = result["limits"]
    assert limits["memory_bytes"] >= 1 << 20
    assert all(value > 0 for name, value in limits.items() if name != "read_ns_per_byte")


def test_tables(result: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    header, lines = profile_bench.phase_table(result)
    assert all(len(line) == len(header) for line in lines)
    assert lines[-1][0] == "all"
    profile_bench.show(result)
    said = capsys.readouterr().out
    assert "per million rows of the stream, 50,000 rows" in said
    assert "preadv2 of 4 KiB" in said


def test_everything_is_put_back(result: dict[str, Any]) -> None:
    del result
    before = [profiling.find(one.where)[2] for one in profiling.NAMES]
    with profiling.Recorder().recording():
        assert [profiling.find(one.where)[2] for one in profiling.NAMES] != before
    assert [profiling.find(one.where)[2] for one in profiling.NAMES] == before
