"""Changes applied to a store: the last of each key, one version a call, once a token, whoever else writes."""

from __future__ import annotations

import gzip
import json
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.changes import apply_changes, read_changes
from semistream.changes.applying import publish
from semistream.errors import ArgumentError, BadRecordsError, ConcurrentWriteError, SchemaError
from semistream.stores import MasterStore
from tests.tables import table_of


def content(store: MasterStore) -> dict[Any, Any]:
    return {row["k"]: row["v"] for row in table_of(store.scan(), store.schema).to_pylist()}


@pytest.fixture
def store(tmp_path: Path) -> MasterStore:
    return MasterStore.build(pa.table({"k": [1, 2, 3], "v": ["a", "b", "c"]}), tmp_path / "store", key="k")


def changes(*rows: tuple[str, int | None, str | None], **more: list[Any]) -> pa.Table:
    ops, keys, values = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {
            "_op": pa.array(ops, pa.string()),
            "k": pa.array(keys, pa.int64()),
            "v": pa.array(values, pa.string()),
            **more,
        }
    )


def test_one_version_with_everything(store: MasterStore) -> None:
    done = apply_changes(store, changes(("I", 4, "d"), ("U", 1, "A"), ("D", 2, None), ("delete", 99, None)))
    assert (done.inserted, done.updated, done.deleted, done.rejects) == (1, 1, 1, [])
    assert done.store.version == 2
    assert done.store.manifest.change == "apply"
    assert content(done.store) == {1: "A", 3: "c", 4: "d"}


def test_the_last_change_of_a_key_counts(store: MasterStore) -> None:
    rows = [("insert", 5, "x"), ("delete", 5, None), ("update", 1, "y"), ("delete", 2, None), ("insert", 2, "z")]
    assert content(apply_changes(store, changes(*rows)).store) == {1: "y", 2: "z", 3: "c"}
    by_time = changes(("update", 1, "late"), ("update", 1, "early"), at=[2, 1])
    assert content(apply_changes(store, by_time, order="at").store)[1] == "late"


def test_a_token_is_applied_once(store: MasterStore) -> None:
    first = apply_changes(store, changes(("update", 1, "A")), token=("prices", 7))
    for batch in (7, 6, 0):
        again = apply_changes(store, changes(("update", 1, "other")), token=("prices", batch))
        assert (again.applied, again.store.version) == (False, 2)
    assert apply_changes(store, changes(("update", 1, "B")), token=("stock", 7)).applied
    nothing = apply_changes(store, changes(), token=("prices", 8))
    assert nothing.store.properties == {"applied.prices": "8", "applied.stock": "7"}
    assert nothing.store.version == first.store.version + 2
    assert nothing.store.compact().properties == nothing.store.properties
    with pytest.raises(ArgumentError, match=r"token=\('a',\) is not usable"):
        apply_changes(store, changes(), token=("a",))  # type: ignore[arg-type]


def test_bad_rows_are_returned(store: MasterStore) -> None:
    given_rows = changes(("update", 1, "A"), ("what", 2, "B"), ("update", None, "C"))
    done = apply_changes(store, given_rows)
    assert [(one.line, one.reason) for one in done.rejects] == [
        (2, "its operation 'what' is none of insert, update, upsert, delete, truncate"),
        (3, "key column 'k' is NULL"),
    ]
    assert json.loads(done.rejects[0].record) == {"_op": "what", "k": 2, "v": "B"}
    assert content(done.store)[1] == "A"
    with pytest.raises(BadRecordsError, match="2 of 3 records are bad"):
        apply_changes(store, given_rows, max_bad_rate=0.5)
    assert store.latest().version == 2


def test_what_the_rows_lack(store: MasterStore) -> None:
    with pytest.raises(ArgumentError, match=r"no column 'action', which op='action' asks for"):
        apply_changes(store, changes(), op="action")
    with pytest.raises(ArgumentError, match=r"no column 'v', which the store asks for"):
        apply_changes(store, pa.table({"_op": ["update"], "k": [1]}))
    with pytest.raises(SchemaError, match=r"column 'v' is list"):
        apply_changes(store, pa.table({"_op": ["update"], "k": [1], "v": [[{"x": 1}]]}))


def test_an_emptied_table(store: MasterStore) -> None:
    done = apply_changes(store, changes(("update", 1, "A"), ("truncate", None, None), ("insert", 2, "B")))
    assert (done.inserted, done.updated, done.deleted) == (0, 1, 2)
    assert content(done.store) == {2: "B"}


