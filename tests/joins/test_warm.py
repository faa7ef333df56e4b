"""One join object, several streams: cold, warm, and after its master has changed, over all options that decide rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semistream.budget import Budget
from semistream.errors import FanOutError
from semistream.joins import JOINS
from semistream.joins.contract import Join
from semistream.joins.sweep.join import SweepJoin
from semistream.lookup.spec import HOWS, MULTIPLE
from semistream.stores import MasterStore
from tests.joins.conformance import HISTORIES, Question, conform, history_question, history_table
from tests.pairwise import all_pairs

Master = tuple[MasterStore, pa.Table]
Masters = Callable[..., tuple[Master, Master]]
Options = dict[str, Any]

OPTIONS: list[Options] = [
    {"how": how, "multiple": multiple, "as_of": as_of, "status": status, "defaults": defaults, "ordered": ordered}
    for how, multiple, as_of, status, defaults, ordered in itertools.product(
        HOWS, MULTIPLE, (False, True), (None, "found"), (None, {"w": -1.5}), (False, True)
    )
    if how == "left" or (status is None and defaults is None)
]
REST = all_pairs(
    {
        "key": ("int64", "string", "two", "float64", "decimal 10,2"),
        "master": HISTORIES,
        "payload": ("numbers", "text"),
        "bits": ("3", "64"),
        "columns": ("all", "some", "none"),
        "cuts": ("even", "gaps", "single"),
        "memory": ("least", "small", "large"),
    }
)
QUICK = {"sweep": 1, "whole": 5, "inl": 5}  # one in so many combinations; of the papers' joins one in 23


@pytest.fixture(scope="module")
def masters(tmp_path_factory: pytest.TempPathFactory) -> Masters:
    """Histories, each before and after some of its keys changed, went and came; each built once."""
    root = tmp_path_factory.mktemp("masters")
    built: dict[tuple[str, ...], tuple[Master, Master]] = {}

    def get(*wanted: str) -> tuple[Master, Master]:
        if wanted not in built:
            built[wanted] = _built(root / str(len(built)), *wanted)
        return built[wanted]

    return get


def _built(path: Path, key: str, shape: str, payload: str, bits: str) -> tuple[Master, Master]:
    whole = history_table(key, "timestamp", shape, text=payload == "text")
    names = [name for name in whole.column_names if name.startswith("k")]
    at = _numbered(whole, names)
    parts = {turn: whole.filter(pa.array([number % 5 == turn for number in at])) for turn in range(5)}
    before = pa.concat_tables([parts[turn] for turn in range(4)])  # a fifth of the keys comes later
    store = MasterStore.build(before, path, key=names, hash_bits=int(bits))
    changed = parts[1].set_column(parts[1].column_names.index("v"), "v", pa.array([-1] * parts[1].num_rows, pa.int64()))
    after = pa.concat_tables([parts[0], changed, parts[3], parts[4]])
    newer = store.upsert(pa.concat_tables([changed, parts[4]])).delete(parts[2].select(names))
    return (store, before), (newer, after)


def _numbered(table: pa.Table, names: list[str]) -> list[int]:
    """A number for each row, equal for equal keys."""
    seen: dict[str, int] = {}
    return [seen.setdefault(repr(list(row.values())), len(seen)) for row in table.select(names).to_pylist()]


def asked(master: Master, options: Options, key: str, columns: str, cuts: str) -> Question:
    only = {"some": ["w"], "none": []}.get(columns)
    if options["defaults"] and only == []:
        only = ["w"]
    question = history_question(*master, key, "timestamp", options["how"], columns=only)
    question = replace(question, **{name: value for name, value in options.items() if name != "as_of"})
    question = replace(question, as_of=question.as_of if options["as_of"] else None)
    whole = pa.concat_batches(question.batches)
    sizes = {"even": [45] * 4, "gaps": [0, 70, 0, 0, 1, 89, 0], "single": [1] * 40 + [120]}[cuts]
    ends = list(itertools.accumulate(sizes, initial=0))
    return replace(question, batches=[whole.slice(start, size) for start, size in zip(ends, sizes, strict=False)])


def several_matches(question: Question) -> list[int]:
    """The stream's rows with more than one match."""
    rows = replace(question, multiple="all").model("inner", []).column("row").to_pylist()
    return sorted({row for row in rows if rows.count(row) > 1})


