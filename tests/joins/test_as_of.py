"""Lookups as of a moment, ``multiple`` and ``status``: every join gives the rows of the model."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semistream.as_of import AsOf
from semistream.budget import Budget
from semistream.errors import FanOutError
from semistream.joins import JOINS
from semistream.joins.papers.pcsrj import ParallelCacheJoin, PcsrjSettings
from semistream.lookup.spec import HOWS, How
from semistream.stores import MasterStore
from tests.joins.conformance import TIMES, Question, check_join, conform, history_question, history_table, moments

OURS = ("whole", "inl", "sweep")
OTHERS = sorted(set(JOINS) - set(OURS))
IN_ORDER = [name for name, kind in JOINS.items() if kind.keeps_order]
MEMORY = ("least", "small", "large")
Histories = Callable[..., tuple[MasterStore, pa.Table]]


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Histories:
    """Stores by key, type of the times, overlaps and bits of the hash, each built once."""
    root = tmp_path_factory.mktemp("histories")
    built: dict[tuple[object, ...], tuple[MasterStore, pa.Table]] = {}

    def get(key: str, times: str, *, overlaps: bool = False, hash_bits: int = 64) -> tuple[MasterStore, pa.Table]:
        wanted = key, times, overlaps, hash_bits
        if wanted not in built:
            master = history_table(key, times, "overlaps" if overlaps else "versions")
            names = [name for name in master.column_names if name.startswith("k")]
            store = MasterStore.build(master, root / str(len(built)), key=names, hash_bits=hash_bits)
            built[wanted] = store, master
        return built[wanted]

    return get


def asked(some: list[str], keep: int) -> list[Any]:
    """Joins, hows, kinds of keys and budgets; one in ``keep`` of them, in turn, is quick enough, more of our joins."""
    found = []
    cases = list(itertools.product(HOWS, ("int64", "string", "two"), MEMORY))
    for turn, join in enumerate(some):
        for number, case in enumerate(cases):
            later = (number + turn) % (5 if join in OURS else keep)
            marks = [pytest.mark.long] if later else []
            found.append(pytest.param(join, *case, marks=marks, id="-".join((join, *case))))
    return found


@pytest.mark.parametrize("join, how, key, memory", asked(list(JOINS), 11))
def test_versions_of_the_moment(histories: Histories, join: str, how: How, key: str, memory: str) -> None:
    times = list(TIMES)[(len(join) + HOWS.index(how)) % len(TIMES)]
    store, master = histories(key, times)
    check_join(JOINS[join], history_question(store, master, key, times, how), memory)


@pytest.mark.parametrize("join, how, key, memory", asked(IN_ORDER, 17))
def test_in_the_order_of_the_stream(histories: Histories, join: str, how: How, key: str, memory: str) -> None:
    store, master = histories(key, "timestamp", overlaps=True)
    for multiple in ("all", "first"):
        question = history_question(store, master, key, "timestamp", how, ordered=True, multiple=multiple)
        check_join(JOINS[join], question, memory)


@pytest.mark.parametrize("times", TIMES)
def test_every_type(histories: Histories, times: str) -> None:
    store, master = histories("int64", times, overlaps=True)
    for how in HOWS:
        for join in OURS:
            check_join(JOINS[join], history_question(store, master, "int64", times, how), "large")


@pytest.mark.parametrize("join", JOINS)
def test_the_times_need_not_go_out(histories: Histories, join: str) -> None:
    store, master = histories("string", "date32")
    asked: list[tuple[list[str], How]] = [([], "left"), (["w"], "inner"), (["k0", "valid_to"], "left")]
    for columns, how in asked:
        check_join(JOINS[join], history_question(store, master, "string", "date32", how, columns=columns))


@pytest.mark.parametrize("join", JOINS)
def test_status(histories: Histories, join: str) -> None:
    """Also with defaults, which alone would not tell a row without a match."""
    store, master = histories("int64", "numbers", overlaps=True)
    options: dict[str, Any] = {"status": "_lookup_status", "columns": ["w"]}
    asked = history_question(store, master, "int64", "numbers", "left", **options)
    check_join(JOINS[join], asked)
    check_join(JOINS[join], replace(asked, as_of=None, defaults={"w": -1.0}, multiple="first"), "large")
    if JOINS[join].keeps_order:
        check_join(JOINS[join], replace(asked, defaults={"w": -1.0}, ordered=True), "small")


@pytest.mark.parametrize("join", JOINS)
def test_the_first_of_several(histories: Histories, join: str) -> None:
    """In the order in which the store got them; a history longer than a page comes in several pieces."""
    asked: list[tuple[str, How, str]]
    asked = [("int64", "left", "small"), ("string", "inner", "large"), ("string", "anti", "large")]
    for key, how, memory in asked:
        store, master = histories(key, "timestamp", overlaps=True, hash_bits=6)
        question = history_question(store, master, key, "timestamp", how, multiple="first")
        check_join(JOINS[join], question, memory)
        check_join(JOINS[join], replace(question, as_of=None), "large")


@pytest.mark.parametrize("join", JOINS)
def test_several_are_an_error(histories: Histories, join: str) -> None:
    store, master = histories("int64", "date32")
    question = history_question(store, master, "int64", "date32", "left", multiple="error")
    conform(check_join(JOINS[join], question), question)  # no versions overlap
    store, master = histories("int64", "date32", overlaps=True)
    asked: list[tuple[How, AsOf | None]] = [("left", AsOf("event")), ("semi", None)]
    for how, as_of in asked:
        question = replace(history_question(store, master, "int64", "date32", how, multiple="error"), as_of=as_of)
        made = JOINS[join](store, question.plan, Budget(1 << 24))
        with pytest.raises(FanOutError, match=r"stream row with s0=-?\d+.* has more than one match.*'all'.*'first'"):
            list(made.join(question.batches))
        rows = [batch.filter(pc.equal(batch["s0"], pc.max(batch["s0"]))) for batch in question.batches]  # absent keys
        conform(made, replace(question, batches=rows))  # the join can go on


def test_the_key_is_named(tmp_path: Path) -> None:
    day = pa.array([10, 20], pa.date32())
    master = pa.table({"k": ["a", "a"], "valid_from": day, "valid_to": pa.nulls(2, pa.date32()), "v": [1, 2]})
    store = MasterStore.build(master, tmp_path / "store", key="k")
    for name in ("whole", "sweep"):
        for at, fails in ((15, False), (20, True)):
            batch = pa.record_batch({"s": ["a"], "sold": pa.array([at], pa.date32())})
            question = Question(store, master, batch.schema, [batch], {"s": "k"}, as_of=AsOf("sold"), multiple="error")
            if not fails:
                check_join(JOINS[name], question)
                continue
            with pytest.raises(FanOutError, match=r"s='a', sold=datetime\.date\(1970, 1, 21\).*valid_from <= sold"):
                check_join(JOINS[name], question)


@pytest.mark.long
def test_an_error_crosses_from_another_process(histories: Histories) -> None:
    store, master = histories("int64", "date32", overlaps=True)
    question = history_question(store, master, "int64", "date32", "left", multiple="error")
    made = ParallelCacheJoin(store, question.plan, Budget(1 << 24), PcsrjSettings(nodes=2, workers="processes"))
    with pytest.raises(FanOutError):
        list(made.join(question.batches))


@pytest.mark.parametrize("join", JOINS)
def test_a_history_that_grew(tmp_path: Path, join: str) -> None:
    """An update replaces the whole history of a key."""
    master = history_table("int64", "timestamp", keys=40)
    store = MasterStore.build(master, tmp_path / "store", key="k0")
    chosen = pc.is_in(master["k0"], master["k0"].slice(0, 30).combine_chunks())
    changed, at = master.filter(chosen), master.schema.get_field_index("valid_from")
    longer = pc.subtract(changed["valid_from"], pa.scalar(10 * 86_400_000_000, pa.duration("us")))
    changed = changed.set_column(at, master.schema.field(at), longer)
    now = pa.concat_tables([master.filter(pc.invert(chosen)), changed])
    store = store.upsert(changed)
    for how in ("left", "anti"):
        check_join(JOINS[join], history_question(store, now, "int64", "timestamp", how, keys=40), "large")


# -- any history, any stream -------------------------------------------------------------------------------------------

NUMBERS = st.none() | st.integers(-5, 25)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    keys = st.integers(0, 5) | st.none()
    return {
        "text": draw(st.booleans()),
        "times": draw(st.sampled_from(sorted(TIMES))),
        "master": draw(st.lists(st.tuples(keys, NUMBERS, NUMBERS), max_size=40)),
        "stream": draw(st.lists(st.tuples(keys, NUMBERS), max_size=50)),
        "cut": draw(st.integers(1, 25)),
        "how": draw(st.sampled_from(HOWS)),
        "multiple": draw(st.sampled_from(["all", "all", "first", "error"])),
        "hash_bits": draw(st.sampled_from([1, 64])),
        "extra_bytes": draw(st.integers(0, 40_000)),
    }


def column(numbers: list[int | None], kind: pa.DataType) -> pa.Array:
    whole = np.array([0 if number is None else number for number in numbers], np.int64)
    return moments(whole, kind, np.array([number is None for number in numbers], np.bool_))


def question_of(case: dict[str, Any], folder: str) -> Question:
    ours, theirs = TIMES[case["times"]]
    kind = pa.string() if case["text"] else pa.int64()

    def keys(numbers: list[int | None]) -> pa.Array:
        return pa.array([str(n) if n is not None and case["text"] else n for n in numbers], kind)

    master = pa.table(
        {
            "k": keys([key for key, _, _ in case["master"]]),
            "begin": column([begin for _, begin, _ in case["master"]], theirs),
            "end": column([end for _, _, end in case["master"]], theirs),
            "n": pa.array(range(len(case["master"])), pa.int64()),
        }
    )
    whole = pa.record_batch(
        {
            "s": keys([key for key, _ in case["stream"]]),
            "at": column([at for _, at in case["stream"]], ours),
            "row": pa.array(range(len(case["stream"])), pa.int64()),
        }
    )
    batches = [whole.slice(start, case["cut"]) for start in range(0, whole.num_rows, case["cut"])]
    store = MasterStore.build(master, Path(folder) / "store", key="k", hash_bits=case["hash_bits"])
    return Question(
        store,
        master,
        whole.schema,
        batches,
        {"s": "k"},
        case["how"],
        as_of=AsOf("at", "begin", "end"),
        multiple=case["multiple"],
        status="status" if case["how"] == "left" else None,
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases(), others=st.lists(st.sampled_from(OTHERS), min_size=2, max_size=2, unique=True))
def test_any_history(case: dict[str, Any], others: list[str]) -> None:
    """Our joins and two others, cold and then with what they kept from the first stream."""
    with tempfile.TemporaryDirectory() as folder:
        question = question_of(case, folder)
        every = replace(question, multiple="all").model("inner")["row"].to_pylist()
        fails = question.multiple == "error" and len(set(every)) < len(every)
        for kind in (JOINS[name] for name in (*OURS, *others)):
            plan = question.plan
            join = kind(
                question.store, plan, Budget(kind.least_bytes(question.store.facts, plan) + case["extra_bytes"])
            )
            if fails:
                with pytest.raises(FanOutError):
                    list(join.join(question.batches))
                continue
            conform(join, question)
            conform(join, question)
