"""A master in memory: what it holds, how it is cut into pages, and that it goes to other processes."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest

from semistream import Shed, join
from semistream.budget import Budget
from semistream.errors import ArgumentError, EmptyMasterError
from semistream.joins.papers.pcsrj import ParallelCacheJoin, PcsrjSettings
from semistream.stores import MemoryStore
from semistream.stores.fetching import get, scan
from tests.joins.conformance import conform, key_names, master_table, question
from tests.tables import assert_same_rows, table_of


def test_rows_without_a_key_are_left_out() -> None:
    store = MemoryStore.build(pa.table({"k": [3, None, 1, 3], "v": ["a", "b", "c", "d"]}), key="k")
    assert (store.facts.rows, store.facts.keys, store.facts.unique) == (3, 2, False)
    assert get(store, [3, 7]).to_pydict() == {"k": [3, 3], "v": ["a", "d"]}
    with pytest.raises(ArgumentError, match="no column 'x'"):
        MemoryStore.build(pa.table({"k": [1]}), key="x")


def test_an_empty_master() -> None:
    store = MemoryStore.build(pa.table({"k": pa.array([], pa.int64()), "v": pa.array([], pa.string())}), key="k")
    assert (store.facts.rows, store.facts.pages, list(scan(store))) == (0, 0, [])
    assert get(store, [1]).num_rows == 0


def test_pages_hold_whole_groups() -> None:
    master = master_table("int64", "hot key")
    store = MemoryStore.build(master, key="k0", page_bytes=512)
    low, high = store.locate(np.unique(store.codes))
    assert (high - low == 1).all()
    assert store.facts.pages == len(np.unique(low)) > 5
    assert store.facts.largest_page > store.facts.page_bytes  # that of the hot key
    assert_same_rows(table_of(scan(store, buffer_bytes=1), store.schema), master)


def test_nodes_in_other_processes() -> None:
    master = master_table("string", "duplicates")
    store = MemoryStore.build(master, key=key_names(master))
    assert_same_rows(table_of(scan(pickle.loads(pickle.dumps(store))), store.schema), master)
    asked = question(store, master, "string", "some matched", "left", "all columns")
    conform(ParallelCacheJoin(store, asked.plan, Budget(1 << 24), PcsrjSettings(2, "processes")), asked)


def test_joined_like_any_other() -> None:
    store = MemoryStore.build(pa.table({"id": [1, 2], "price": [1.5, 4.0]}), key="id")
    sales = pa.record_batch({"id": [2, 9]})
    joined = pa.Table.from_batches(join([sales], store, on="id", memory="1MB"))
    assert joined.sort_by("id").to_pydict() == {"id": [2, 9], "price": [4.0, None]}
    with pytest.raises(EmptyMasterError, match="is empty"):
        join([sales], MemoryStore.build(pa.table({"id": pa.array([], pa.int64())}), key="id"), on="id")
    with pytest.raises(ArgumentError, match="store on disk"):
        join([sales], store, on="id", shed=Shed("topw", to="shed", max_rows_per_second=1))
