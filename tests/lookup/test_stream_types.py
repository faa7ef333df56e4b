"""Columns of the stream that no join looks into: carried whatever their type, or refused by name before any row."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from semistream import join
from semistream.errors import SchemaError
from semistream.joins import JOINS
from semistream.stores import MasterStore
from semistream.stores.memory import MemoryStore

VIEW, BYTES = pa.string_view(), pa.binary_view()
CARRIED: dict[pa.DataType, tuple[pa.DataType, list[Any]]] = {
    VIEW: (pa.string(), ["x", None, "more than twelve bytes"]),
    pa.list_(VIEW): (pa.list_(pa.string()), [["x", None], None, []]),
    pa.large_list(BYTES): (pa.large_list(pa.binary()), [[b"x", None], None, []]),
    pa.list_(VIEW, 2): (pa.list_(pa.string(), 2), [["x", "y"], None, ["z", None]]),
    pa.struct([("a", VIEW), ("b", pa.int64())]): (
        pa.struct([("a", pa.string()), ("b", pa.int64())]),
        [{"a": "x", "b": 1}, None, {"a": None, "b": 2}],
    ),
    pa.map_(VIEW, pa.list_(VIEW)): (pa.map_(pa.string(), pa.list_(pa.string())), [[("a", ["x"])], None, []]),
    pa.list_view(pa.int64()): (pa.list_view(pa.int64()), [[1, 2], None, []]),
    pa.large_list_view(VIEW): (pa.large_list_view(VIEW), [["x"], None, []]),  # Arrow can take rows from it
    pa.list_(pa.field("other", pa.int64(), nullable=False)): (
        pa.list_(pa.field("other", pa.int64(), nullable=False)),
        [[1], None, []],
    ),
}
STORE = MemoryStore.build(pa.table({"id": [1, 2], "p": [0.5, 1.5]}), key="id")


@pytest.mark.parametrize("kind", CARRIED, ids=str)
@pytest.mark.parametrize("how", ["left", "semi"])
def test_views_are_carried_as_plain_values_wherever_they_are(kind: pa.DataType, how: Any) -> None:
    plain, values = CARRIED[kind]
    batch = pa.record_batch({"id": [2, 1, 7], "c": pa.array(values, kind)})
    found = pa.Table.from_batches(join([batch], STORE, on="id", how=how, memory="4MB"))
    found.validate(full=True)
    assert found.schema.field("c").type == plain
    rows = dict(zip(found["id"].to_pylist(), found["c"].to_pylist(), strict=True))
    assert rows == dict(zip([2, 1, 7] if how == "left" else [2, 1], values, strict=False))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> MasterStore:
    master = pa.table({"id": range(2000), "p": pa.array(range(2000)).cast(pa.float64())})
    return MasterStore.build(master, tmp_path_factory.mktemp("types") / "store", key="id")


@pytest.mark.parametrize("algorithm", JOINS)
def test_every_join_carries_unions_and_categories(store: MasterStore, algorithm: Any) -> None:
    union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])])
    categories = pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int8()), pa.array(["x", "y"], VIEW))
    batch = pa.record_batch({"id": [2, 1], "union": union, "category": categories})
    found = pa.Table.from_batches(join([batch, batch.slice(2)], store, on="id", memory="4MB", algorithm=algorithm))
    rows = zip(found["id"].to_pylist(), found["union"].to_pylist(), found["p"].to_pylist(), strict=True)
    assert sorted(rows) == [(1, "b", 1.0), (2, 1, 2.0)]
    assert sorted(map(str, found["category"].to_pylist())) == ["x", "y"]


def test_unions_and_extension_types_are_carried() -> None:
    union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])])
    tensor = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int32(), [2]), pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2))
    )
    batch = pa.record_batch({"id": [2, 1], "union": union, "tensor": tensor, "view": pa.array(["x", None], VIEW)})
    found = pa.Table.from_batches(join([batch], STORE, on="id", memory="4MB"))
    assert [field.type for field in found.schema][1:4] == [union.type, tensor.type, pa.string()]
    assert sorted(zip(found["id"].to_pylist(), found["union"].to_pylist(), strict=True)) == [(1, "b"), (2, 1)]


RUN = pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array(["x"]))
IN_STRUCT, IN_LIST = pa.StructArray.from_arrays([RUN], ["a"]), pa.ListArray.from_arrays([0, 1], RUN)


@pytest.mark.parametrize("column", [RUN, IN_STRUCT, IN_LIST], ids=lambda column: str(column.type))
def test_what_arrow_cannot_take_rows_from_is_refused_by_name(column: pa.Array) -> None:
    batch = pa.record_batch([pa.array([1]), column], names=["id", "c"])
    with pytest.raises(SchemaError, match=r"the stream's column 'c' is .*run_end_encoded.*run_end_decode.*drop it"):
        list(join([batch], STORE, on="id", memory="4MB"))


def test_a_master_says_what_it_cannot_hold() -> None:
    for kind in (RUN.type, pa.list_view(pa.int64()), pa.sparse_union([pa.field("a", pa.int64())]), pa.list_(VIEW)):
        with pytest.raises(SchemaError, match=r"column 'c' has type .* which a store cannot hold"):
            MemoryStore.build(pa.table({"id": [1], "c": pa.nulls(1, kind)}), key="id")
    months = pa.array([(1, 1, 1)], pa.month_day_nano_interval())
    assert MemoryStore.build(pa.table({"id": [1], "c": months}), key="id").facts.rows == 1
    with pytest.raises(SchemaError, match=r"key column 'c' is month_day_nano_interval, .* cannot be compared"):
        MemoryStore.build(pa.table({"c": months, "v": [1]}), key="c")


def test_a_source_that_is_read_in_a_thread_may_have_any_of_these_types() -> None:
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    categories = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array(["x"], VIEW))  # as Polars has them
    for column in (union, categories):
        batch = pa.record_batch({"id": [1], "c": column})
        found = pa.Table.from_batches(join(iter([batch, batch]), STORE, on="id", memory="4MB"))
        assert found["c"].to_pylist() == column.to_pylist() * 2
