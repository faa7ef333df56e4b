"""Dimensions: surrogate keys that are given once, members that are inferred and completed, histories on disk."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream import join
from semistream.changes import apply_changes
from semistream.changes.debezium import debezium_changes
from semistream.dimensions import Dimension
from semistream.errors import ArgumentError, SchemaError, StoreError
from semistream.stores import MasterStore
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
KEY = pa.schema([("product", pa.string())])
ATTRIBUTES = pa.schema([("name", pa.string()), ("price", pa.float64())])
NAN = float("nan")


def make(path: Path, **options: Any) -> Dimension:
    options = {"key": KEY, "attributes": ATTRIBUTES, "surrogate": "sk", **options}
    return Dimension.create(path / "dimension", **options)


def keys(*names: str | None) -> pa.Table:
    return pa.table({"product": pa.array(names, pa.string())})


def rows(dimension: Dimension, *names: str) -> list[tuple[Any, ...]]:
    table = dimension.rows()[0]
    found = table.select(names).to_pylist() if names else table.to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


def change(*items: tuple[str, str, str | None, float | None], **more: list[Any]) -> pa.Table:
    ops, products, names, prices = zip(*items, strict=True)
    return pa.table(
        {
            "_op": pa.array(ops),
            "product": pa.array(products),
            "name": pa.array(names, pa.string()),
            "price": pa.array(prices, pa.float64()),
            **more,
        }
    )


# -- surrogate keys ----------------------------------------------------------------------------------------------------


def test_keys_are_given_in_order_and_stay(tmp_path: Path) -> None:
    dimension = make(tmp_path)
    assert dimension.assign(keys("c", "a", None, "c"))["sk"].to_pylist() == [2, 1, -1, 2]
    assert dimension.assign(keys("b", "a", "c"))["sk"].to_pylist() == [3, 1, 2]
    version = dimension.store.version
    again = Dimension.open(dimension.path)
    assert again.assign(keys("c", "a", "b", None))["sk"].to_pylist() == [2, 1, 3, -1]
    assert (again.store.version, again.next_key) == (version, 4)
    assert again.assign(keys(None))["sk"].to_pylist() == [-1]
    assert again.assign(keys())["sk"].to_pylist() == []
    assert rows(again, "product", "sk", "name", "inferred") == [
        ("a", 1, None, True),
        ("b", 3, None, True),
        ("c", 2, None, True),
    ]


def test_columns_of_the_rows_stay(tmp_path: Path) -> None:
    dimension = make(tmp_path, first_key=100, unknown_key=0)
    batch = pa.record_batch({"amount": [5, 6], "product": pa.array(["x", None])})
    assert dimension.assign(batch).to_pylist() == [
        {"amount": 5, "product": "x", "sk": 100},
        {"amount": 6, "product": None, "sk": 0},
    ]


def test_several_sources_share_the_numbers_and_not_the_keys(tmp_path: Path) -> None:
    dimension = make(tmp_path, key=pa.schema([("product", pa.int64())]), source="system")
    assert dimension.key == ("system", "product")
    asked = pa.table({"system": ["web", "shop", "web", None], "product": [1, 1, 2, 1]})
    assert dimension.assign(asked)["sk"].to_pylist() == [2, 1, 3, -1]
    asked = pa.table({"system": ["shop", "web"], "product": [2, 1]})
    assert dimension.assign(asked)["sk"].to_pylist() == [4, 2]


def test_the_unknown_member(tmp_path: Path) -> None:
    dimension = make(tmp_path, unknown_member={"name": "unknown"})
    assert rows(dimension, "product", "sk", "name", "inferred") == [(None, -1, "unknown", False)]
    dimension.assign(keys("a"))
    assert len(rows(Dimension.open(dimension.path))) == 2
    with pytest.raises(ArgumentError, match="'colour' is no attribute"):
        make(tmp_path / "other", unknown_member={"colour": "red"})
    with pytest.raises(ArgumentError, match="does not fit the attributes"):
        make(tmp_path / "other", unknown_member={"price": "much"})


def test_two_drivers_give_no_number_twice(tmp_path: Path) -> None:
    """Two processes, twenty rounds, half of the keys the same: one number a key, one key a number."""
    dimension = make(tmp_path)
    go = tmp_path / "go"
    drivers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.dimensions.racing_drivers", dimension.path, str(seed), "20", go],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in (1, 2)
    ]
    for driver in drivers:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"
    go.touch()
    said = [driver.communicate(timeout=PATIENCE) for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0], said
    first, second = (json.loads(out) for out, _ in said)
    both = set(first) & set(second)
    assert len(both) > 20, "they did not meet"
    assert all(first[key] == second[key] for key in both)
    everything = {**first, **second}
    assert len(set(everything.values())) == len(everything)
    dimension = Dimension.open(dimension.path)
    assert sorted(everything.values()) == list(range(1, dimension.next_key)), "dense, too"
    assert rows(dimension, "product", "sk") == sorted(everything.items(), key=repr)


# -- type 1 ------------------------------------------------------------------------------------------------------------


def test_overwriting(tmp_path: Path) -> None:
    dimension = make(tmp_path)
    dimension.assign(keys("b"))
    done = dimension.apply(
        change(("insert", "b", "bee", 1.0), ("insert", "a", "ant", NAN), ("insert", "b", "bee", 2.0))
    )
    assert (done.created, done.completed, done.changed, done.unchanged) == (1, 1, 0, 0)
    again = dimension.apply(
        change(("update", "a", "ant", NAN), ("update", "b", "bug", 2.0), ("delete", "z", None, None))
    )
    assert (again.created, again.completed, again.changed, again.unchanged) == (0, 0, 1, 1)
    kept = dimension.apply(change(("delete", "a", None, None)))
    assert (kept.deletes_kept, kept.version) == (1, again.version)
    assert rows(dimension, "product", "sk", "name", "inferred") == [("a", 2, "ant", False), ("b", 1, "bug", False)]


def test_a_token_is_applied_once(tmp_path: Path) -> None:
    for history in (False, True):
        dimension = make(tmp_path / str(history), history=history)
        for _ in range(2):
            changes = change(("insert", "a", "ant", 1.0), at=[dt.datetime(2024, 1, 1, tzinfo=dt.UTC)])
            done = dimension.apply(changes, token=("x", 3), effective="at" if history else None)
        assert (done.applied, done.created) == (False, 0)
        assert dimension.next_key == 2


def test_what_is_refused(tmp_path: Path) -> None:
    dimension = make(tmp_path)
    with pytest.raises(ArgumentError, match="is a dimension"):
        apply_changes(dimension.store, change(("insert", "a", "ant", 1.0)))
    with pytest.raises(ArgumentError, match="rows have a column 'sk' already"):
        dimension.assign(pa.table({"product": ["a"], "sk": [1]}))
    with pytest.raises(ArgumentError, match="no column 'product'"):
        dimension.assign(pa.table({"x": [1]}))
    with pytest.raises(SchemaError, match="key 'product' is string"):
        dimension.assign(pa.table({"product": [1]}))
    with pytest.raises(ArgumentError, match="as_of='at' needs a dimension with history"):
        dimension.assign(pa.table({"product": ["a"], "at": [1]}), as_of="at")
    with pytest.raises(ArgumentError, match="column 'name' would be there twice"):
        make(tmp_path / "b", surrogate="name")
    with pytest.raises(ArgumentError, match="first_key=-5 must be above"):
        make(tmp_path / "b", first_key=-5)
    with pytest.raises(ArgumentError, match=r"key='product' must be a pyarrow.Schema"):
        make(tmp_path / "b", key="product")
    with pytest.raises(ArgumentError, match="time=string cannot say"):
        make(tmp_path / "b", time=pa.string())
    plain = MasterStore.build(pa.table({"k": [1]}), tmp_path / "plain", key="k")
    with pytest.raises(StoreError, match="is a store but no dimension"):
        Dimension.open(plain.path)
    with pytest.raises(ArgumentError, match="a dimension is not emptied"):
        dimension.apply(change(("truncate", "", None, None)))


# -- type 2 ------------------------------------------------------------------------------------------------------------


def timed(*items: tuple[str, str, float | None, int]) -> pa.Table:
    return change(
        *((op, key, None if price is None else "n", price) for op, key, price, _ in items),
        at=pa.array([time for *_, time in items], pa.int64()),
    )


def versions(dimension: Dimension) -> list[tuple[Any, ...]]:
    return rows(dimension, "product", "valid_from", "valid_to", "sk", "price", "inferred")


def test_a_history(tmp_path: Path) -> None:
    dimension = make(tmp_path, history=True, time=pa.int64())
    dimension.assign(keys("b"))
    done = dimension.apply(
        timed(("insert", "a", 1.0, 10), ("update", "a", 2.0, 20), ("insert", "b", 5.0, 15)), effective="at"
    )
    assert (done.created, done.closed, done.completed) == (2, 0, 1)
    done = dimension.apply(
        timed(("update", "a", 1.5, 12), ("update", "a", 2.0, 30), ("delete", "b", None, 40)), effective="at"
    )
    assert (done.created, done.closed, done.completed, done.changed) == (1, 1, 0, 0)
    assert versions(dimension) == [
        ("a", 10, 12, 2, 1.0, False),
        ("a", 12, 20, 4, 1.5, False),
        ("a", 20, None, 3, 2.0, False),
        ("b", None, 40, 1, 5.0, False),
    ]
    asked = pa.table({"product": ["a"] * 5 + ["b", "c"], "at": [5, 10, 19, 20, None, 50, 7]})
    found = dimension.assign(asked, as_of="at")["sk"].to_pylist()
    assert found == [2, 2, 4, 3, 3, 1, 5]
    assert dimension.assign(keys("a", "b"))["sk"].to_pylist() == [3, 1]
    before = dimension.store.version
    idle = dimension.apply(timed(("update", "a", 2.0, 30)), effective="at")
    assert (idle.unchanged, idle.version) == (1, before)


def test_a_member_deleted_before_it_was_seen(tmp_path: Path) -> None:
    dimension = make(tmp_path, history=True, time=pa.int64())
    dimension.apply(timed(("delete", "a", None, 5), ("delete", "b", None, 5)), effective="at")
    assert (versions(dimension), dimension.next_key) == ([], 1)
    assert dimension.assign(keys("a", "c"))["sk"].to_pylist() == [1, 2]
    assert versions(dimension) == [("a", None, 5, 1, None, True), ("c", None, None, 2, None, True)]
    dimension.apply(timed(("insert", "b", 1.0, 1), ("insert", "a", 1.0, 1)), effective="at")
    assert versions(dimension)[:2] == [("a", None, 5, 1, 1.0, False), ("b", 1, 5, 3, 1.0, False)]


def test_a_version_that_never_held_is_not_assigned(tmp_path: Path) -> None:
    dimension = make(tmp_path, history=True, time=pa.int64())
    dimension.apply(timed(("insert", "a", 1.0, 10), ("insert", "b", 1.0, 10)), effective="at")
    dimension.apply(timed(("delete", "a", None, 10), ("delete", "b", None, 10)), effective="at")
    dimension.apply(timed(("insert", "a", 2.0, 20)), effective="at")
    asked = pa.table({"product": ["a", "a", "b"], "at": [15, 25, 15]})
    assert dimension.assign(asked, as_of="at")["sk"].to_pylist() == [3, 3, 2]


@pytest.mark.parametrize(
    "time",
    [pa.timestamp("us", "UTC"), pa.timestamp("ms"), pa.timestamp("ns", "Europe/Berlin"), pa.date32(), pa.date64()],
)
def test_types_of_time(tmp_path: Path, time: pa.DataType) -> None:
    dimension = make(tmp_path, history=True, time=time)
    days = [dt.date(2024, 1, day) for day in (1, 5)]
    at = (
        pa.array(days).cast(pa.timestamp("s")).cast(pa.timestamp(time.unit, time.tz))
        if pa.types.is_timestamp(time)
        else pa.array(days)
    )
    dimension.apply(change(("insert", "a", "x", 1.0), ("update", "a", "y", 1.0), at=at), effective="at")
    table = dimension.rows()[0].sort_by("sk")
    assert table["valid_from"].cast(pa.date32()).to_pylist() == days
    assert table["valid_to"].cast(pa.date32()).to_pylist() == [days[1], None]
    asked = pa.table({"product": ["a", "a"], "at": at})
    assert dimension.assign(asked, as_of="at")["sk"].to_pylist() == [1, 2]


def test_the_time_of_the_source(tmp_path: Path) -> None:
    dimension = make(tmp_path, history=True)
    lines = [
        {"op": "c", "after": {"product": "a", "name": "x", "price": 1}, "source": {"ts_ms": 1_000}},
        {"op": "d", "before": {"product": "a"}, "source": {"ts_ms": 5_000}},
    ]
    numbered = [("file", number, json.dumps(line)) for number, line in enumerate(lines)]
    dimension.apply(debezium_changes(numbered, dimension.change_schema, dimension.key))
    second = dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
    assert versions(dimension) == [("a", second, second + dt.timedelta(seconds=4), 1, 1.0, False)]
    with pytest.raises(SchemaError, match="have no time in column '_time'"):
        dimension.apply(change(("insert", "a", "x", 1.0)))
    with pytest.raises(ArgumentError, match="'at', which the store asks for"):
        dimension.apply(change(("insert", "a", "x", 1.0)), effective="at")


def test_attributes_of_every_type(tmp_path: Path) -> None:
    kinds = [
        pa.decimal128(30, 3),
        pa.timestamp("ns"),
        pa.binary(),
        pa.bool_(),
        pa.float32(),
        pa.date32(),
        pa.large_string(),
    ]
    attributes = pa.schema([(f"a{place}", kind) for place, kind in enumerate(kinds)])
    values = [Decimal("1.125"), 1_000_000_001, b"\0", True, NAN, dt.date(2024, 1, 1), "x"]
    at = pa.array([1, 2, 3], pa.int64())
    for history in (False, True):
        dimension = make(tmp_path / str(history), attributes=attributes, history=history, time=pa.int64())
        columns = {
            f"a{place}": pa.array([value, value, None], kind)
            for place, (value, kind) in enumerate(zip(values, kinds, strict=True))
        }
        table = pa.table({"_op": ["u"] * 3, "product": ["p", "p", "q"], "at": at, **columns})
        done = dimension.apply(table, effective="at" if history else None)
        assert done.created == 2
        found = dimension.rows()[0].sort_by("product").select(attributes.names)
        assert found.schema == attributes
        assert str(found.to_pydict()) == str(table.slice(1).select(attributes.names).to_pydict())
        assert dimension.apply(table, effective="at" if history else None).unchanged == (3 if history else 2)


STEPS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.one_of(st.none(), st.sampled_from([1.0, 2.0, NAN]))),
    max_size=10,
    unique_by=lambda step: step[:2],
)


@settings(max_examples=12, deadline=None)
@given(steps=STEPS, sizes=st.lists(st.integers(1, 4), min_size=10, max_size=10))
def test_as_a_model(
    steps: list[tuple[str, int, float | None]], sizes: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Changes in any order, in any batches, against a list of them: as of each time, the last change up to it."""
    dimension = make(tmp_path_factory.mktemp("dimension"), history=True, time=pa.int64())
    waiting = list(steps)
    numbers: dict[int, Any] = {}
    for size in sizes:
        some, waiting = waiting[:size], waiting[size:]
        if some:
            table = timed(*(("delete" if price is None else "upsert", key, price, time) for key, time, price in some))
            dimension.apply(table, effective="at")
        table = dimension.rows()[0]
        have = dict(zip(table["sk"].to_pylist(), table["product"].to_pylist(), strict=True))
        assert numbers.items() <= have.items(), "a surrogate key went or moved"
        numbers = have
    table = dimension.rows()[0].to_pylist()
    for key in "ab":
        for moment in range(-1, 11):
            past = [(time, price) for name, time, price in steps if name == key and time <= moment]
            expected = max(past, key=lambda one: one[0])[1] if past else None
            valid = [
                row["price"]
                for row in table
                if row["product"] == key
                and row["valid_from"] <= moment
                and (row["valid_to"] is None or moment < row["valid_to"])
            ]
            assert str(valid) == str([] if expected is None else [expected])


