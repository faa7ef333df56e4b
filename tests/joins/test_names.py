"""Columns of the stream that share a name: all joins carry them by position, or all refuse by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semistream import join
from semistream.errors import SchemaError
from semistream.joins import JOINS
from semistream.joins.conditions import Band
from semistream.lookup.bind import bind
from semistream.lookup.run import make_join
from semistream.lookup.spec import HOWS, LookupSpec
from semistream.shedding import Shed
from semistream.stores import MasterStore

ROWS = 60


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> MasterStore:
    master = pa.table({"k": range(0, 400, 2), "v": range(200), "valid_from": [0] * 200, "valid_to": [9] * 200})
    return MasterStore.build(master, tmp_path_factory.mktemp("names") / "store", key="k")


def batch_of(*names: str) -> pa.RecordBatch:
    """Keys, numbers, texts, texts, lists, numbers, under these names."""
    at = list(range(ROWS))
    texts = [None if n % 7 == 3 else f"text {n}" for n in at]
    columns = [pa.array(at), pa.array([n / 2 for n in at]), pa.array(texts), pa.array(texts[::-1])]
    columns += [pa.array([[n] * (n % 3) for n in at]), pa.array([n * 10 for n in at])]
    return pa.RecordBatch.from_arrays(columns, list(names))


@pytest.mark.parametrize("names", [("k", "a", "a", "a", "a", "a"), ("k", "n", "t", "t", "l", "n")], ids="-".join)
@pytest.mark.parametrize("name", JOINS)
def test_columns_are_carried_by_position(store: MasterStore, name: str, names: tuple[str, ...]) -> None:
    batch = batch_of(*names)
    rows = list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    for how in HOWS:
        running = make_join(batch.schema, store, on="k", how=how, columns=["v"], algorithm=name, memory=100_000)
        made = list(running.join([batch.slice(0, 25), batch.slice(25)]))
        assert all(one.schema.names == [*names, *(["v"] if how in ("left", "inner") else [])] for one in made)
        found = [row for one in made for row in zip(*(column.to_pylist() for column in one.columns), strict=True)]
        wanted = {
            "left": [(*row, None if row[0] % 2 else row[0] // 2) for row in rows],
            "inner": [(*row, row[0] // 2) for row in rows if row[0] % 2 == 0],
            "semi": [row for row in rows if row[0] % 2 == 0],
            "anti": [row for row in rows if row[0] % 2],
        }[how]
        assert sorted(found, key=repr) == sorted(wanted, key=repr)
        running.check()


@pytest.mark.parametrize("name", ["mesh", "amesh", "rmesh", "derakhshan"])
def test_in_order(store: MasterStore, name: str) -> None:
    batch = batch_of("k", "a", "a", "a", "a", "a")
    made = join([batch], store, on="k", columns=["v"], algorithm=name, memory=100_000, ordered=True)
    assert [key for one in made for key in one.column(0).to_pylist()] == list(range(ROWS))


@pytest.mark.parametrize(
    "options",
    [{"on": "k"}, {"on": {"a": "k"}, "as_of": "k"}, {"condition": Band("k", "k", 1)}],
    ids=["key", "moment", "condition"],
)
@pytest.mark.parametrize("name", JOINS)
def test_a_column_that_is_compared_must_be_the_only_one_of_its_name(
    store: MasterStore, name: str, options: dict[str, Any]
) -> None:
    batch = batch_of("k", "n", "t", "u", "l", "k")
    if "as_of" in options:
        batch = batch.rename_columns(["a", "k", "t", "u", "l", "k"])
    with pytest.raises(SchemaError, match=r"2 columns 'k'.*\['(k|a)', .*rename or drop all but one"):
        join([batch], store, columns=["v"], algorithm=name, **options)


def test_case_counts_where_the_engine_goes_by_it(store: MasterStore) -> None:
    schema = pa.schema([("k", pa.int64()), ("K", pa.string())])
    bind(LookupSpec(on="k"), schema, store)
    with pytest.raises(SchemaError, match="2 columns 'k'"):
        bind(LookupSpec(on="k"), schema, store, ignore_case=True)


def test_rows_that_are_shed_need_names(store: MasterStore, tmp_path: Path) -> None:
    batch, shed = batch_of("k", "a", "a", "b", "c", "d"), Shed("keep_w", to=tmp_path / "shed")
    with pytest.raises(SchemaError, match=r"several columns 'a'.*rename"):
        join([batch], store, on="k", columns=["v"], shed=shed)
