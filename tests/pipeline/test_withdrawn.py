"""A decision that turns out to be in the tables already is withdrawn as if it had never been made. Without Spark."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semistream.changes.duplicates import SeenKeys
from semistream.pipeline.batch import Batches, BatchId
from semistream.pipeline.decision import Decision, HeldFile
from semistream.pipeline.ledger import BATCHES, Ledger
from semistream.warehouse import DeltaWarehouse, StaleWriterError
from semistream.warehouse.contract import BatchWrites, Write, stage

QUERY = "0b7f61f3-d9f5-4942-945a-e7a65429d651"
FACTS = pa.schema({"id": pa.int64()})


class Copy(DeltaWarehouse):
    """Another copy of the state commits batch 1 between this one's last look and its commit."""

    def commit(self, batch: BatchWrites) -> bool:
        if batch.batch == 1:
            super().commit(batch)
        return super().commit(batch)


def batch(number: int) -> BatchId:
    return BatchId(BATCHES, number, "sales", QUERY)


def parquet(path: Path, numbers: Iterable[int]) -> str:
    pq.write_table(pa.table({"id": list(numbers)}, schema=FACTS), path)
    return str(path)


@pytest.fixture
def batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Batches:
    """Batch n holds a row, remembers the key n, and has released what the batch before held."""
    ledger = Ledger(tmp_path / "state", "sales")
    ledger.open()
    warehouse = Copy(tmp_path / "warehouse")
    warehouse.prepare("sales", FACTS)
    held = ledger.root / "held"
    layout: Any = SimpleNamespace(driver_memory=16_000_000, dimensions={})
    nothing: Any = None

    def decide(_: Batches, frame: Any, one: BatchId, *__: Any) -> Decision:
        rows = pa.table({"id": [one.number]}, schema=FACTS)
        write = Write("sales", (stage(warehouse.place("sales"), rows, FACTS),), FACTS)
        waits = parquet(held / f"held-{one.number}.parquet", [one.number])
        return Decision(
            writes=BatchWrites(one.app, one.query, one.number, (write,)),
            masters={},
            counts={},
            lookups={},
            totals={},
            held=(HeldFile("products", waits, 1, 100, 0.0),),
            seen=(parquet(held / f"keys-{one.number}.parquet", [one.number]),),
            sequence=one.number,
        )

    monkeypatch.setattr(Batches, "_decide", decide)
    return Batches(layout, nothing, ledger, warehouse, SeenKeys(ledger.root / "seen", FACTS), lambda: 0.0)


def test_what_the_decision_before_holds_stays(batches: Batches) -> None:
    frame: Any = None
    batches.run(frame, batch(0))
    with pytest.raises(StaleWriterError, match=r"batch 1 of 'sales' was in .* already"):
        batches.run(frame, batch(1))
    [last] = batches.ledger.latest()
    assert (last.writes.batch, [Path(one.path).name for one in last.held]) == (0, ["held-0.parquet"])
    assert Path(last.held[0].path).exists()


def test_its_keys_are_not_remembered(batches: Batches) -> None:
    """Its rows come again: they must not be taken for duplicates."""
    frame: Any = None
    batches.run(frame, batch(0))
    with pytest.raises(StaleWriterError):
        batches.run(frame, batch(1))
    assert batches.seen is not None
    assert batches.seen.new(pa.table({"id": [0, 1]}, schema=FACTS)).tolist() == [False, True]


def test_one_that_was_carried_out_before_is_finished(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash behind the commit the tables have it; its keys are still to be remembered."""
    frame: Any = None
    with monkeypatch.context() as patch:
        patch.setattr(SeenKeys, "add_pieces", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            batches.run(frame, batch(0))
    batches.run(frame, batch(0))
    assert batches.seen is not None
    assert batches.seen.new(pa.table({"id": [0]}, schema=FACTS)).tolist() == [False]
