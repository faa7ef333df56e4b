"""docs/adding_a_store.md, followed as it is written: its file, its line, and cases of the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from semistream.budget import Budget
from semistream.errors import ArgumentError
from semistream.joins import JOINS
from semistream.joins.contract import Profile
from semistream.lookup.spec import HOWS, How
from semistream.stores.fetching import get
from tests.joins.conformance import MASTERS, STORES, STREAMS, check_join, key_names, master_table, question
from tests.pages import followed

ABLE = [name for name, join in JOINS.items() if not join.needs]


@pytest.fixture(scope="module", autouse=True)
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The page's own text: the file as a module of the package, the line in the list of stores."""
    with followed("adding_a_store.md", "semistream.stores.toy", tmp_path_factory.mktemp("toy")) as (module, line):
        exec(line, {"STORES": STORES, "ToyStore": module.ToyStore, "key_names": key_names})
        yield
        del STORES["toy"]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("master", MASTERS)
def test_the_toy_store_conforms(tmp_path: Path, master: str, how: How) -> None:
    for number, key in enumerate(("int64", "string", "two", "float64")):
        table = master_table(key, master)
        store = STORES["toy"](table, tmp_path, 64 if number % 2 else 4)
        stream = STREAMS[(number + len(master)) % len(STREAMS)]
        join = JOINS[ABLE[(number + len(how)) % len(ABLE)]]
        for memory in ("least", "small", "large"):
            check_join(join, question(store, table, key, stream, how, "all columns"), memory)


def test_every_join_is_able_or_refuses_it(tmp_path: Path) -> None:
    table = master_table("int64", "duplicates")
    store = STORES["toy"](table, tmp_path, 64)
    asked = question(store, table, "int64", "some matched", "left", "all columns")
    assert {"whole", "inl", "sweep", "derakhshan"} <= set(ABLE)
    for name, join in JOINS.items():
        assert join.predict(store.facts, asked.plan, 1 << 24, Profile()).tuples_per_read >= 1
        if name in ABLE:
            check_join(join, asked)
            continue
        with pytest.raises(ArgumentError, match=f"algorithm='{name}' needs a store with pages.* ToyStore"):
            join(store, asked.plan, Budget(1 << 24))


def test_its_rows_as_a_table(tmp_path: Path) -> None:
    table = pa.table({"k": [3, 1, None, 3], "v": ["a", "b", "c", "d"]})
    store = STORES["toy"](table, tmp_path, 64)
    assert get(store, [3, 4]).to_pydict() == {"k": [3, 3], "v": ["a", "d"]}