def answers(join: Join, question: Question) -> None:
    """As the model says; where that is an error, the rows without fault come right afterwards, from the same object."""
    several = several_matches(question) if question.multiple == "error" else []
    if several:
        with pytest.raises(FanOutError, match="more than one match"):
            list(join.join(iter(question.batches)))
        kept = pa.concat_batches(question.batches)
        keep = pa.array([row not in several for row in kept.column("row").to_pylist()])
        question = replace(question, batches=[kept.filter(keep)])
    conform(join, question)


def run(masters: Masters, name: str, options: Options, rest: tuple[str, ...]) -> None:
    key, shape, payload, bits, columns, cuts, memory = rest
    before, after = masters(key, shape, payload, bits)
    first = asked(before, options, key, columns, cuts)
    kind: Any = JOINS[name]

    def budget(question: Question) -> Budget:
        least = kind.least_bytes(question.store.facts, question.plan)
        return Budget({"least": least, "small": least + 6_000, "large": 1 << 22}[memory])

    join = kind(first.store, first.plan, budget(first))
    for _ in range(3):
        answers(join, first)
    then = asked(after, options, key, columns, cuts)
    newer = kind(then.store, then.plan, budget(then))
    for _ in range(2):
        answers(newer, then)
    if isinstance(join, SweepJoin) and join.cache is not None:  # a cache that lives on, as on Spark
        cache = join.cache
        if then.store.facts.unique == first.store.facts.unique:
            assert isinstance(then.store, MasterStore)
            changed = then.store.changed_since(first.store.version)
            assert changed is not None
            cache.discard(changed)
            for _ in range(2):
                answers(SweepJoin(then.store, then.plan, Budget(1 << 22), cache=cache), then)


def cases() -> list[Any]:
    """Every join with every combination of options, and other cases of the rest in turn."""
    found = []
    for turn, (name, kind) in enumerate(JOINS.items()):
        some = [options for options in OPTIONS if kind.keeps_order or not options["ordered"]]
        for number, options in enumerate(some):
            rest = REST[(number * 7 + turn) % len(REST)]
            later = (number + turn) % QUICK.get(name, 23) > 0
            words = [str(value) for value in options.values() if value not in (None, False)]
            found.append(
                pytest.param(
                    name, options, rest, marks=[pytest.mark.long] if later else [], id="-".join([name, *words, *rest])
                )
            )
    return found


@pytest.mark.parametrize("name, options, rest", cases())
def test_the_same_rows_cold_warm_and_after_an_update(
    masters: Masters, name: str, options: Options, rest: tuple[str, ...]
) -> None:
    run(masters, name, options, rest)


def simple_cases() -> list[Any]:
    """All of sweep's; of the other joins one in six, in turn."""
    return [
        pytest.param(name, how, multiple, marks=[pytest.mark.long] if name != "sweep" and (turn + at) % 6 else [])
        for turn, name in enumerate(JOINS)
        for at, (how, multiple) in enumerate(itertools.product(HOWS, MULTIPLE))
    ]


@pytest.mark.parametrize("name, how, multiple", simple_cases())
def test_rows_of_fixed_width_and_unique_keys(masters: Masters, name: str, how: str, multiple: str) -> None:
    """The quickest path of a cache: one row per key, nothing to compare."""
    options = {"how": how, "multiple": multiple, "as_of": False, "status": None, "defaults": None, "ordered": False}
    run(masters, name, options, ("int64", "single", "numbers", "64", "some", "even", "large"))