# -- the warehouse and the joins ---------------------------------------------------------------------------------------


def test_rows_for_the_warehouse(tmp_path: Path) -> None:
    dimension = make(tmp_path, history=True, time=pa.int64(), unknown_member={"name": "?"})
    dimension.assign(keys("a", "b", "c"))
    table, complete = dimension.rows()
    assert (table.num_rows, complete) == (4, True)
    assert "observed" not in table.column_names
    start = dimension.store.version
    dimension.apply(timed(("update", "b", 1.0, 10), ("update", "b", 2.0, 20)), effective="at")
    dimension.assign(keys("d"))
    table, complete = dimension.rows(since=start)
    assert (sorted(table["product"].to_pylist()), complete) == (["b", "b", "d"], False)
    assert dimension.rows(since=dimension.store.version)[0].num_rows == 0
    at_start = dimension.rows(version=start)[0]
    assert sorted(map(str, at_start["product"].to_pylist())) == ["None", "a", "b", "c"], "a version as it was"
    between = dimension.rows(since=start, version=start + 1)[0]
    assert between["product"].to_pylist() == ["b", "b"]
    dimension.store.vacuum(keep=1)
    assert dimension.rows(since=start)[1], "the versions between are gone: all of them"


def test_a_join_looks_it_up(tmp_path: Path) -> None:
    dimension = make(tmp_path)
    dimension.apply(change(("insert", "a", "ant", 1.0)))
    sales = pa.record_batch({"product": ["a", "x"]})
    joined = pa.Table.from_batches(join([sales], dimension.store, on="product", columns=["sk"], memory="1MB"))
    assert joined.sort_by("product")["sk"].to_pylist() == [1, None]


def test_many_small_updates_stay_few(tmp_path: Path) -> None:
    dimension = make(tmp_path)
    for number in range(25):
        dimension.assign(keys(f"k{number}"))
    assert len(dimension.store.delta_levels()) <= 8
    assert dimension.rows()[0].num_rows == 25
