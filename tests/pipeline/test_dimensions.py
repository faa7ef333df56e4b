"""Members that are made for a batch, without Spark: the same numbers on replay, NULL is nobody, mirrored once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semistream.budget import Budget
from semistream.dimensions.dimension import Dimension
from semistream.pipeline import assign_keys
from semistream.pipeline import routes as names
from semistream.pipeline.dimensions import mirror, resolve
from semistream.pipeline.layout import Layout, Schemas
from semistream.warehouse import DeltaWarehouse, StagedFile
from semistream.warehouse.contract import Limits

CUSTOMER, STATUS = names.asked_columns(0, 1)[0], names.status_column(0)


@pytest.fixture
def customers(tmp_path: Path) -> Path:
    Dimension.create(
        tmp_path / "customers",
        key=pa.schema({"customer": pa.string()}),
        attributes=pa.schema({"name": pa.string()}),
        surrogate="customer_sk",
    )
    return tmp_path / "customers"


def layout(customers: Path) -> Layout:
    return Layout(
        table="sales",
        steps=(assign_keys(customers, on="customer", infer_members=True, unknown_key=-7),),
        memory={},
        original=["id", "customer"],
        required=(),
        max_bad_rate=0.01,
        tasks=2,
        driver_memory=16_000_000,
        dimensions={"customers": customers},
        relief=None,
        limits=Limits(),
        hot_keys=customers.with_name("hot"),
    )


def schemas(taken: dict[str, str]) -> Schemas:
    kinds = {"id": pa.int64(), "customer_sk": pa.int64()}
    facts = pa.schema([pa.field(new, kinds[old]) for new, old in taken.items()])
    return Schemas({names.FACT: facts}, taken, hidden={})


def unresolved(directory: Path, taken: dict[str, str], rows: list[tuple[int, str | None, int | None]]) -> StagedFile:
    """Rows (id, customer, the key if it was found) as a task puts them aside."""
    values = {"id": [one[0] for one in rows], "customer_sk": pa.array([one[2] for one in rows], pa.int64())}
    table = pa.table(
        {new: values[old] for new, old in taken.items()}
        | {CUSTOMER: pa.array([one[1] for one in rows], pa.string()), STATUS: [one[2] is not None for one in rows]}
    )
    path = directory / f"unresolved-{len(list(directory.iterdir()))}.parquet"
    pq.write_table(table, path)
    return StagedFile(str(path), len(rows), path.stat().st_size)


def test_members_are_made_once(customers: Path, tmp_path: Path) -> None:
    taken = {"id": "id", "customer_sk": "customer_sk"}
    made = layout(customers)
    place = tmp_path / "sales"
    place.mkdir()
    files = [
        unresolved(tmp_path, taken, [(1, "b", None), (2, None, None), (3, "a", None), (4, "old", 99)]),
        unresolved(tmp_path, taken, [(5, "b", None)]),
    ]
    for _ in range(3):  # killed before the decision, and begun again
        finished = resolve(made, schemas(taken), files, place, "sales-b000000000-fact", Budget("16MB"))
        found = {row["id"]: row["customer_sk"] for file in finished for row in pq.read_table(file.path).to_pylist()}
        assert found == {1: 2, 2: -7, 3: 1, 4: 99, 5: 2}
        assert all(Path(file.path).name.startswith("sales-b000000000-fact-") for file in finished)
    assert Dimension.open(customers).next_key == 3
    warehouse = DeltaWarehouse(tmp_path / "warehouse")
    for _ in range(2):
        mirror(warehouse, "customers", customers, Dimension.open(customers).store.version)
        members = {row["customer"]: row["customer_sk"] for row in warehouse.read("customers").to_pylist()}
        assert {name: key for name, key in members.items() if key > 0} == {"a": 1, "b": 2}


@pytest.mark.parametrize("taken", [{"id": "id"}, {"id": "id", "customer_sk": "customer_sk", "again": "customer_sk"}])
def test_the_key_is_selected_twice_or_not_at_all(customers: Path, tmp_path: Path, taken: dict[str, str]) -> None:
    place = tmp_path / "sales"
    place.mkdir()
    file = unresolved(tmp_path, taken, [(1, "b", None), (2, "old", 99)])
    [finished] = resolve(layout(customers), schemas(taken), [file], place, "x", Budget("16MB"))
    rows = sorted(pq.read_table(finished.path).to_pylist(), key=lambda row: row["id"])
    wanted = [{"id": 1, "customer_sk": 1, "again": 1}, {"id": 2, "customer_sk": 99, "again": 99}]
    assert rows == [{name: row[name] for name in taken} for row in wanted]


def test_more_members_than_fit_are_made_in_several_versions(customers: Path, tmp_path: Path) -> None:
    taken = {"id": "id", "customer_sk": "customer_sk"}
    place = tmp_path / "sales"
    place.mkdir()
    files = [
        unresolved(tmp_path, taken, [(n, f"{n % 4000:060}", None) for n in range(first, first + 3000)])
        for first in (0, 3000)
    ]
    budget = Budget("400KB")
    finished = resolve(layout(customers), schemas(taken), files, place, "x", budget)
    found = {row["id"]: row["customer_sk"] for file in finished for row in pq.read_table(file.path).to_pylist()}
    assert len(found) == 6000
    assert sorted(set(found.values())) == list(range(1, 4001))
    assert all(found[n] == found[n + 4000] for n in range(2000))
    assert Dimension.open(customers).store.version > 3
    assert 0 < budget.peak <= budget.total
    assert budget.used == 0
