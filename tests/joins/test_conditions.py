"""Joins on other conditions than equality, each held to a loop over all pairs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream import MasterStore, join, make_join
from semistream.errors import ArgumentError, SchemaError
from semistream.joins import JOINS
from semistream.joins.conditions import Band, Between, Condition, Inequality, Similar
from semistream.lookup.spec import HOWS

SCANS = [name for name, kind in JOINS.items() if kind.takes_conditions]
Test = Callable[[Any, tuple[Any, ...]], bool]
DAY = dt.timedelta(days=1)
NAMES = ["Meyer", "Meier", "Mayr", "Maier", "Huber", "Hubert", "Öz", "", "Li", "Lee", "Leé"]


@cache
def distance(one: str, other: str) -> int:
    """Levenshtein, the textbook's table."""
    before = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        now = [i]
        for j, b in enumerate(other, 1):
            now.append(min(before[j] + 1, now[-1] + 1, before[j - 1] + (a != b)))
        before = now
    return before[-1]


CONDITIONS: list[tuple[Condition, Test]] = [
    (Inequality("x", "a"), lambda x, m: x < m[0]),
    (Inequality("x", "a", "<="), lambda x, m: x <= m[0]),
    (Inequality("x", "a", ">"), lambda x, m: x > m[0]),
    (Inequality("f", "g", ">="), lambda x, m: x >= m[0]),
    (Band("x", "a", 2), lambda x, m: abs(x - m[0]) <= 2),
    (Band("x", "id", 3, 0), lambda x, m: m[0] <= x <= m[0] + 3),
    (Band("f", "g", 0.25), lambda x, m: m[0] - 0.25 <= x <= m[0] + 0.25),
    (Band("x", "g", 1.5), lambda x, m: abs(x - m[0]) <= 1.5),
    (Band("day", "day", DAY), lambda x, m: abs(x - m[0]) <= DAY),
    (Between("x", "a", "b"), lambda x, m: m[0] <= x <= m[1]),
    (Similar("name", "who", 1), lambda x, m: distance(x, m[0]) <= 1),
    (Similar("name", "who", 0), lambda x, m: x == m[0]),
]


def some(chooser: np.random.Generator, values: Any, kind: pa.DataType) -> pa.Array:
    return pa.array(list(values), kind, mask=chooser.random(len(values)) < 0.1)


def master_of(chooser: np.random.Generator, rows: int) -> pa.Table:
    low = chooser.integers(-20, 20, rows)
    return pa.table(
        {
            "id": pa.array(chooser.permutation(rows), pa.int64()),
            "a": some(chooser, low, pa.int64()),
            "b": some(chooser, low + chooser.integers(0, 6, rows), pa.int64()),
            "g": some(chooser, np.where(chooser.random(rows) < 0.1, np.nan, low / 4), pa.float64()),
            "day": some(chooser, low.astype(np.int32), pa.date32()),
            "who": some(chooser, chooser.choice(NAMES, rows), pa.string()),
            "pad": pa.array(["p" * 60] * rows),
        }
    )


def stream_of(chooser: np.random.Generator, rows: int) -> pa.RecordBatch:
    x = chooser.integers(-25, 25, rows)
    return pa.record_batch(
        {
            "row": pa.array(np.arange(rows)),
            "x": some(chooser, x, pa.int32()),
            "f": some(chooser, np.where(chooser.random(rows) < 0.1, np.nan, x / 4), pa.float64()),
            "day": some(chooser, x.astype(np.int32), pa.date32()),
            "name": some(chooser, chooser.choice(NAMES, rows), pa.string()),
        }
    )


def loop_over_all(stream: pa.RecordBatch, master: pa.Table, condition: Condition, test: Test, how: str) -> list[Any]:
    """(row, id) of every pair, by the plainest of all joins."""
    rows = master.to_pylist()
    result: list[Any] = []
    for tuple_ in stream.to_pylist():
        value = tuple_[condition.stream]
        found = []
        for other in rows if value is not None and value == value else []:
            compared = tuple(other[name] for name in condition.master_columns)
            if all(one is not None and one == one for one in compared) and test(value, compared):
                found.append(other["id"])
        if how == "inner" or (how == "left" and found):
            result += [(tuple_["row"], one) for one in found]
        elif how == "left" or (how == "semi" and found) or (how == "anti" and not found):
            result.append((tuple_["row"], None))
    return sorted(result, key=str)


def answer_of(made: Any, how: str) -> list[Any]:
    names = ["row", "id"] if how in ("left", "inner") else ["row"]
    rows = [one for batch in made for one in batch.select(names).to_pylist()]
    return sorted(((one["row"], one.get("id")) for one in rows), key=str)


