"""Every join on every kind of store, key, master, stream and budget: the same rows as the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from semistream.budget import Budget
from semistream.joins import JOINS
from semistream.joins.contract import Join, Profile
from semistream.lookup.spec import HOWS, How
from semistream.stores import MasterStore
from semistream.stores.contract import Store
from tests.joins import wrong_join
from tests.joins.conformance import (
    KEYS,
    LAYOUTS,
    MASTERS,
    OUTPUTS,
    STORES,
    STREAMS,
    Question,
    build,
    check_join,
    master_table,
    question,
)
from tests.pairwise import all_pairs
from tests.tables import assert_same_rows, table_of

CASES = all_pairs(
    {
        "key": list(KEYS),
        "master": MASTERS,
        "stream": STREAMS,
        "how": HOWS,
        "output": OUTPUTS,
        "layout": LAYOUTS,
        "memory": ("least", "small", "large"),
    }
)
OURS = ("whole", "inl", "sweep")
QUICK = {"sweep": 1, "whole": 4, "inl": 4}  # one in so many cases; of the papers' joins one in twelve
RARE = {"paged": 1}  # of the quick cases one in so many, of other stores one in eight
Stores = Callable[..., tuple[Store, pa.Table]]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    """Stores by kind, key, shape, layout and bits of the hash, each built once."""
    root = tmp_path_factory.mktemp("stores")
    built: dict[tuple[object, ...], tuple[Store, pa.Table]] = {}

    def get(kind: str, key: str, shape: str, layout: str = "shuffled", hash_bits: int = 64) -> tuple[Store, pa.Table]:
        wanted = kind, key, shape, layout, hash_bits
        if wanted not in built:
            master = master_table(key, shape, layout)
            built[wanted] = STORES[kind](master, root / str(len(built)), hash_bits), master
        return built[wanted]

    return get


def skip_unable(join: str, store: Store) -> None:
    if not JOINS[join].needs <= store.abilities:
        pytest.skip(f"{join} is refused by such a store")


def asked() -> list[Any]:
    """Every join and store with every case. The papers' joins share their code: a twelfth of the cases, in turn, is
    quick enough; so is a quarter where a join keeps nothing between rows. All of them come with the long tests.
    """
    found = []
    for turn, join in enumerate(JOINS):
        for number, case in enumerate(CASES):
            for kind in STORES:
                marks = [pytest.mark.long] if (number - turn) % (QUICK.get(join, 12) * RARE.get(kind, 8)) else []
                found.append(pytest.param(kind, join, *case, id="-".join([kind, join, *case]), marks=marks))
    return found


@pytest.mark.parametrize("kind, join, key, master, stream, how, output, layout, memory", asked())
def test_same_rows_as_the_model(
    stores: Stores,
    kind: str,
    join: str,
    key: str,
    master: str,
    stream: str,
    how: How,
    output: str,
    layout: str,
    memory: str,
) -> None:
    store, table = stores(kind, key, master, layout)
    skip_unable(join, store)
    check_join(JOINS[join], question(store, table, key, stream, how, output), memory)


def in_order() -> list[Any]:
    """Joins that keep the stream's order, with all cases in the long tests."""
    return [
        pytest.param(
            kind,
            name,
            *case,
            id="-".join([kind, name, *case]),
            marks=[pytest.mark.long] if (turn + at) % (16 * RARE.get(kind, 8)) else [],
        )
        for turn, (name, join) in enumerate(JOINS.items())
        for at, case in enumerate(CASES)
        for kind in STORES
        if join.keeps_order
    ]


@pytest.mark.parametrize("kind, join, key, master, stream, how, output, layout, memory", in_order())
def test_same_rows_in_order(
    stores: Stores,
    kind: str,
    join: str,
    key: str,
    master: str,
    stream: str,
    how: How,
    output: str,
    layout: str,
    memory: str,
) -> None:
    store, table = stores(kind, key, master, layout)
    skip_unable(join, store)
    asked = replace(question(store, table, key, stream, how, output), ordered=True)
    check_join(JOINS[join], asked, memory)


HASHED = ("string", "text and NaN", "decimal 30,3")
FEW = {"sweep": 1, "whole": 2, "inl": 2}  # one in so many; colliding keys are slow, all are compared with all


def hashed() -> list[Any]:
    """Every join with every ``how`` and hashed key; of the papers' joins, a few of them in turn are quick enough."""
    return [
        pytest.param(
            kind,
            join,
            how,
            key,
            marks=[pytest.mark.long] if (turn + a + b) % (FEW.get(join, 16) * RARE.get(kind, 8)) else [],
            id=f"{key}-{how}-{join}-{kind}",
        )
        for turn, join in enumerate(JOINS)
        for a, how in enumerate(HOWS)
        for b, key in enumerate(HASHED)
        for kind in STORES
    ]


@pytest.mark.parametrize("kind, join, how, key", hashed())
def test_collisions_are_no_matches(stores: Stores, kind: str, join: str, how: How, key: str) -> None:
    store, table = stores(kind, key, "text", "shuffled", 4)
    skip_unable(join, store)
    for memory, stream in (("least", "single rows"), ("small", "some matched"), ("large", "some matched")):
        check_join(JOINS[join], question(store, table, key, stream, how, "all columns"), memory)


