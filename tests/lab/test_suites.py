"""The grid, its order, and what happens when a cell breaks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semistream.errors import ArgumentError
from semistream_lab import suites, targets
from semistream_lab.arms_spark import stream_plan
from semistream_lab.cells import Cell
from semistream_lab.errors import BenchmarkError
from semistream_lab.grid_joins import AXES, Grid
from semistream_lab.results import Results
from semistream_lab.settings import SPARK_ARMS, Settings
from tests.lab.samples import result


def settings(tmp_path: Path, suite: str, **more: Any) -> Settings:
    return Settings(suite, rows=1000, out=tmp_path / "out", data=tmp_path / "data", **more)


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semistream_lab.settings.join_takes", lambda _: False)


@pytest.mark.usefixtures("one_thread")
def test_core_grid(tmp_path: Path) -> None:
    cells = suites.cells(settings(tmp_path, "core", memory=("10%", "1%"), repetitions=1))
    count = Counter(cell.arm for cell in cells)
    # two batch sizes and budgets; sweep also with O_DIRECT at the first budget, DuckDB with one thread and two
    assert count == {
        "sweep": 6,
        "sweep_groups": 4,
        "sweep_each": 4,
        "inl": 2,
        "whole": 2,
        "duckdb_parquet": 8,
        "duckdb_table": 8,
        "build": 1,
    }
    assert len({cell.key for cell in cells}) == len(cells)


def test_threads_where_the_join_takes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {"arms": ("sweep", "duckdb_table"), "batch_rows": (10,), "repetitions": 1}

    def threads() -> list[tuple[str, int]]:
        cells = suites.cells(settings(tmp_path, "core", **asked))
        return sorted((cell.arm, cell.params["threads"]) for cell in cells if not cell.params.get("direct"))

    for takes in (False, True):
        monkeypatch.setattr("semistream_lab.settings.join_takes", lambda _, takes=takes: takes)
        both = [("sweep", 2)] if takes else []
        assert threads() == [("duckdb_table", 1), ("duckdb_table", 2), ("sweep", 1), *both]
    monkeypatch.setattr("semistream_lab.settings.join_takes", lambda _: False)
    with pytest.raises(BenchmarkError, match="takes no threads"):
        settings(tmp_path, "core", arms=("sweep",), threads=(2,))


@pytest.mark.usefixtures("one_thread")
def test_places_of_a_comparison(tmp_path: Path) -> None:
    """Cells that are compared follow each other: only arm and threads differ."""
    asked = settings(
        tmp_path,
        "core",
        arms=("sweep", "duckdb_table"),
        columns=("narrow", "all"),
        memory=("10%", "1%"),
        skews=(1.0, 0.0),
        more_rows=(2000,),
        repetitions=1,
        cold=True,
    )
    cells = [cell for cell in suites.cells(asked) if not cell.params.get("direct")]
    names = ("rows", "batch_rows", "columns", "memory", "skew", "cold")
    order = [tuple(cell.params.get(name) for name in names) for cell in cells]
    runs = [place for number, place in enumerate(order) if number == 0 or order[number - 1] != place]
    assert len(runs) == len(set(runs)) == 2**6
    assert len({cell.key for cell in cells}) == len(cells) == 3 * 2**6
    assert {cell.params["warmup"] for cell in cells if cell.params.get("cold")} == {0}


def test_the_former_name_of_a_join(tmp_path: Path) -> None:
    assert settings(tmp_path, "core", arms=("sweep", "reference")).arms == ("sweep", "whole")


def test_spark_grid(tmp_path: Path) -> None:
    cells = suites.cells(settings(tmp_path, "spark", repetitions=2))
    assert len(cells) == 2 * 2 * 2 * len(SPARK_ARMS)
    for cell in cells:
        native = cell.arm in targets.NATIVE
        assert (cell.params["warmup"] == 2) == native
        assert cell.params["large_rows"] == 2_000_000
    assert len({cell.place for cell in cells}) == 4  # arms of a place are compared, whatever came before


@pytest.mark.parametrize("rows, most", [(10_000_000, 60), (1_000, 30)])
def test_small_batches_alone_do_not_fill_a_cache_one_by_one(tmp_path: Path, rows: int, most: int) -> None:
    asked = replace(settings(tmp_path, "spark", batch_rows=(200,)), rows=rows)
    sizes = [stream_plan(cell.params).sizes for cell in suites.cells(asked)]
    assert max(map(len, sizes)) < most  # Spark keeps a hundred reports of progress, unless it is told otherwise
    assert max(map(sum, sizes)) >= 2 * rows


def test_arms_take_turns(tmp_path: Path) -> None:
    cells = suites.cells(settings(tmp_path, "spark", streams=("narrow",), batch_rows=(10,), repetitions=3))
    first = [next(cell.arm for cell in cells if cell.repetition == number) for number in range(3)]
    assert first == ["source", "passthrough", "plain"]
    for repetition in range(3):
        assert {cell.arm for cell in cells if cell.repetition == repetition} == set(SPARK_ARMS)


@pytest.mark.parametrize(
    "more",
    [{"arms": ("nope",)}, {"streams": ("thin",)}, {"columns": "two"}, {"repetitions": 0}, {"batch_rows": (1,)}],
    ids=str,
)
def test_bad_settings(tmp_path: Path, more: dict[str, Any]) -> None:
    with pytest.raises((ArgumentError, BenchmarkError)):
        settings(tmp_path, "spark", **more)


def run(given: Settings, monkeypatch: pytest.MonkeyPatch, answers: dict[str, dict[str, Any] | str]) -> Results:
    def stand_in(cell: Cell, _: Settings) -> dict[str, Any]:
        answer = answers[cell.arm]
        if isinstance(answer, str):
            raise BenchmarkError(answer)
        return answer

    monkeypatch.setattr(suites, "run_cell", stand_in)
    results = Results.load(given.out)
    suites.run(given, suites.cells(given), results, lambda cell: None, lambda cell, result: None)
    return results


def test_a_broken_cell_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = settings(tmp_path, "spark", arms=("plain", "bucketed"), streams=("wide",), batch_rows=(10,), repetitions=1)
    results = run(given, monkeypatch, {"plain": "out of memory", "bucketed": result(5)})
    assert [line["arm"] for line in results.failed] == ["plain"]
    assert [line["arm"] for line in results.done] == ["bucketed"]
    assert all(line["environment"] for line in results.done)
    assert given.command in (given.out / "run.json").read_text()


def test_arms_that_differ_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = settings(tmp_path, "spark", arms=("plain", "bucketed"), streams=("wide",), batch_rows=(10,), repetitions=1)
    with pytest.raises(BenchmarkError, match="do not agree"):
        run(given, monkeypatch, {"plain": result(5, "1:a"), "bucketed": result(5, "1:b")})


def test_a_process_that_fails_is_explained(tmp_path: Path) -> None:
    given = settings(tmp_path, "core")
    given.out.mkdir()
    with pytest.raises(BenchmarkError, match="'nope' is not known"):
        suites.run_cell(Cell("core", "nope", {"rows": 10, "warmup": 1, "batches": 1, "batch_rows": 5}), given)
    assert "Traceback" in (given.out / "failed-core-nope.log").read_text()


def test_joins_grid_moves_one_axis_at_a_time(tmp_path: Path) -> None:
    grid = Grid((1_000, 2_000, 4_000), ("10%", "1%"), (1.0, 0.0), ("shuffled", "sorted"), centre=2_000)
    asked = settings(tmp_path, "joins", grid=grid, repetitions=1, arms=("mesh", "sweep"))
    cells = suites.cells(asked)
    assert len(cells) == 2 * (1 + 2 + 1 + 1 + 1)
    points = [tuple(cell.params[axis] for axis in AXES) for cell in cells[::2]]
    assert points[0] == (2_000, "10%", 1.0, "shuffled")
    assert all(sum(a != b for a, b in zip(point, points[0], strict=True)) == 1 for point in points[1:])
    crossed = replace(asked, grid=replace(grid, crossed=True))
    assert len(suites.cells(crossed)) == 2 * 3 * 2 * 2 * 2
    assert "--skews 1,0" in asked.command


@pytest.mark.parametrize(
    "wrong", [{"layouts": ("heap",)}, {"skews": (-1.0,)}, {"sizes": (10,)}, {"memory": ()}], ids=str
)
def test_wrong_grids(wrong: dict[str, Any]) -> None:
    with pytest.raises((ArgumentError, BenchmarkError)):
        Grid(**wrong)
