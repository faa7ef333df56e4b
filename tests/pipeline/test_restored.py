"""A store was restored from a backup and went on: the same store and number, and other rows. Without Spark."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from semistream import MasterStore
from semistream.dimensions.dimension import Dimension
from semistream.errors import StateError
from semistream.pipeline.batch import Batches, BatchId
from semistream.pipeline.decision import Read
from semistream.pipeline.dimensions import check_mirror, mirror
from semistream.pipeline.ledger import BATCHES, Ledger
from semistream.pipeline.steps.lookup import lookup
from semistream.warehouse import DeltaWarehouse, StaleWriterError, Warehouse
from semistream.warehouse.marks import stale_mirror
from tests.pipeline.shop import products
from tests.warehouse.warehouses import KINDS, Place

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


@pytest.fixture(params=KINDS)
def warehouse(request: pytest.FixtureRequest, tmp_path: Path) -> Warehouse:
    address = request.getfixturevalue("postgres") if request.param == "postgres" else ""
    return Place(request.param, str(tmp_path / "warehouse"), address).open()


@pytest.fixture
def customers(tmp_path: Path) -> Path:
    key, attributes = pa.schema({"customer": pa.string()}), pa.schema({"name": pa.string()})
    return Dimension.create(tmp_path / "customers", key=key, attributes=attributes, surrogate="customer_sk").path


def assign(path: Path, *names: str) -> Read:
    """New members, and the version that has them."""
    dimension = Dimension.open(path)
    dimension.assign(pa.table({"customer": list(names)}))
    return Read.of(dimension.store)


def follow(warehouse: Warehouse, path: Path) -> None:
    newest = Read.of(MasterStore.open(path))
    check_mirror(warehouse, "customers", path)
    mirror(warehouse, "customers", path, newest.number, newest.digest)


class TestDimension:
    @pytest.mark.parametrize("later", [0, 1, 2])
    @pytest.mark.parametrize("digest", [True, False])
    def test_restored(
        self,
        warehouse: Warehouse,
        customers: Path,
        tmp_path: Path,
        later: int,
        digest: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Its table holds other members under the numbers that it gives: it cannot follow."""
        if not digest:  # as it was mirrored by semistream before digests were kept
            monkeypatch.setattr(warehouse, "mirrored_digest", lambda *_: None)
        assign(customers, "alice")
        follow(warehouse, customers)
        backup = shutil.copytree(customers, tmp_path / "backup")
        assign(customers, "xenia", "xaver")
        follow(warehouse, customers)
        restore(customers, backup)
        for number in range(later):
            assign(customers, f"y{number}")
        before = warehouse.read("customers")
        if not digest and later:  # this cannot be known
            check_mirror(warehouse, "customers", customers)
            return
        refused = rf"table 'customers' of .* mirrors version 3 of .*, which is at version {2 + later} .* Restore"
        with pytest.raises(StateError, match=refused):
            check_mirror(warehouse, "customers", customers)
        assert warehouse.read("customers") == before

    @pytest.mark.parametrize("other", [False, True])
    @pytest.mark.parametrize("later", [0, 1, 2])
    def test_restored_behind_a_decision(
        self, warehouse: Warehouse, customers: Path, tmp_path: Path, later: int, other: bool
    ) -> None:
        """The members that a batch made were not mirrored yet: the batch must not refer to others."""
        assign(customers, "alice")
        follow(warehouse, customers)
        backup = shutil.copytree(customers, tmp_path / "backup")
        decided = assign(customers, "xenia", "xaver")
        restore(customers, backup)
        for number in range(later):
            assign(customers, f"y{number}")
        if other:  # another pipeline's batch, on the same table
            follow(warehouse, customers)
        check_mirror(warehouse, "customers", customers)
        before = warehouse.read("customers")
        refused = rf"must mirror version 3 of .*customers, which is at version {2 + later} .*semistream undo"
        with pytest.raises(StateError, match=refused):
            mirror(warehouse, "customers", customers, decided.number, decided.digest)
        assert warehouse.read("customers") == before

    def test_restored_as_it_was_mirrored(self, warehouse: Warehouse, customers: Path, tmp_path: Path) -> None:
        """Nothing of it was loaded that the copy does not have."""
        assign(customers, "alice")
        follow(warehouse, customers)
        backup = shutil.copytree(customers, tmp_path / "backup")
        assign(customers, "xenia")
        restore(customers, backup)
        assign(customers, "yara")
        follow(warehouse, customers)
        names = {row["customer"]: row["customer_sk"] for row in warehouse.read("customers").to_pylist()}
        assert (names["alice"], names["yara"], "xenia" in names) == (1, 2, False)

    @pytest.mark.parametrize("vacuumed", [False, True])
    def test_mirrored_long_ago(self, warehouse: Warehouse, customers: Path, vacuumed: bool) -> None:
        """More versions back than a manifest remembers."""
        assign(customers, "alice")
        follow(warehouse, customers)
        for number in range(70):
            assign(customers, f"c{number}")
        if vacuumed:
            MasterStore.open(customers).vacuum(1)
        follow(warehouse, customers)
        assert len(warehouse.read("customers").filter(pc.field("customer_sk") > 0)) == 71

    def test_another_run_mirrors_a_version_that_it_has_just_made(
        self, warehouse: Warehouse, customers: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What the table mirrors is asked before the store is opened: it is never ahead of it."""
        assign(customers, "alice")
        follow(warehouse, customers)
        whole = warehouse.mirrored

        def late(table: str) -> int:
            monkeypatch.undo()
            assign(customers, "bob")
            follow(warehouse, customers)
            return whole(table)

        monkeypatch.setattr(warehouse, "mirrored", late)
        check_mirror(warehouse, "customers", customers)

    def test_another_run_mirrors_on_the_way(
        self, warehouse: Warehouse, customers: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two pipelines may share a dimension and its table: whoever is overtaken looks again."""
        follow(warehouse, customers)
        wanted = assign(customers, "alice")
        overtaking = ["bob", "carl"]
        whole = warehouse.mirror

        def overtaken(table: str, *rest: Any, **more: Any) -> bool:
            if not overtaking:
                return whole(table, *rest, **more)
            assign(customers, overtaking.pop())
            newest = Dimension.open(customers)
            new, content = newest.rows(warehouse.mirrored(table))[0], newest.store.manifest.identity
            if overtaking:  # by less than is wanted: as if it had been opened earlier
                content = replace(content, number=1 + warehouse.mirrored(table))
            whole(table, ["customer_sk"], new, content.number, store=content)
            raise stale_mirror(table, rest[2], content.number)

        monkeypatch.setattr(warehouse, "mirror", overtaken)
        mirror(warehouse, "customers", customers, wanted.number, wanted.digest)
        assert warehouse.mirrored("customers") >= wanted.number

    def test_a_table_that_was_made_anew_on_the_way(
        self, warehouse: Warehouse, customers: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wanted = assign(customers, "alice")
        follow(warehouse, customers)

        def overtaken(table: str, *_: Any, **__: Any) -> bool:
            raise stale_mirror(table, 1, None)

        monkeypatch.setattr(warehouse, "mirror", overtaken)
        monkeypatch.setattr(warehouse, "mirrored", lambda _: -1)
        with pytest.raises(StaleWriterError, match="made anew"):
            mirror(warehouse, "customers", customers, wanted.number, wanted.digest)


def test_no_member_is_made_in_a_restored_dimension(
    tmp_path: Path, customers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that has rows without a key is refused before the dimension makes members for them."""
    some = batches(tmp_path)
    some.layout.dimensions["customers"] = customers
    follow(some.warehouse, customers)
    some.check_dimensions()
    backup = shutil.copytree(customers, tmp_path / "backup")
    assign(customers, "xenia")
    follow(some.warehouse, customers)
    some.check_dimensions()
    restore(customers, backup)
    assign(customers, "yara")
    with pytest.raises(StateError, match="mirrors version 2"):
        some.check_dimensions()