@pytest.mark.parametrize(
    "join, key",
    [
        pytest.param(join, key, marks=[pytest.mark.long] if join not in OURS and (turn + at) % 3 else [])
        for turn, join in enumerate(JOINS)
        for at, key in enumerate(["string", "text and NaN"])
    ],
)
def test_one_of_two_colliding_keys_changes(tmp_path: Path, join: str, key: str) -> None:
    store, master = build(tmp_path / "store", key, "text", hash_bits=3)
    names = list(store.key)
    gone = master.slice(0, 3)
    store = store.delete(gone.select(names))
    changed = master.slice(5, 2).set_column(len(names), "v", pa.array([-1, -2]))
    store = store.upsert(changed)
    kept = _without(_without(master, gone, names), changed, names)
    now = pa.concat_tables([kept, changed])
    assert store.rows == now.num_rows
    assert_same_rows(table_of(store.scan(), store.schema), now)
    for how in HOWS:
        check_join(JOINS[join], question(store, now, key, "all matched", how, "all columns"), "large")
    check_join(JOINS[join], question(store, now, key, "single rows", "left", "all columns"), "small")


def _without(table: pa.Table, others: pa.Table, names: list[str]) -> pa.Table:
    asked = {_spelled(row, names) for row in others.to_pylist()}
    return table.filter(pa.array([_spelled(row, names) not in asked for row in table.to_pylist()]))


def _spelled(row: dict[str, object], names: list[str]) -> str:
    return repr([row[name] for name in names])


@pytest.mark.parametrize("join", JOINS)
def test_joins_read_deltas(tmp_path: Path, join: str) -> None:
    store, master = build(tmp_path / "store", "int64", "duplicates")
    for start in (0, 100, 200):
        some = master.filter(pc.is_in(master["k0"], master["k0"].slice(start, 20).combine_chunks()))
        store = store.upsert(some)
    gone = master["k0"].slice(150, 10).combine_chunks()
    store = store.delete(gone)
    now = master.filter(pc.invert(pc.is_in(master["k0"], gone)))
    for memory in ("least", "small", "large"):
        check_join(JOINS[join], question(store, now, "int64", "some matched", "left", "all columns"), memory)


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize(
    "master, stream",
    [
        (pa.string(), pa.large_string()),
        (pa.large_string(), pa.string()),
        (pa.string(), pa.dictionary(pa.int32(), pa.string())),
        (pa.string(), pa.string_view()),
        (pa.binary(), pa.large_binary()),
        (pa.binary(), pa.binary_view()),
        (pa.int64(), pa.dictionary(pa.int8(), pa.int64())),
        (pa.timestamp("us", "UTC"), pa.timestamp("us", "Asia/Tokyo")),
    ],
    ids=str,
)
def test_layouts_of_arrow_that_mean_the_same(
    tmp_path: Path, join: str, master: pa.DataType, stream: pa.DataType
) -> None:
    values = [b"%d" % n if "binary" in str(master) else str(n) if "string" in str(master) else n for n in range(9)]
    table = pa.table({"k": pa.array(values[:6], master), "v": range(6)})
    store = MasterStore.build(table, tmp_path / "store", key="k")
    keys = pa.array(values[3:], stream)
    batch = pa.record_batch({"s": keys, "row": pa.array(range(6))})
    for how in HOWS:
        plain = pa.record_batch({"s": pa.array(values[3:], master), "row": pa.array(range(6))})
        asked = Question(store, table, plain.schema, [plain], {"s": "k"}, how)
        made = JOINS[join](store, Question(store, table, batch.schema, [], {"s": "k"}, how).plan, Budget(1 << 24))
        rows = [row for one in made.join([batch]) for row in one.column("row").to_pylist()]
        assert sorted(rows) == sorted(asked.answer.column("row").to_pylist())
        made.check()


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("join", JOINS)
def test_predictions_are_sensible(stores: Stores, join: str, kind: str) -> None:
    store, table = stores(kind, "int64", "unique", "shuffled")
    plan = question(store, table, "int64", "some matched", "left", "all columns").plan
    for memory in (JOINS[join].least_bytes(store.facts, plan), 1 << 24):
        said = JOINS[join].predict(store.facts, plan, memory, Profile())
        assert said.tuples_per_read >= 1
        assert 0 <= said.hit_ratio <= 1


# -- the suite bites ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", wrong_join.ALL, ids=lambda kind: kind.name)
def test_wrong_joins_are_caught(stores: Stores, kind: type[Join]) -> None:
    store, table = stores("paged", "text and NaN", "duplicates", "shuffled", 4)
    for stream in ("null keys", "duplicates", "some matched"):
        check_join(JOINS["whole"], question(store, table, "text and NaN", stream, "left", "all columns"))
    with pytest.raises(wrong_join.CAUGHT):  # noqa: PT012 - one of the streams shows it
        for stream in ("null keys", "duplicates", "some matched"):
            check_join(kind, question(store, table, "text and NaN", stream, "left", "all columns"))
