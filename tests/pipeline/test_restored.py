"""A store was restored from a backup and went on: the same store and number, and other rows. Without Spark."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from semistream import MasterStore
from semistream.errors import StateError
from semistream.pipeline.batch import BatchId, Batches
from semistream.pipeline.decision import Read
from semistream.pipeline.ledger import BATCHES, Ledger
from semistream.pipeline.steps.lookup import lookup
from semistream.warehouse import DeltaWarehouse
from tests.pipeline.shop import products

QUERY = "0b7f61f3-d9f5-4942-945a-e7a65429d651"
BATCH = BatchId(BATCHES, 0, "sales", QUERY)


def restore(path: Path, backup: Path) -> None:
    shutil.rmtree(path)
    shutil.copytree(backup, path)


def batches(root: Path, **layout: Any) -> Batches:
    """Those of a pipeline of which only a part is there."""
    ledger = Ledger(root / "state", "sales")
    ledger.open()
    some: Any = SimpleNamespace(driver_memory=16_000_000, dimensions={}, lookups=[], **layout)
    nothing: Any = None
    return Batches(some, nothing, ledger, DeltaWarehouse(root / "warehouse"), None, lambda: 0.0)


def test_a_batch_that_was_begun_with_other_content(tmp_path: Path) -> None:
    path = tmp_path / "products"
    MasterStore.build(products([0]), path, key="id")
    backup = shutil.copytree(path, tmp_path / "backup")
    begun = Read.of(MasterStore.open(path).upsert(products([1])))
    some = batches(tmp_path)
    some.layout.lookups.append(lookup(path, on={"product": "id"}))
    assert some._open({"products": begun}, BATCH).stores["products"].version == 2
    assert some._open({"products": Read(begun.store, 2)}, BATCH).versions == {"products": 2}  # of before digests
    restore(path, backup)
    MasterStore.open(path).upsert(products([2]))
    with pytest.raises(StateError, match=r"batch 0 was begun with version 2 of .*products, .* restored from a backup"):
        some._open({"products": begun}, BATCH)
