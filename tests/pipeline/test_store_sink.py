"""Streams of changes into stores: each batch once, as one version, bad records kept."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from semistream import MasterStore
from semistream.dimensions.dimension import Dimension
from semistream.errors import ArgumentError, BadRecordsError
from semistream.pipeline.store_sink import StoreSink


@pytest.fixture
def store(tmp_path: Path) -> MasterStore:
    table = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "price": [1.0, 2.0, 3.0]})
    return MasterStore.build(table, tmp_path / "products", key="id")


def rows(path: Path) -> dict[int, float]:
    found = MasterStore.open(path)
    return {row["id"]: row["price"] for batch in found.scan() for row in batch.to_pylist()}


def test_plain_changes_once(store: MasterStore) -> None:
    sink = StoreSink(store.path, "prices")
    changes = pa.table({"_op": ["update", "delete", "insert"], "id": [1, 2, 4], "price": [1.5, None, 4.0]})
    sink.apply(changes, 0)
    assert rows(store.path) == {1: 1.5, 3: 3.0, 4: 4.0}
    version = MasterStore.open(store.path).version
    sink.apply(changes, 0)  # a replay
    StoreSink(store.path, "prices").apply(changes, 0)
    assert MasterStore.open(store.path).version == version
    assert sink.last is not None
    assert not sink.last.applied


def test_a_new_checkpoint_passes_nothing_over(store: MasterStore) -> None:
    sink = StoreSink(store.path, "prices")
    for query, price in (("one", 7.0), ("two", 8.0)):  # both begin with batch 0
        sink.apply(pa.table({"_op": ["update"], "id": [1], "price": [price]}), 0, query)
        assert rows(store.path)[1] == price
    version = MasterStore.open(store.path).version
    sink.apply(pa.table({"_op": ["update"], "id": [1], "price": [8.0]}), 0, "two")
    assert MasterStore.open(store.path).version == version


def test_debezium(store: MasterStore, tmp_path: Path) -> None:
    def envelope(op: str, before: object, after: object, at: int) -> str:
        return json.dumps({"payload": {"op": op, "before": before, "after": after, "ts_ms": at}})

    lines = [
        envelope("u", {"id": 1, "price": 1.0}, {"id": 1, "price": 9.0}, 1_760_000_000_000),
        envelope("d", {"id": 3, "price": 3.0}, None, 1_760_000_000_001),
        None,
        "no JSON",
    ]
    sink = StoreSink(store.path, "cdc", format="debezium", rejects=tmp_path / "bad", max_bad_rate=0.5)
    sink.apply(pa.table({"value": lines}), 7)
    assert rows(store.path) == {1: 9.0, 2: 2.0}
    [file] = (tmp_path / "bad").iterdir()
    assert "no JSON" in file.read_text()
    assert sink.seconds_behind is not None
    assert sink.seconds_behind > 0
    strict = StoreSink(store.path, "cdc", format="debezium")
    with pytest.raises(BadRecordsError, match="1 of 3 records"):
        strict.apply(pa.table({"value": lines}), 8)
    assert rows(store.path) == {1: 9.0, 2: 2.0}


def test_a_dimension(tmp_path: Path) -> None:
    made = Dimension.create(
        tmp_path / "d",
        key=pa.schema({"id": pa.int64()}),
        attributes=pa.schema({"name": pa.string()}),
        surrogate="sk",
    )
    made.assign(pa.table({"id": pa.array([5], pa.int64())}))
    sink = StoreSink(tmp_path / "d", "members")
    sink.apply(pa.table({"_op": ["upsert"], "id": pa.array([5], pa.int64()), "name": ["Ada"]}), 0)
    [row] = [row for batch in MasterStore.open(tmp_path / "d").scan() for row in batch.to_pylist()]
    assert (row["sk"], row["name"], row["inferred"]) == (1, "Ada", False)


def test_arguments(store: MasterStore, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="format='avro' is not known; choose one of 'plain', 'debezium'"):
        StoreSink(store.path, "a", format="avro")
    with pytest.raises(ArgumentError, match="app='' is no name"):
        StoreSink(store.path, "")
    with pytest.raises(ArgumentError, match="say by rejects="):
        StoreSink(store.path, "a", max_bad_rate=0.1)
    with pytest.raises(ArgumentError, match="effective='since' is for dimensions"):
        StoreSink(store.path, "a", effective="since")
    with pytest.raises(ArgumentError, match="value='value' is no column"):
        StoreSink(store.path, "a", format="debezium").apply(pa.table({"x": ["{}"]}), 0)
