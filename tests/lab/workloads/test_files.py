"""Workloads as files: every format read back, the command, and what it says when it cannot."""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
import pytest

from semistream import MasterStore
from semistream.commands import main as cli
from semistream.errors import ArgumentError, SchemaError
from semistream_lab.workloads import make_workload
from semistream_lab.workloads.files import write_workload
from semistream_lab.workloads.json_lines import json_lines
from semistream_lab.workloads.reports import read_reports
from tests.tables import assert_same_rows

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["semistream", "generate", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return call


def files(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


def test_parquet(tmp_path: Path) -> None:
    load = make_workload("zipf", rows=2500, absent=0.1)
    shown: list[tuple[str, int, int | None]] = []
    write_workload(load, tmp_path / "x", 1200, rows_per_file=1000, progress=lambda *said: shown.append(said))
    assert [file.name for file in files(tmp_path / "x" / "master")] == [f"part-{n:05d}.parquet" for n in range(3)]
    assert pq.read_table(tmp_path / "x" / "stream").equals(pa.Table.from_batches([load.stream(0, 1200)]))
    assert pq.read_table(tmp_path / "x" / "master").equals(pa.Table.from_batches(load.master()))
    assert shown[-1] == ("stream", 1200, 1200)
    assert ("master", 2500, 2500) in shown
    said = json.loads((tmp_path / "x" / "workload.json").read_text())
    assert (said["workload"], said["key"], said["on"], said["stream_rows"]) == ("zipf", ["key"], {"key": "key"}, 1200)
    assert make_workload(said["workload"], **said["settings"]) == load


@pytest.mark.parametrize("name", ["zipf", "retail", "weather"])
def test_csv_and_json_hold_the_same_rows(name: str, tmp_path: Path) -> None:
    load = make_workload(name, rows=300)
    for shape in ("csv", "json"):
        write_workload(load, tmp_path / shape, 200, shape, rows_per_file=150)
    for part, schema in (("master", load.master_schema), ("stream", load.stream_schema)):
        read_csv = pyarrow.csv.ConvertOptions(column_types=schema, strings_can_be_null=True)
        csv = [pyarrow.csv.read_csv(file, convert_options=read_csv) for file in files(tmp_path / "csv" / part)]
        # Arrow's reader of JSON takes days for numbers, so they are read as texts first.
        texts = [field.with_type(pa.string()) if pa.types.is_date(field.type) else field for field in schema]
        read_json = pyarrow.json.ParseOptions(explicit_schema=pa.schema(texts))
        lines = [pyarrow.json.read_json(file, parse_options=read_json) for file in files(tmp_path / "json" / part)]
        assert_same_rows(pa.concat_tables(csv), pa.concat_tables(lines).cast(schema))
        made = pa.Table.from_batches(load.master() if part == "master" else [load.stream(0, 200)])
        assert_same_rows(pa.concat_tables(csv), made)


def test_json_of_every_kind() -> None:
    moment = dt.datetime(2020, 2, 3, 4, 5, 6, 7)
    batch = pa.record_batch(
        {
            'a "b"\\': pa.array([1, None, 3]),
            "text": pa.array(['x"\\\n\t', None, "é\x00"]),
            "float": pa.array([1.5, float("nan"), -1e300]),
            "decimal": pa.array([Decimal("1.50"), None, Decimal("-0.01")]),
            "moment": pa.array([moment, None, moment], pa.timestamp("us", "UTC")),
            "local": pa.array([moment, None, moment], pa.timestamp("us")),
            "truth": pa.array([True, None, False]),
            "day": pa.array([moment.date(), None, moment.date()]),
        }
    )
    for piece in (batch, batch.slice(1)):
        read = [json.loads(line) for line in json_lines(piece).decode().splitlines()]
        assert [row['a "b"\\'] for row in read] == piece.column(0).to_pylist()
        assert [row["text"] for row in read] == piece.column(1).to_pylist()
    assert read[-1] == {
        'a "b"\\': 3,
        "text": "é\x00",
        "float": -1e300,
        "decimal": -0.01,
        "moment": "2020-02-03T04:05:06.000007Z",
        "local": "2020-02-03T04:05:06.000007",
        "truth": False,
        "day": "2020-02-03",
    }
    assert read[0]["float"] is None
    assert json_lines(batch.slice(0, 0)) == b""
    with pytest.raises(SchemaError, match="column 'list' of type list"):
        json_lines(pa.record_batch({"list": pa.array([[1]])}))


def test_the_command(run: Run, tmp_path: Path) -> None:
    code, said, shown = run(
        "zipf", "--out", tmp_path / "x", "--rows", 500, "--stream-rows", 300, "--set", "shift_every=50"
    )
    assert (code, "500 master rows, 300 stream rows" in said) == (0, True)
    assert "stream" in shown
    build = next(line for line in said.splitlines() if line.startswith("next: ")).split()[3:]
    assert build == [str(tmp_path / "x" / "master"), str(tmp_path / "x" / "store"), "--key", "key"]
    assert MasterStore.build(build[0], build[1], key="key").rows == 500
    assert json.loads((tmp_path / "x" / "workload.json").read_text())["settings"]["shift_every"] == 50
    code, _, shown = run("zipf", "--out", tmp_path / "x", "--rows", 500)
    assert (code, "is there already" in shown, "--replace" in shown) == (2, True, True)
    code, said, _ = run("zipf", "--out", tmp_path / "x", "--rows", 40, "--stream-rows", 0, "--replace")
    assert (code, "40 master rows, 0 stream rows" in said) == (0, True)


def test_weather_in_its_own_format(run: Run, tmp_path: Path) -> None:
    code, said, _ = run("weather", "--out", tmp_path, "--rows", 300, "--stream-rows", 250, "--format", "reports")
    assert (code, "next:" in said) == (0, False)
    load = make_workload("weather", rows=300)
    rows = pa.Table.from_batches(list(read_reports(tmp_path / "stream" / "part-00000.txt")))
    assert rows.equals(pa.Table.from_batches([load.stream(0, 250)]))


def test_tpch_all_of_it(run: Run, tmp_path: Path) -> None:
    arguments = ["--scale-factor", 0.001, "--master-table", "customer", "--cache", tmp_path / "kept"]
    code, said, shown = run("tpch", "--out", tmp_path / "x", *arguments)
    assert (code, "150 master rows, 1,500 stream rows" in said) == (0, True)
    assert "TPC-H orders" in shown
    code, _, shown = run("tpch", "--out", tmp_path / "y", "--stream-rows", 1501, *arguments)
    assert (code, "has 1,500 rows" in shown) == (2, True)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["zipf", "--format", "xml"], "choose one of 'parquet', 'csv', 'json', 'reports'"),
        (["zipf", "--format", "reports"], "is for the workload weather, not for zipf"),
        (["zip"], "WORKLOAD 'zip' is not known"),
        (["weather", "--skew", 1], "workload weather has no option 'skew'"),
        (["zipf", "--set", "shift_every"], "must be NAME=VALUE"),
        (["zipf", "--stream-rows", -1], "--stream-rows -1"),
        (["zipf", "--rows-per-file", 0], "--rows-per-file 0"),
    ],
)
def test_mistakes_are_one_message(run: Run, arguments: list[object], message: str, tmp_path: Path) -> None:
    code, _, shown = run(*arguments, "--out", tmp_path / "x")
    assert (code, message in shown, "Traceback" in shown) == (2, True, False)
    assert not (tmp_path / "x").exists()


def test_help_has_examples(run: Run) -> None:
    code, said, _ = run("--help")
    assert code == 0
    assert "semistream generate tpch --out tpch --scale-factor 0.1 --master-table customer" in said


def test_a_format_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="file_format='orc'"):
        write_workload(make_workload("zipf", rows=5), tmp_path, 5, "orc")