def asked() -> list[Any]:
    """Every condition with one ``how``, in turn; with all of them in the long tests."""
    return [
        pytest.param(case, how, id=f"{condition}-{how}", marks=[pytest.mark.long] if (case + turn) % len(HOWS) else [])
        for case, (condition, _) in enumerate(CONDITIONS)
        for turn, how in enumerate(HOWS)
    ]


@pytest.mark.parametrize("case, how", asked())
def test_the_same_pairs_as_a_loop_over_all(tmp_path: Path, case: int, how: str) -> None:
    condition, test = CONDITIONS[case]
    chooser = np.random.default_rng(case)
    master, stream = master_of(chooser, 250), stream_of(chooser, 90)
    store = MasterStore.build(master, tmp_path / "s", key="id")
    expected = loop_over_all(stream, master, condition, test, how)
    for number, name in enumerate(SCANS):
        options: dict[str, Any] = {"condition": condition, "how": how, "suffix": "_m", "algorithm": name}
        made: Any = make_join(stream.schema, store, memory=("9KB", "20KB", "1MB")[number % 3], **options)
        assert answer_of(made.join([stream.slice(0, 33), stream.slice(33, 0), stream.slice(33)]), how) == expected, name
        made.check()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 60), width=st.integers(0, 8), memory=st.integers(9_000, 40_000))
def test_any_band(tmp_path_factory: pytest.TempPathFactory, seed: int, rows: int, width: int, memory: int) -> None:
    chooser = np.random.default_rng(seed)
    master, stream = master_of(chooser, rows), stream_of(chooser, 40)
    store = MasterStore.build(master, tmp_path_factory.mktemp("band") / "s", key="id")
    condition = Band("x", "a", width)
    made = join([stream], store, condition=condition, suffix="_m", memory=memory)
    expected = loop_over_all(stream, master, condition, lambda x, m: abs(x - m[0]) <= width, "left")
    assert answer_of(made, "left") == expected


def test_bands_do_not_pass_the_ends_of_64_bits(tmp_path: Path) -> None:
    ends = [-(2**63), -(2**63) + 5, 2**63 - 5, 2**63 - 1]
    store = MasterStore.build(pa.table({"id": range(4), "a": ends}), tmp_path / "s", key="id")
    made = join([pa.record_batch({"x": ends})], store, condition=Band("x", "a", 4), how="inner", memory="1MB")
    pairs = {(row["x"], row["a"]) for batch in made for row in batch.to_pylist()}
    assert pairs == {*zip(ends, ends, strict=True), (ends[2], ends[3]), (ends[3], ends[2])}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> MasterStore:
    return MasterStore.build(master_of(np.random.default_rng(1), 20), tmp_path_factory.mktemp("c") / "s", key="id")


@pytest.mark.parametrize(
    "options, error, words",
    [
        (
            {"condition": Band("x", "a", 1), "algorithm": "sweep"},
            ArgumentError,
            "'sweep' cannot join on a condition.*mesh",
        ),
        ({"condition": Band("x", "a", 1), "algorithm": "ssbj"}, ArgumentError, "cannot join on a condition"),
        ({"condition": Band("x", "a", 1), "on": {"x": "id"}}, ArgumentError, "either on=.* or condition="),
        ({}, ArgumentError, "either on=.* or condition="),
        ({"condition": Band("y", "a", 1)}, ArgumentError, "stream has no column 'y'.*'x'"),
        ({"condition": Band("x", "zz", 1)}, ArgumentError, "master has no column 'zz'"),
        ({"condition": Band("x", "who", 1)}, SchemaError, "is int32, the master's is string"),
        ({"condition": Band("x", "a", 0.5)}, ArgumentError, "band of 0.5 does not suit"),
        ({"condition": Band("x", "a", DAY)}, ArgumentError, "does not suit a column of type int64"),
        ({"condition": Similar("x", "who")}, SchemaError, "similarity compares strings"),
        ({"condition": "x < a"}, ArgumentError, "must be one of semistream.joins.conditions"),
        ({"condition": Band("x", "a", 1), "ordered": True}, ArgumentError, "ordered=True goes with on="),
        ({"on": {"row": "id"}, "ordered": True, "algorithm": "sweep"}, ArgumentError, "cannot keep the stream's order"),
    ],
    ids=str,
)
def test_what_cannot_be_compared_is_refused_by_name(
    small: MasterStore, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    stream = stream_of(np.random.default_rng(1), 3).cast(
        pa.schema(
            [("row", pa.int64()), ("x", pa.int32()), ("f", pa.float64()), ("day", pa.date32()), ("name", pa.string())]
        )
    )
    with pytest.raises(error, match=words):
        join([stream], small, suffix="_m", memory="1MB", **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Inequality("x", "a", "=="),
        lambda: Band("x", "a", "wide"),
        lambda: Between("x", "a"),
        lambda: Similar("x", "a", -1),
    ],
)
def test_wrong_conditions(make: Callable[[], Condition]) -> None:
    with pytest.raises(ArgumentError):
        make()
