"""Peers give the rows that semistream gives, and one that is not installed is named with what to do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console
from typer.testing import CliRunner

from semistream.commands.main import app
from semistream_lab.cells import COLUMNS, Cell
from semistream_lab.data import BenchData
from semistream_lab.errors import BenchmarkError
from semistream_lab.peers import PEERS, flink, peer, postgres
from semistream_lab.peers.codec import RowCodec, key_bytes
from semistream_lab.peers.contract import added_schema
from semistream_lab.peers_bench import _installed
from semistream_lab.report import make_page
from tests.lab.samples import ENVIRONMENT, result, written

ROWS = 3_000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> BenchData:
    return BenchData(tmp_path_factory.mktemp("peers"), ROWS)


def cell(name: str, columns: str) -> Cell:
    params: dict[str, Any] = {"rows": ROWS, "stream": "narrow", "batch_rows": 500, "columns": columns, "memory": "30%"}
    return Cell("peers", name, {**params, "warmup": 2, "batches": 2, "threads": 1})


@pytest.mark.parametrize("columns", ["narrow", "all"])
@pytest.mark.parametrize("name", ["duckdb", "sqlite", "lmdb", "rocksdb"])
def test_the_same_rows(data: BenchData, name: str, columns: str) -> None:
    if said := peer(name).missing():
        pytest.skip(said)
    ours, other = (peer(one).run(cell(one, columns), data) for one in ("semistream", name))
    assert ours["checksum"] == other["checksum"]
    assert set(other["checksum"]) == {"0", "4"}
    assert other["matched"] == other["rows"] == 1_000


@pytest.mark.long
@pytest.mark.parametrize("columns", ["narrow", "all"])
def test_flink_gives_the_same_rows(data: BenchData, columns: str) -> None:
    if said := flink.missing():
        pytest.skip(said)
    ours, other = (peer(one).run(cell(one, columns), data) for one in ("semistream", "flink"))
    assert ours["checksum"] == other["checksum"]


def test_flink_s_job(data: BenchData, tmp_path: Path) -> None:
    stream = data.load.stream(0, 1).schema
    text = flink.script(tmp_path, stream, added_schema(data, "narrow"), postgres.Server(1, "pw", 2), 300, 25, [(0, 50)])
    assert "'lookup.cache' = 'PARTIAL', 'lookup.partial-cache.max-rows' = '300'" in text
    assert "MOD(`at`, 25) = 0 OR `at` BETWEEN 0 AND 49" in text
    assert "FOR SYSTEM_TIME AS OF s.proc" in text


def test_flink_s_rate_follows_from_the_times_of_some_rows() -> None:
    seen = [f"2026-11-18 17:49:0{second}.5Z" for second in range(5)]
    kept = pa.table({"at": [0, 100, 200, 300, 400], "seen": seen})
    assert flink.rate_of(kept, 100, 300) == 100
    with pytest.raises(BenchmarkError, match="more --batches"):
        flink.rate_of(kept, 100, 150)


@pytest.mark.parametrize("columns", COLUMNS)
def test_rows_as_bytes(data: BenchData, columns: str) -> None:
    codec, batch = RowCodec(added_schema(data, columns)), data.load.master_slice(5, 40).select(COLUMNS[columns])
    assert [column.to_pylist() for column in codec.decode(codec.encode(batch.columns))] == [
        column.to_pylist() for column in batch.columns
    ]


def test_keys_sort_as_numbers_do() -> None:
    keys = key_bytes(np.array([0, 1, 255, 256, 1 << 40]))
    assert keys == sorted(keys)
    assert {len(key) for key in keys} == {8}


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "lmdb", None)
    assert _installed(("semistream", "lmdb"), Console(stderr=True, width=200)) == ("semistream",)
    assert "lmdb: not installed: pip install 'semistream-lab[peers]'" in capsys.readouterr().err
    with pytest.raises(BenchmarkError, match="none of lmdb is installed"):
        _installed(("lmdb",), Console(stderr=True))


def test_flink_is_fetched_by_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "python -m semistream_lab.peers.flink_fetch" in str(flink.missing())


def test_help_says_what_to_install() -> None:
    said = CliRunner().invoke(app, ["bench", "peers", "--help"]).output
    assert "[peers]" in said


def test_they_stand_on_the_page(tmp_path: Path) -> None:
    results = written(tmp_path, [(cell(name, "narrow"), result(1e6, rss_growth_bytes=10**7)) for name in PEERS])
    page = make_page(results, {"environments": {"abc": ENVIRONMENT}, "commands": []})
    assert "Instead of semistream, batches of 500 rows, two columns" in page
    assert all(f"<li><b>{name}</b>" in page for name in PEERS)
