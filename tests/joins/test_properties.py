"""Random masters, streams, cuts and budgets against the model; caches that are warm, tiny, shifted or out of date."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semistream.budget import Budget
from semistream.joins import JOINS
from semistream.joins.sweep.join import SweepJoin, SweepSettings
from semistream.lookup.bind import bind
from semistream.lookup.spec import HOWS, How, LookupSpec
from semistream.stores import MasterStore
from tests.joins.conformance import Question, conform

KEYS: dict[str, tuple[list[pa.DataType], Any]] = {
    "int64": ([pa.int64()], st.tuples(st.sampled_from([-(2**63), -2, -1, 0, 1, 2, 3, 2**63 - 1]))),
    "float64": ([pa.float64()], st.tuples(st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf"), -1e308]))),
    "string": ([pa.string()], st.tuples(st.text("ab\0ü", max_size=3))),
    "decimal": ([pa.decimal128(24, 1)], st.tuples(st.decimals(-3, 3, places=1))),
    "text and float": (
        [pa.string(), pa.float64()],
        st.tuples(st.sampled_from(["", "a", "b"]), st.sampled_from([0.0, -0.0, float("nan"), 2.0])),
    ),
}


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Both sides as lists of rows; every part of a key may be NULL."""
    kind = draw(st.sampled_from(sorted(KEYS)))
    types, keys = KEYS[kind]
    spoiled = st.tuples(keys, st.integers(0, 12)).map(
        lambda drawn: tuple(None if drawn[1] == i else part for i, part in enumerate(drawn[0]))
    )
    return {
        "types": types,
        "master": draw(st.lists(st.tuples(spoiled, st.none() | st.text(max_size=40)), max_size=40)),
        "stream": draw(st.lists(spoiled, max_size=60)),
        "cuts": draw(st.lists(st.integers(0, 25), min_size=1, max_size=8)),
        "how": draw(st.sampled_from(HOWS)),
        "hash_bits": draw(st.sampled_from([1, 64])),
        "extra_bytes": draw(st.integers(0, 40_000)),
    }


def question_of(case: dict[str, Any], folder: str) -> Question:
    types = case["types"]
    names = [f"k{i}" for i in range(len(types))]
    master = pa.table(
        {name: pa.array([key[i] for key, _ in case["master"]], types[i]) for i, name in enumerate(names)}
        | {
            "name": pa.array([text for _, text in case["master"]], pa.string()),
            "n": pa.array(range(len(case["master"])), pa.int64()),
        }
    )
    whole = pa.record_batch(
        {name: pa.array([key[i] for key in case["stream"]], types[i]) for i, name in enumerate(names)}
        | {"row": pa.array(range(len(case["stream"])), pa.int64())}
    )
    batches, start = [], 0
    for cut in [*case["cuts"], whole.num_rows]:
        batches.append(whole.slice(start, cut))
        start = min(whole.num_rows, start + cut)
    store = MasterStore.build(master, Path(folder) / "store", key=names, hash_bits=case["hash_bits"])
    return Question(store, master, whole.schema, batches, {name: name for name in names}, case["how"])


OURS = ("whole", "inl", "sweep")
OTHERS = sorted(set(JOINS) - set(OURS))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases(), others=st.lists(st.sampled_from(OTHERS), min_size=2, max_size=2, unique=True))
def test_any_join_equals_the_model_twice(case: dict[str, Any], others: list[str]) -> None:
    """Our joins and two others, cold and then with what they kept from the first stream."""
    with tempfile.TemporaryDirectory() as folder:
        question = question_of(case, folder)
        for kind in (JOINS[name] for name in (*OURS, *others)):
            plan = question.plan
            join = kind(
                question.store, plan, Budget(kind.least_bytes(question.store.facts, plan) + case["extra_bytes"])
            )
            conform(join, question)
            conform(join, question)


# -- caches, on larger data: the value is three times the key, so that numpy can tell right from wrong ---

KEPT = 6_000  # keys 0, 2, 4, ... are there, odd ones are absent


