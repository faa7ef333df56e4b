"""The planner: memory for a rate and the reverse, the skew of a sample, and its command."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semistream.commands import main as cli
from semistream.errors import ArgumentError, MemoryBudgetError
from semistream.joins.contract import Profile
from semistream.lookup.bind import LookupPlan
from semistream.planner.capacity import expected, least_memory, skew_of, stream_schema
from semistream.stores import MasterStore
from semistream_lab.workloads.zipf import ZipfWorkload
from tests.planner.conftest import ROWS


def test_least_memory_is_the_reverse_of_rate(store: MasterStore, question: LookupPlan) -> None:
    sizes = []
    for rate in (200_000, 500_000, 1_000_000):
        found = least_memory(store, question, rate, Profile())
        assert found.rows_per_second >= rate
        again = expected(store, question, found.memory_bytes, Profile())
        assert again.rows_per_second == found.rows_per_second
        sizes.append(found.memory_bytes)
    assert sizes == sorted(sizes)


def test_a_rate_beyond_a_core(store: MasterStore, question: LookupPlan) -> None:
    with pytest.raises(MemoryBudgetError, match=r"more than a core reaches .* at least \d+ cores"):
        least_memory(store, question, 1e9, Profile())
    with pytest.raises(ArgumentError, match="rate=0 must be more than 0"):
        least_memory(store, question, 0, Profile())


def test_enough_memory_holds_the_master(store: MasterStore, question: LookupPlan) -> None:
    assert expected(store, question, 10 * store.bytes, Profile()).join.name == "whole"
    assert expected(store, question, store.bytes // 10, Profile()).join.name == "sweep"


@pytest.mark.parametrize("skew", [0.0, 0.5, 0.8, 1.0, 1.2])
def test_skew_of_a_sample(skew: float, store: MasterStore) -> None:
    keys = ZipfWorkload(ROWS, skew=skew).stream(0, 50_000).column("key")
    codes, _ = store.codec.encode([keys])
    assert skew_of(codes, ROWS) == pytest.approx(skew, abs=0.06)


def test_an_empty_sample() -> None:
    with pytest.raises(ArgumentError, match="the sample is empty"):
        skew_of(np.empty(0, np.uint64), 10)


def test_stream_schema(store: MasterStore) -> None:
    schema = stream_schema(store, 20)
    assert schema.names[0] == "key"
    assert sum(field.type.bit_width for field in schema) == 8 * 20


# -- commands ----------------------------------------------------------------------------------------------------------


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["semistream", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return int(ended.value.code or 0), said.out + said.err


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    load = ZipfWorkload(ROWS, skew=0.8)
    pq.write_table(pa.Table.from_batches([load.stream(0, 20_000)]), tmp_path / "sample.parquet")
    return tmp_path / "sample.parquet"


def test_plan(
    store: MasterStore, sample: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = call(monkeypatch, capsys, "plan", "--master", store.path, "--rate", 200_000)
    assert code == 0
    for word in ("memory", "of the master", "algorithm", "sweep", "rows/s per core", "Zipf exponent 1.00", "calibrate"):
        assert word in said
    code, said = call(monkeypatch, capsys, "plan", "--master", store.path, "--memory", "10%", "--sample", sample)
    assert code == 0
    assert "Zipf exponent 0.8" in said or "Zipf exponent 0.7" in said


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((), "give either --rate, to learn the least memory, or --memory"),
        (("--rate", 1, "--memory", "1MB"), "give either --rate"),
        (("--rate", 1e6, "--skew", -1), "--skew -1 must be 0 or more"),
        (("--rate", 1e6, "--on", "a,b"), "--on names 2 columns, the key of"),
        (("--rate", 1e6, "--columns", "nothing"), "the master has no column 'nothing'"),
        (("--memory", "12 bananas"), "12 bananas"),
        (("--rate", 1e6, "--sample", "missing.parquet"), "source missing.parquet does not exist"),
    ],
)
def test_plan_refuses(
    arguments: tuple[object, ...],
    message: str,
    store: MasterStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, said = call(monkeypatch, capsys, "plan", "--master", store.path, *arguments)
    assert code == 2
    assert message in said


@pytest.mark.long
def test_tune(
    store: MasterStore,
    sample: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, said = call(monkeypatch, capsys, "tune", "mesh", "--master", store.path, "--rate", 50_000)
    assert code == 0
    assert "mesh reaches 50,000 rows/s per core with" in said
    picture = tmp_path / "surface.svg"
    code, said = call(monkeypatch, capsys, "tune", "tuned_xhybrid", "--master", store.path, "--plot", picture)
    assert code == 0
    assert "the best of" in said
    assert picture.read_text(encoding="utf-8").startswith("<svg")
    code, said = call(
        monkeypatch,
        capsys,
        "tune",
        "sscj",
        "--master",
        store.path,
        "--sample",
        sample,
        "--threshold",
        "--seconds",
        0.01,
    )
    assert code == 0
    assert "threshold None" in said
    for arguments, message in (
        (("hybrid",), "JOIN 'hybrid' has nothing to tune; choose one of 'mesh'"),
        (("sscj", "--rate", 5), "--rate is for mesh"),
        (("sscj", "--measure"), "a measurement needs a stream; give --sample"),
        (("mesh", "--plot", picture), "only tuned_xhybrid has"),
    ):
        code, said = call(monkeypatch, capsys, "tune", *arguments, "--master", store.path)
        assert (code, message in said) == (2, True), said