def test_other_writers_are_no_obstacle(store: MasterStore) -> None:
    """Two threads, each with changes of its own: nothing is lost."""

    def write(first: int) -> None:
        for number in range(6):
            apply_changes(store, changes(("insert", first + number, "x")), token=(f"app{first}", number))

    threads = [threading.Thread(target=write, args=(first,)) for first in (100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = content(store.latest())
    assert set(found) == {1, 2, 3, *range(100, 106), *range(200, 206)}
    assert len(store.latest().delta_levels()) <= 9


def test_retries_end(store: MasterStore) -> None:
    calls = []

    def never(newest: MasterStore) -> tuple[MasterStore, None]:
        calls.append(newest.version)
        raise ConcurrentWriteError("another was first")

    with pytest.raises(ConcurrentWriteError):
        publish(store, never, attempts=3)
    assert len(calls) == 3


OPS = st.sampled_from(["insert", "update", "upsert", "delete"])
BATCHES = st.lists(
    st.lists(st.tuples(OPS, st.sampled_from(["", "a", "b", "ab"]), st.text("xy", max_size=3)), max_size=8), max_size=6
)


@settings(max_examples=15, deadline=None)
@given(batches=BATCHES)
def test_as_a_dictionary(batches: list[list[tuple[str, str, str]]], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Texts as keys, a hash of three bits: most keys share their code."""
    path = tmp_path_factory.mktemp("changes") / "store"
    empty = pa.table({"k": pa.array([], pa.string()), "v": pa.array([], pa.string())})
    store = MasterStore.build(empty, path, key="k", hash_bits=3)
    model: dict[str, str] = {}
    for number, batch in enumerate(batches):
        rows = {name: [row[place] for row in batch] for place, name in enumerate(("_op", "k", "v"))}
        before = set(model)
        for op, key, value in batch:
            if op == "delete":
                model.pop(key, None)
            else:
                model[key] = value
        table = pa.table(rows, schema=pa.schema(dict.fromkeys(rows, pa.string())))
        for _ in range(2):  # the second time is a replay
            done = apply_changes(store, table, token=("x", number))
            assert content(done.store) == model
            store = done.store
        touched = {key for _, key, _ in batch}
        assert not done.applied
        assert {k for k in model if k not in touched} == {k for k in before if k not in touched}


# -- files -------------------------------------------------------------------------------------------------------------

PRICES = pa.schema([("k", pa.int64()), ("v", pa.decimal128(9, 2)), ("name", pa.string())])


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('op,k,v,name\nI,1,1.50,\nU,x,2,b\nU,2,,"c,d"\nU,3\nD,4,never,\nU,5,1.234,e\n')
    found = read_changes(path, PRICES, ["k"], format="plain", op="op")
    assert found.rows.select(["_op", "k", "v", "name"]).to_pylist() == [
        {"_op": "insert", "k": 1, "v": Decimal("1.50"), "name": ""},
        {"_op": "update", "k": 2, "v": None, "name": "c,d"},
        {"_op": "delete", "k": 4, "v": None, "name": ""},
    ]
    assert sorted(one.reason for one in found.rejects) == [
        "column 'k': 'x' is no int64",
        "column 'v': '1.234' is no decimal128(9, 2)",
        "it has 2 fields instead of 4",
    ]
    assert found.records == 6


def test_json_lines_and_gzip(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"
    first.write_text('{"_op": "u", "k": 1, "v": 1.1, "name": "n", "at": 3}\n{"_op": "d", "k": 2, "at": 1}\n')
    more = '{"_op": "u", "k": 1, "v": "2.2", "name": null, "at": 2}\n{"_op": "u", "k": 3, "at": 4}\n'
    with gzip.open(second, "wt") as file:
        file.write(more)
    found = read_changes([first, second], PRICES, ["k"], format="plain", order="at")
    assert found.rows.select(["k", "v"]).to_pylist() == [
        {"k": 2, "v": None},
        {"k": 1, "v": Decimal("2.20")},
        {"k": 1, "v": Decimal("1.10")},
    ]
    assert [(one.source, one.line, one.reason) for one in found.rejects] == [(str(second), 2, "it has no column 'v'")]


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table(
        {"_op": pa.array(["u", "u"]).dictionary_encode(), "k": [1, 2], "v": [1.5, 1e20], "name": ["a", "b"]}
    )
    pq.write_table(table, path)
    found = read_changes([path, path], PRICES, ["k"], format="plain")
    assert found.rows["k"].to_pylist() == [1, 1]
    assert [one.line for one in found.rejects] == [2, 4]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    odd, table, lines = tmp_path / "a.xml", tmp_path / "a.parquet", tmp_path / "a.jsonl"
    for path in (odd, table, lines):
        path.write_text("x")
    with pytest.raises(ArgumentError, match=r"changes are read from \.json"):
        read_changes(odd, PRICES, ["k"])
    with pytest.raises(ArgumentError, match="Debezium's changes are JSON lines"):
        read_changes(table, PRICES, ["k"])
    with pytest.raises(SchemaError, match="cannot be read as parquet"):
        read_changes(table, PRICES, ["k"], format="plain")
    with pytest.raises(ArgumentError, match="files of one kind"):
        read_changes([table, lines], PRICES, ["k"])
    with pytest.raises(ArgumentError, match="is not a file"):
        read_changes(tmp_path, PRICES, ["k"])
    with pytest.raises(ArgumentError, match="format='avro' is not known"):
        read_changes(lines, PRICES, ["k"], format="avro")
