"""What a batch reads, told by Spark's own log; and Parquet files whose columns have changed."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semistream.errors import SchemaError, StateError
from semistream.pipeline.ledger import Ledger
from semistream.pipeline.sources import Source, check_drift, files_of, input_of, source

SALES = pa.table({"sale_id": [1, 2], "product": ["p1", "p2"], "amount": [1.5, 2.5]})


class Checkpoint:
    """Files in the form in which Spark writes them."""

    def __init__(self, root: Path) -> None:
        self.root = root / "checkpoint"
        (self.root / "offsets").mkdir(parents=True)

    def batch(self, number: int, files: list[Path], *, time: int = 0, compact: bool = False) -> None:
        lines = ["v1", json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": time}), f'{{"logOffset":{number}}}']
        (self.root / "offsets" / str(number)).write_text("\n".join(lines))
        log = self.root / "sources" / "0"
        log.mkdir(parents=True, exist_ok=True)
        entries = [{"path": path.as_uri(), "timestamp": 1, "batchId": number} for path in files]
        if compact:
            entries = [{"path": "file:///older", "timestamp": 1, "batchId": number - 1}, *entries]
        text = "\n".join(["v1", *map(json.dumps, entries)])
        (log / (f"{number}.compact" if compact else str(number))).write_text(text)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path)


class TestInput:
    def test_files_of_a_batch(self, checkpoint: Checkpoint, tmp_path: Path) -> None:
        first, second = tmp_path / "with space.json", tmp_path / "b.json"
        checkpoint.batch(8, [second, first])
        checkpoint.batch(9, [first], compact=True)
        assert files_of(checkpoint.root, 8) == sorted([second.as_uri(), first.as_uri()])
        assert files_of(checkpoint.root, 9) == [first.as_uri()]
        assert files_of(checkpoint.root, 10) == []

    @pytest.mark.parametrize("text", ["v1\n1763283600000", 'v1\n{"sales":{"0":12}}', 'v1\n[1,"x"]', "v1"])
    def test_sources_without_files(self, checkpoint: Checkpoint, text: str) -> None:
        """The rate source keeps the time of its start there, Kafka its first offsets."""
        checkpoint.batch(0, [])
        (checkpoint.root / "sources" / "0" / "0").write_text(text)
        assert files_of(checkpoint.root, 0) == []
        assert input_of(checkpoint.root, 0)

    def test_the_same_on_replay_whenever_it_runs(self, checkpoint: Checkpoint, tmp_path: Path) -> None:
        checkpoint.batch(0, [tmp_path / "a"], time=1)
        first = input_of(checkpoint.root, 0)
        checkpoint.batch(0, [tmp_path / "a"], time=2)
        assert input_of(checkpoint.root, 0) == first
        checkpoint.batch(0, [tmp_path / "b"], time=1)
        assert input_of(checkpoint.root, 0) != first

    def test_an_older_checkpoint_put_back(self, checkpoint: Checkpoint, tmp_path: Path) -> None:
        ledger = Ledger(tmp_path / "state", "sales")
        ledger.open()
        for number, name in enumerate("abc"):
            checkpoint.batch(number, [tmp_path / name])
            ledger.check_input(number, input_of(checkpoint.root, number))
        checkpoint.batch(1, [tmp_path / "b", tmp_path / "d"])  # what has arrived since comes as batch 1
        ledger.check_input(0, input_of(checkpoint.root, 0))
        with pytest.raises(StateError, match=r"batch 1 of 'sales' reads other input .* older copy of the checkpoint"):
            ledger.check_input(1, input_of(checkpoint.root, 1))
        ledger.close()


class TestDrift:
    """Five scripts: a column is added, dropped, retyped, moved, renamed."""

    def check(self, tmp_path: Path, changed: pa.Table, new_columns: str = "refuse") -> None:
        incoming = tmp_path / "incoming"
        incoming.mkdir()
        pq.write_table(SALES, incoming / "0.parquet")
        declared = source("parquet", incoming)
        path = incoming / "1.parquet"
        pq.write_table(changed, path)
        checkpoint = Checkpoint(tmp_path)
        checkpoint.batch(1, [incoming / "0.parquet", path])
        check_drift(declared, checkpoint.root, 1, new_columns)

    def refused(self, tmp_path: Path, changed: pa.Table, words: str, new_columns: str = "refuse") -> None:
        with pytest.raises(SchemaError, match=rf"1\.parquet: its columns .*{words}.* Nothing of batch 1 is written"):
            self.check(tmp_path, changed, new_columns)

    def test_added(self, tmp_path: Path) -> None:
        self.refused(tmp_path, SALES.append_column("colour", pa.array(["red", None])), r"colour \(string\) is new")

    def test_added_where_that_may_be(self, tmp_path: Path) -> None:
        self.check(tmp_path, SALES.append_column("colour", pa.array(["red", None])), "ignore")

    def test_dropped(self, tmp_path: Path) -> None:
        self.refused(tmp_path, SALES.drop_columns(["amount"]), r"amount \(double\) is gone", "ignore")

    def test_retyped(self, tmp_path: Path) -> None:
        changed = SALES.set_column(2, "amount", pa.array(["1.5", "much"]))
        self.refused(tmp_path, changed, "amount was double and is string", "ignore")

    def test_moved(self, tmp_path: Path) -> None:
        self.check(tmp_path, SALES.select(["amount", "product", "sale_id"]))

    def test_renamed(self, tmp_path: Path) -> None:
        changed = SALES.rename_columns(["sale_id", "article", "amount"])
        self.refused(tmp_path, changed, r"product \(string\) is gone; article \(string\) is new")

    def test_no_parquet_at_all(self, tmp_path: Path) -> None:
        (tmp_path / "bad.parquet").write_bytes(b"PAR1, or perhaps not")
        declared = Source("parquet", tmp_path, SALES.schema)
        checkpoint = Checkpoint(tmp_path)
        checkpoint.batch(0, [tmp_path / "bad.parquet"])
        with pytest.raises(SchemaError, match=r"bad\.parquet cannot be read as Parquet"):
            check_drift(declared, checkpoint.root, 0, "refuse")

    @pytest.mark.parametrize(
        "declared, found, fits",
        [
            (pa.timestamp("us", "UTC"), pa.timestamp("ns", "Europe/Oslo"), True),
            (pa.timestamp("us"), pa.timestamp("us", "UTC"), False),
        ],
    )
    def test_times(self, tmp_path: Path, declared: Any, found: Any, fits: bool) -> None:
        pq.write_table(
            pa.table({"t": pa.array([datetime(2026, 1, 1)], pa.timestamp("us")).cast(found)}), tmp_path / "x.parquet"
        )
        checkpoint = Checkpoint(tmp_path)
        checkpoint.batch(0, [tmp_path / "x.parquet"])
        made = Source("parquet", tmp_path, pa.schema({"t": declared}))
        if fits:
            check_drift(made, checkpoint.root, 0, "refuse")
        else:
            with pytest.raises(SchemaError, match="t was timestamp"):
                check_drift(made, checkpoint.root, 0, "refuse")
