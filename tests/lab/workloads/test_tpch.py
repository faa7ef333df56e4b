"""TPC-H: the benchmark's own rows, made once, part by part, whole or not at all."""

from __future__ import annotations

import threading
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from semistream.errors import ArgumentError
from semistream_lab.errors import GeneratorError
from semistream_lab.workloads import tpch_tables
from semistream_lab.workloads.tpch import TpchWorkload
from semistream_lab.workloads.tpch_tables import Table, make_table


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tpch")


def test_parts_and_line_items(place: Path) -> None:
    """The rules of the benchmark: four suppliers a part, every item's part there."""
    load = TpchWorkload(place, 0.01)
    assert (load.master_rows, load.stream_rows) == (8_000, 60_175)
    assert load.on == {"l_partkey": "ps_partkey"}
    master = pa.Table.from_batches(load.master())
    counts = pc.value_counts(master["ps_partkey"].combine_chunks()).field("counts").to_numpy()
    assert (len(counts), set(counts.tolist())) == (2000, {4})
    items = load.stream(0, 60_175)
    assert pc.all(pc.is_in(items["l_partkey"], master["ps_partkey"].combine_chunks())).as_py()
    first = items.to_pylist()[0]
    assert (first["l_orderkey"], first["l_partkey"], first["l_suppkey"]) == (1, 1552, 93)
    assert (first["l_quantity"], first["l_shipmode"]) == (Decimal("17.00"), "TRUCK")


def test_customers_and_orders(place: Path) -> None:
    load = TpchWorkload(place, 0.01, "customer")
    assert (load.master_rows, load.stream_rows) == (1_500, 15_000)
    assert (load.on, load.key) == ({"o_custkey": "c_custkey"}, ["c_custkey"])
    master = pa.Table.from_batches(load.master())
    assert pc.count_distinct(master["c_custkey"]).as_py() == 1_500
    ordering = np.unique(load.stream(0, 15_000)["o_custkey"].to_numpy())
    assert len(ordering) <= 1_000  # a third never orders
    assert pa.string() in load.stream_schema.types  # and no views, from which Arrow takes no rows


def test_it_is_made_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = TpchWorkload(place, 0.01)
    load.prepare()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(tpch_tables, "PROGRAM", "no-such-program")
    assert TpchWorkload(place, 0.01).stream(5, 5).equals(load.stream(5, 5))
    with pytest.raises(GeneratorError, match=r"pip install 'semistream-lab\[tpch\]'"):
        TpchWorkload(place, 0.02).prepare()


def test_parts_are_one_table(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Table(make_table(place / "sf0.01", "orders", 0.01))
    monkeypatch.setattr(tpch_tables, "_PART_ROWS", 8_000)
    shown: list[tuple[str, int, int | None]] = []
    parts = Table(make_table(tmp_path, "orders", 0.01, lambda *said: shown.append(said)))
    assert len(list((tmp_path / "orders").iterdir())) == 2
    assert shown == [("TPC-H orders", done, 2) for done in range(3)]
    assert parts.read(0, 15_000).equals(whole.read(0, 15_000))
    assert parts.read(3_700, 8_000).equals(whole.read(3_700, 8_000))


def test_row_groups_are_found(tmp_path: Path) -> None:
    table = pa.table({"n": range(1000)})
    for part in range(3):
        pq.write_table(
            table.slice(part * 300, 300 if part < 2 else 400), tmp_path / f"{part}.parquet", row_group_size=70
        )
    opened = Table(tmp_path)
    for start, count in ((0, 1000), (69, 2), (299, 2), (650, 350), (1000, 0), (70, 70)):
        assert opened.read(start, count)["n"].to_pylist() == list(range(start, start + count))


def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpch_tables, "_PART_ROWS", 8_000)
    made: list[int] = []
    real = tpch_tables._make_part

    def dying(program: str, file: Path, name: str, scale_factor: float, part: int, parts: int) -> None:
        made.append(part)
        if made == [0, 1]:
            (file.parent / "made-half").mkdir()
            raise KeyboardInterrupt
        real(program, file, name, scale_factor, part, parts)

    monkeypatch.setattr(tpch_tables, "_make_part", dying)
    with pytest.raises(KeyboardInterrupt):
        make_table(tmp_path, "orders", 0.01)
    assert not (tmp_path / "orders").exists()
    target = make_table(tmp_path, "orders", 0.01)
    assert made == [0, 1, 1]
    assert len(list(target.iterdir())) == 2
    assert Table(target).rows == 15_000


def test_two_at_once(tmp_path: Path) -> None:
    """The second waits, and takes what the first made."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            TpchWorkload(tmp_path, 0.001, "customer").prepare()
        except Exception as error:  # noqa: BLE001 - shown by the test
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert TpchWorkload(tmp_path, 0.001, "customer").master_rows == 150


def test_a_generator_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "failing"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'no space left' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(tpch_tables, "PROGRAM", "failing")
    monkeypatch.setenv("PATH", f"{program.parent}:/bin:/usr/bin")
    with pytest.raises(GeneratorError, match="part 1 of 1 of customer: no space left"):
        make_table(tmp_path / "data", "customer", 0.01)
    assert not (tmp_path / "data" / "customer").exists()


@pytest.mark.parametrize("scale_factor", [0, -1, float("nan"), float("inf")])
def test_bad_scale_factors(scale_factor: float, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="scale_factor="):
        TpchWorkload(tmp_path, scale_factor)


def test_an_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="holds no Parquet file"):
        Table(tmp_path)
