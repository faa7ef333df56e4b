"""The file of results: broken runs go on, errors are tried again, and arms that differ are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from semistream_lab.cells import Cell
from semistream_lab.errors import BenchmarkError
from semistream_lab.results import Results, check_agreement, disagreements, grouped
from semistream_lab.suites import missing
from tests.lab.samples import core_cell, result, spark_cell, written


def test_a_cell_is_the_same_whatever_the_order() -> None:
    assert Cell("core", "sweep", {"a": 1, "b": 2}).key == Cell("core", "sweep", {"b": 2, "a": 1}).key
    assert Cell("core", "sweep", {"a": 1}, 1).key != Cell("core", "sweep", {"a": 1}, 2).key


def test_done_cells_are_not_repeated(tmp_path: Path) -> None:
    cells = [core_cell("sweep", repetition) for repetition in range(3)]
    results = written(tmp_path, [(cells[0], result(1e6)), (cells[1], {"error": "no memory"})])
    assert missing(cells, results) == cells[1:]
    results = written(tmp_path, [(cells[1], result(1e6))])
    assert missing(cells, results) == cells[2:]
    assert results.failed == []


def test_a_line_cut_short_is_passed_over(tmp_path: Path) -> None:
    cells = [core_cell("sweep", repetition) for repetition in range(3)]
    written(tmp_path, [(cells[0], result(1e6)), (cells[1], result(2e6))])
    path = tmp_path / "results.jsonl"
    path.write_text(path.read_text()[:-40])
    assert missing(cells, Results.load(tmp_path)) == cells[1:]
    assert missing(cells, written(tmp_path, [(cells[1], result(2e6))])) == cells[2:]
    path.write_text("{nonsense}\n")
    with pytest.raises(BenchmarkError, match="line 1"):
        Results.load(tmp_path)


def test_the_former_name_of_a_join(tmp_path: Path) -> None:
    results = written(tmp_path, [(core_cell("reference"), result(1e6))])
    assert missing([core_cell("whole")], Results.load(tmp_path)) == []
    assert [group.arm for group in grouped(Results.load(tmp_path).done)] == ["whole"]
    assert len(results.lines) == 1


def test_different_rows_are_found(tmp_path: Path) -> None:
    same = [
        (spark_cell("plain"), result(1e5)),
        (spark_cell("bucketed"), result(1e5)),
        (spark_cell("source"), result(1, "0:0")),
    ]
    results = written(tmp_path, same)
    check_agreement(results.done)
    elsewhere = written(tmp_path, [(spark_cell("plain", batch_rows=2_000_000), result(1e5, "1:bb"))])
    assert disagreements(elsewhere.done) == []
    results = written(tmp_path, [(spark_cell("semistream"), result(1e6, "1:bb"))])
    with pytest.raises(BenchmarkError, match=r"bucketed, plain: 1:aa; semistream: 1:bb"):
        check_agreement(results.done)


def test_medians(tmp_path: Path) -> None:
    results = written(
        tmp_path, [(core_cell("sweep", number), result(rate)) for number, rate in enumerate((1e6, 9e6, 2e6))]
    )
    (group,) = grouped(results.done)
    assert (group.rate, group.spread("rows_per_second")) == (2e6, (1e6, 9e6))
    assert group.median("hit_ratio") is None
