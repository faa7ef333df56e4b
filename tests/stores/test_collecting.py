"""Rows collected from pages through a small staging: all of them, in few pieces, and never past its end."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from semistream.rows import Projection
from semistream.stores import MasterStore

_ROWS = 20_000
_GUARD = 64


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> MasterStore:
    chooser = np.random.default_rng(3)
    words = [None if size > 90 else "x" * size for size in chooser.integers(0, 100, _ROWS)]
    table = pa.table(
        {
            "key": np.arange(_ROWS) // 2,
            "number": np.arange(_ROWS),
            "wide": pa.array([b"w" * 60] * _ROWS, pa.binary(60)),
            "word": pa.array(words, pa.string()),
        }
    )
    return MasterStore.build(table, tmp_path_factory.mktemp("collecting") / "store", key="key")


@pytest.mark.parametrize(
    "columns, pages, pieces",
    [(["number"], 1, 60), (["number", "word"], 2, 700), (["number", "wide", "word"], 1, 2_000)],
    ids=["numbers", "text", "everything"],
)
def test_pieces(store: MasterStore, columns: list[str], pages: int, pieces: int) -> None:
    projection = Projection(store.layout, columns)
    memory = np.full(pages * store.facts.largest_page + _GUARD, 0xA5, np.uint8)
    staging = memory[:-_GUARD]
    codes, _ = store.codec.encode([pa.array(np.arange(_ROWS // 2))])
    found, made = [], 0
    whole = np.empty(len(codes), np.bool_)
    for index, rows in store.reader().collect(codes, projection, staging, len(codes), whole):
        made += 1
        assert rows.offsets[-1] <= len(staging)
        numbers = projection.target.unpack(rows.addresses, 0).to_pylist()
        assert [number // 2 for number in numbers] == index.tolist()
        found += numbers
    assert sorted(found) == list(range(_ROWS))
    assert (memory[-_GUARD:] == 0xA5).all()
    # A piece ends when the next page might not fit: not long before the staging is full.
    assert made <= pieces, made