@pytest.fixture(scope="module", params=["fixed width", "text", "duplicates", "hashed"])
def tripled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MasterStore:
    keys = np.arange(0, 2 * KEPT, 2)
    if request.param == "duplicates":
        keys = np.repeat(keys, 1 + keys // 2 % 3)
    columns: dict[str, Any] = {"v": 3 * keys}
    if request.param in ("text", "hashed"):
        columns["note"] = [str(key) * (key % 5) for key in keys.tolist()]
    columns["k"] = [str(key) for key in keys.tolist()] if request.param == "hashed" else keys
    return MasterStore.build(pa.table(columns), tmp_path_factory.mktemp("tripled") / "store", key="k")


def sweep_join(store: MasterStore, memory: int, **options: Any) -> SweepJoin:
    stream = pa.schema([("k", store.schema.field("k").type), ("row", pa.int64())])
    plan = bind(LookupSpec(on="k", columns=["v", "note"] if "note" in store.schema.names else ["v"]), stream, store)
    return SweepJoin(store, plan, Budget(memory), **options)


def feed(join: SweepJoin, keys: npt.NDArray[np.int64], batch_rows: int = 2_000) -> None:
    """Join these keys and check every row that comes out; odd keys must stay without a match."""
    texts = pa.types.is_string(join.plan.stream.field("k").type)
    values = pa.array(keys.astype(str)) if texts else pa.array(keys)
    whole = pa.record_batch({"k": values, "row": pa.array(np.arange(len(keys)))}, schema=join.plan.stream)
    batches = [whole.slice(start, batch_rows) for start in range(0, len(keys), batch_rows)]
    made = pa.Table.from_batches(join.join(batches), join.plan.output)
    rows = made["row"].to_numpy()
    assert (made["k"].cast(pa.int64()).to_numpy() == keys[rows]).all()
    values = made["v"].to_numpy(zero_copy_only=False)
    absent = keys[rows] % 2 == 1
    assert np.isnan(values[absent]).all()
    assert (values[~absent] == 3 * keys[rows][~absent]).all()
    if "note" in made.column_names:
        notes = made["note"].to_pylist()
        assert all(note == str(key) * (key % 5) for note, key in zip(notes, keys[rows].tolist(), strict=True) if note)
        assert sum(note is None for note in notes) == absent.sum()
    copies = np.bincount(rows, minlength=len(keys))
    grouped = not join.store.facts.unique
    expected = np.where((keys % 2 == 0) & grouped, 1 + keys // 2 % 3, 1)
    assert (copies == expected).all()
    join.check()


@pytest.mark.parametrize("memory", [14_000, 30_000, 120_000])
def test_heavy_eviction(tripled: MasterStore, memory: int) -> None:
    chooser = np.random.default_rng(3)
    join = sweep_join(tripled, memory, settings=SweepSettings(wait_seconds=1e9))
    for _ in range(4):
        feed(join, 2 * (KEPT * chooser.random(1_500) ** 3).astype(np.int64))
    assert join.stats.hits > 0


def test_hot_spot_moves(tripled: MasterStore) -> None:
    chooser = np.random.default_rng(4)
    join = sweep_join(tripled, 60_000)
    ratios = []
    for start in (0, 2_000, 4_000):
        for _ in range(6):
            before = join.stats.copy()
            feed(join, 2 * (start + chooser.integers(0, 40, 2_000)))
        ratios.append(join.stats.since(before).hit_ratio)
    assert min(ratios) > 0.9


@pytest.mark.parametrize("memory", [16_000, 4_000_000])
def test_absent_keys(tripled: MasterStore, memory: int) -> None:
    """Few absent keys again and again, then thousands of different ones, which a filter of the keys should tell."""
    chooser = np.random.default_rng(5)
    join = sweep_join(tripled, memory)
    for _ in range(3):
        feed(join, chooser.integers(0, 60, 1_000))
    many = 6_000 if memory > 10**6 else 1_000
    feed(join, chooser.integers(0, 2 * KEPT, many))
    before = join.stats.copy()
    feed(join, 2 * chooser.integers(0, 10**6, many) + 2 * KEPT + 1)
    if memory > 10**6 and tripled.facts.filter_bytes:
        assert join.stats.since(before).misses < many / 10


def test_changed_keys_are_read_again(tripled: MasterStore, tmp_path: Path) -> None:
    """A cache that goes on with the next version of the master after the changed codes were dropped from it."""
    table = pa.Table.from_batches(tripled.scan())
    old = MasterStore.build(table, tmp_path / "store", key="k")
    first = sweep_join(old, 400_000)
    keys = np.arange(0, 400)
    feed(first, np.tile(keys, 4))
    assert first.cache is not None
    assert first.cache.rows > 0
    texts = pa.types.is_string(old.schema.field("k").type)
    gone = [str(key) if texts else key for key in range(0, 100, 2)]
    new = old.delete(gone)
    changed = new.changed_since(old.version)
    assert changed is not None
    first.cache.discard(changed)
    second = sweep_join(new, 400_000, cache=first.cache)
    asked = [str(key) if texts else key for key in range(0, 200, 2)]
    batch = pa.record_batch({"k": asked, "row": range(100)}, schema=second.plan.stream)
    made = pa.Table.from_batches(second.join([batch]), second.plan.output)
    found = {
        row for row, value in zip(made["row"].to_pylist(), made["v"].to_pylist(), strict=True) if value is not None
    }
    assert found == set(range(50, 100))
    assert second.stats.hits > 0


@pytest.mark.parametrize("how", HOWS)
def test_warm_equals_fresh_whatever_is_wanted(tripled: MasterStore, how: How) -> None:
    """Also where no column of the master is needed: then a cached row holds nothing but the fact that it is there."""
    stream = pa.schema([("k", tripled.schema.field("k").type), ("row", pa.int64())])
    plan = bind(LookupSpec(on="k", how=how, columns=[]), stream, tripled)
    join = SweepJoin(tripled, plan, Budget(200_000))
    texts = pa.types.is_string(stream.field("k").type)
    keys = np.random.default_rng(6).integers(0, 300, 1_000)
    batch = pa.record_batch({"k": keys.astype(str) if texts else keys, "row": range(1_000)}, schema=stream)
    counts = [sum(made.num_rows for made in join.join([batch])) for _ in range(4)]
    fresh = sum(made.num_rows for made in SweepJoin(tripled, plan, Budget(200_000)).join([batch]))
    assert counts == [fresh] * 4
    assert join.stats.matched == 4 * int((keys % 2 == 0).sum())
    join.check()
