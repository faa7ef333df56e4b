"""Cells of the papers' figures really run: joins, searches, models, arrivals, shedding; and a suite end to end."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semistream.errors import ArgumentError
from semistream_lab.cells import Cell
from semistream_lab.errors import BenchmarkError
from semistream_lab.papers import SUITES, arms, workload
from semistream_lab.papers.models import tuned_tuples_per_read
from semistream_lab.papers.runs import LabRun
from semistream_lab.papers.workload import Endless, LabData, ManyToMany
from semistream_lab.results import Group
from semistream_lab.workloads.zipf import ZipfWorkload
from tests.commands.test_main import Run, run  # noqa: F401 - a fixture


def cell(arm: str, **more: Any) -> Cell:
    scale = SUITES["sscj"].scale("quick", rows=4_000)
    # So many rows, however long they take: what is counted must not depend on the machine's mood.
    how = {"warm_rows": 3_000, "measured_rows": 6_000, "warm_seconds": math.inf, "seconds": math.inf}
    how |= {"direct": False, "stream_batch": 200}
    return Cell("lab", arm, {**scale.cell(memory="40%", **how), **more})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


def test_a_join_is_measured_in_segments_beside_its_prediction(data: Path) -> None:
    result = arms.run(cell("sscj"), data)
    assert result["tuples_per_page"] > 1
    assert result["predicted_rows_per_second"] > 0
    assert 0 < result["processing_seconds"] <= result["wait_seconds"]
    segments = result["segments"]["tuples_per_page"]
    assert len(segments) > 1
    low, high = Group("lab", "sscj", {}, [result]).interval("tuples_per_page") or (0, 0)
    assert low < sum(segments) / len(segments) < high


def test_the_disk_buffer_is_the_one_asked_for(data: Path) -> None:
    small, large = (arms.run(cell("mesh", buffer_share=share), data) for share in (0.01, 0.4))
    assert small["tuples_per_page"] > large["tuples_per_page"]  # a larger buffer takes the window's memory
    assert small["predicted_rows_per_second"] != large["predicted_rows_per_second"]


def test_the_least_memory_is_found(data: Path) -> None:
    result = arms.run(cell("hybrid", target=3), data)
    tried = sorted(result["tried"])
    for (small, few), (large, many) in itertools.combinations(tried, 2):
        assert large < 2 * small or many > few  # much more memory, more tuples a page; near sizes are within the noise
    assert math.isclose(result["tried"][-1][1], 3, rel_tol=0.25)
    assert math.isclose(result["memory_bytes"], result["tried"][-1][0], rel_tol=0.5)


def test_a_service_out_of_reach_has_no_memory(data: Path) -> None:
    assert arms.run(cell("mesh", target=10_000), data)["memory_bytes"] is None


def test_many_to_many(data: Path) -> None:
    params = {"workload": "many", "domain": 500, "master_skew": 0.5, "skew": 0.5}
    results = [arms.run(cell(arm, **params), data) for arm in ("mesh", "inl", "hybrid")]
    assert len({result["checksum"]["last"] for result in results}) == 1
    load = ManyToMany(4_000, 500, 0.5, 1.0)
    keys = [key for batch in load.master() for key in batch.column("key").to_pylist()]
    assert len(keys) == 4_000
    assert len(set(keys)) < 500
    assert max(map(keys.count, set(keys))) > 100


def test_tuned_model_stands_beside_what_was_served(data: Path) -> None:
    result = arms.run(cell("tuned_xhybrid", layout="sorted", settings={"pinned": 0.3, "swappable": 0.05}), data)
    assert result["pinned_pages"] > result["swappable_pages"] > 0
    assert 0.2 < result["model_tuples_per_page"] / result["tuples_per_page"] < 5
    assert tuned_tuples_per_read(1000, 0, 10, 1000) == pytest.approx(10)  # nothing pinned: h_S a round of R


def test_waiting_time_has_an_end_only_where_the_join_keeps_up(data: Path) -> None:
    slow = arms.run(cell("sscj", arrival=20), data)
    assert slow["idle_share"] > 0.01
    half_a_batch = 200 / 20 / 2  # a sum of floats, that a fast machine adds nothing to
    assert slow["waiting_seconds"] > half_a_batch * 0.999
    fast = arms.run(cell("sscj", arrival=10**9), data)
    assert "waiting_seconds" not in fast


def test_shedding() -> None:
    def kept(arm: str, speed: float) -> float:
        result = arms.run(Cell("lab", arm, {"rows": 50_000, "skew": 0.5, "speed": speed}), Path())
        return float(result["results_kept"])

    assert kept("topw_05", 2.0) > 0.8
    assert kept("topw_01", 2.0) < kept("topw_05", 2.0) < kept("topw_1", 2.0)
    assert kept("topw_05", 1.25) > kept("topw_05", 2.0)
    assert kept("keep_w", 2.0) == pytest.approx(0.5, abs=0.05)


@pytest.mark.long
def test_a_suite_end_to_end(run: Run, tmp_path: Path) -> None:  # noqa: F811
    asked = ("lab", "run", "moij", "--figures", "7f", "--rows", "20000", "--out", tmp_path / "out")
    code, out, _ = run(*asked, "--data", tmp_path / "data")
    assert code == 0
    page = Path(out.strip()).read_text(encoding="utf-8")
    assert "Cost models: predicted and measured" in page
    assert page.count("<svg") >= 1
    assert sorted(path.suffix for path in (tmp_path / "out" / "figures").iterdir()) == [".png"] * page.count("<svg")
    lines = (tmp_path / "out" / "results.jsonl").read_text(encoding="utf-8").splitlines()
    assert {json.loads(line)["arm"] for line in lines} == {"moij", "sscj"}
    noted = json.loads((tmp_path / "out" / "run.json").read_text(encoding="utf-8"))
    assert noted["commands"] == ["semistream lab run moij --quick --figures 7f --rows 20000"]
    assert run(*asked, "--data", tmp_path / "data")[0] == 0  # all is there: nothing is run again
    assert (tmp_path / "out" / "results.jsonl").read_text(encoding="utf-8").splitlines() == lines
    code, out, _ = run("lab", "report", "--out", tmp_path / "out")
    assert (code, Path(out.strip()).name) == (0, "lab.html")


def test_wrong_parameters_are_named(run: Run, tmp_path: Path) -> None:  # noqa: F811
    for asked, said in (
        (("lab", "run", "nope"), "'meshjoin'"),
        (("lab", "run", "moij", "--figures", "99"), "'7a'"),
        (("lab", "run", "moij", "--figures", "7b", "--arms", "mesh"), "'moij', 'sscj'"),
        (("lab", "run", "moij", "--repetitions", "0"), "--repetitions 0 must be at least 1"),
        (("lab", "run", "moij", "--rows", "10"), "at least 1000"),
        (("lab", "report", "--out", tmp_path), "no results.jsonl"),
    ):
        code, _, err = run(*asked)
        assert code == 2
        assert said in err


def test_some_joins_of_some_figures(tmp_path: Path) -> None:
    some = LabRun("sweep", tmp_path, tmp_path, figures=("1", "4"), arms=("sweep", "moij"))
    assert {one.arm for one in some.cells} == {"sweep", "moij"}
    assert len(some.cells) == 8  # three budgets and one point past the page cache, two joins each
    assert some.command == "semistream lab run sweep --quick --figures 1,4 --arms sweep,moij"


def test_list_names_every_suite_and_every_stand_in(run: Run) -> None:  # noqa: F811
    code, out, _ = run("lab", "list")
    assert code == 0
    assert all(f"{name}:" in out for name in SUITES)
    if not workload.tpch_there():
        assert "stands in" in out
    for command in ("list", "run", "report"):
        assert f"semistream lab {command}" in run("lab", command, "--help")[1]


def test_data_lie_apart_by_what_they_are(tmp_path: Path) -> None:
    plain = LabData(tmp_path, 4_000, cell("mesh").params)
    many = LabData(tmp_path, 4_000, cell("mesh", workload="many", domain=500, master_skew=0.5).params)
    assert plain.directory.name == "zipf1-shuffled-4000"  # the benchmarks' own
    assert many.directory != plain.directory
    with pytest.raises((ArgumentError, BenchmarkError)):
        LabRun("moij", tmp_path, tmp_path, scale="huge")


class Finite:
    """A workload whose stream ends, as a table does."""

    key, on, stream_rows = ("key",), "key", 1_000

    def master(self) -> Any:
        return ZipfWorkload(100).master()

    def stream(self, start: int, count: int) -> pa.RecordBatch:
        assert 0 <= start <= start + count <= self.stream_rows
        return ZipfWorkload(100).stream(start, count)


def test_a_stream_that_ends_begins_anew() -> None:
    load = Endless(Finite())
    first, again = load.stream(0, 300), load.stream(900, 300)
    assert again.equals(first)  # three batches of 300 fit; the fourth is the first again
    assert load.stream(600, 300).equals(Finite().stream(600, 300))
    assert load.stream(0, 5_000).num_rows == 1_000


def test_a_data_set_or_its_stand_in() -> None:
    scale = SUITES["moij"].scale("quick")
    for params, note in (workload.weather(scale), workload.tpch(scale, "partsupp")):
        assert workload.stands_in(params) == ("stands in" in note)
    assert params["workload"] == ("tpch" if workload.tpch_there() else "zipf")
