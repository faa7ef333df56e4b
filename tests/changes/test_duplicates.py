"""Keys that were seen: against a set, within a batch and across batches, replays included."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.budget import Budget
from semistream.changes import SeenKeys
from semistream.errors import ArgumentError, SchemaError

KEY = pa.schema([("shop", pa.string()), ("sale", pa.int64())])


def batch(*keys: tuple[str | None, int | None], **more: list[Any]) -> pa.Table:
    shops, sales = zip(*keys, strict=True) if keys else ((), ())
    return pa.table({"shop": pa.array(shops, pa.string()), "sale": pa.array(sales, pa.int64()), **more})


def test_the_first_of_a_batch_counts(tmp_path: Path) -> None:
    seen = SeenKeys(tmp_path / "seen", KEY)
    rows = batch(("a", 1), ("b", 1), ("a", 1), ("a", None), ("a", None), at=[3, 2, 1, 0, 0])
    assert seen.new(rows).tolist() == [True, True, False, True, True]
    assert seen.new(rows, order="at").tolist() == [False, True, True, True, True]
    assert seen.new(rows.slice(0, 0)).tolist() == []
    unordered = batch(("a", 1), ("a", 1), ("a", 1), at=[None, 2, 2])
    assert seen.new(unordered, order="at").tolist() == [False, True, False]
    with pytest.raises(ArgumentError, match="order='when' is no column"):
        seen.new(rows, order="when")


def test_what_was_added_is_known(tmp_path: Path) -> None:
    seen = SeenKeys(tmp_path / "seen", KEY)
    rows = batch(("a", 1), ("b", 1), ("a", 1), (None, 1))
    assert seen.add(rows.filter(seen.new(rows)), token=("app", 0)) == 2
    again = SeenKeys(tmp_path / "seen", KEY)
    assert again.new(batch(("a", 1), ("c", 1), ("b", 1))).tolist() == [False, True, False]
    assert again.add(batch(("z", 1)), token=("app", 0)) == 0, "a replay"
    assert again.new(batch(("z", 1))).tolist() == [True]
    assert again.add(rows, token=("app", 1)) == 0, "known already"
    assert again.store.properties == {"applied.app": "1"}


def test_keys_in_pieces(tmp_path: Path) -> None:
    """Only the last piece says that all are there; whoever was killed before it does all of it again."""
    seen = SeenKeys(tmp_path / "seen", KEY)
    pieces = [batch(("a", 1), ("b", 1)), batch(("a", 1), ("c", 1)), batch(("d", 1))]

    def broken() -> Iterator[pa.Table]:
        yield from pieces[:2]
        raise ConnectionError

    with pytest.raises(ConnectionError):
        seen.add_pieces(broken(), ("app", 0))
    assert (seen.store.rows, seen.store.properties) == (2, {})
    assert seen.add_pieces(pieces, ("app", 0)) == 2
    assert (seen.store.rows, seen.store.properties) == (4, {"applied.app": "0"})
    assert seen.add_pieces([batch(("z", 1))], ("app", 0)) == 0, "a replay"
    assert seen.new(batch(("z", 1), ("d", 1))).tolist() == [True, False]


def test_another_key(tmp_path: Path) -> None:
    SeenKeys(tmp_path / "seen", KEY)
    with pytest.raises(SchemaError, match="holds the keys"):
        SeenKeys(tmp_path / "seen", pa.schema([("sale", pa.int64())]))
    with pytest.raises(ArgumentError, match=r"must be a pyarrow\.Schema"):
        SeenKeys(tmp_path / "other", "sale")


def test_memory_stays_bounded(tmp_path: Path) -> None:
    """Many keys in little memory: what is listed in memory becomes part of the base, old versions go."""
    seen = SeenKeys(tmp_path / "seen", pa.schema([("sale", pa.int64())]), memory="400KB")
    for number in range(12):
        table = pa.table({"sale": range(number * 5_000, (number + 1) * 5_000)})
        assert seen.new(table).all()
        assert seen.add(table, token=("app", number)) == 5_000
        listed = sum(level.changed.nbytes for level in seen.store.delta_levels() if level.changed is not None)
        assert listed <= 100_000
    assert seen.store.rows == 60_000
    assert not seen.new(pa.table({"sale": range(60_000)})).any()
    assert len(seen.store.versions()) <= 22


def test_memory_is_granted(tmp_path: Path) -> None:
    """Pieces of keys, updates that are folded and new bases take what they need of one budget, and give it back."""
    seen = SeenKeys(tmp_path / "seen", pa.schema([("sale", pa.string())]))
    budget = Budget("400KB")
    for number in range(6):
        pieces = [
            pa.table({"sale": [f"{n:040}" for n in range(first, first + 500)]})
            for first in range(number * 5_000, (number + 1) * 5_000, 500)
        ]
        assert seen.add_pieces(pieces, ("app", number), budget) == 5_000
        assert seen.listed_bytes <= 100_000
    assert seen.store.rows == 30_000
    assert 0 < budget.peak <= budget.total
    assert budget.used == 0


BATCHES = st.lists(
    st.lists(st.tuples(st.sampled_from([None, "", "a", "b"]), st.sampled_from([None, 0, 1])), max_size=8), max_size=5
)


@settings(max_examples=15, deadline=None)
@given(batches=BATCHES)
def test_as_a_set(batches: list[list[tuple[str | None, int | None]]], tmp_path_factory: pytest.TempPathFactory) -> None:
    seen = SeenKeys(tmp_path_factory.mktemp("seen") / "seen", KEY)
    model: set[tuple[str | None, int | None]] = set()
    for number, rows in enumerate(batches):
        fresh = set(model)
        expected = []
        for key in rows:
            expected.append(None in key or key not in fresh)
            fresh.add(key)
        table = batch(*rows)
        mask = seen.new(table)
        assert mask.tolist() == expected
        assert seen.new(table).tolist() == expected, "asking changes nothing"
        for _ in range(2):
            seen.add(table.filter(pa.array(mask)), token=("app", number))
        model |= {key for key in rows if None not in key}
        assert seen.store.rows == len(model)
