"""docs/adding_a_join.md, followed as it is written: its file, its line, and the conformance suite."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semistream import MasterStore, join
from semistream.joins import JOINS
from semistream.joins.contract import Join
from semistream.lookup.spec import HOWS, How
from tests.joins.conformance import MASTERS, STREAMS, build, check_join, question
from tests.pages import followed


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The class, made from the page's own text: the file as a module of the package, the line in its registry."""
    with followed("adding_a_join.md", "semistream.joins.last_resort", tmp_path_factory.mktemp("toy")) as (_, line):
        registry: dict[str, Any] = {"_ALL": tuple(JOINS.values())}
        exec(line, registry)
        kind: type[Join] = registry["_ALL"][-1]
        JOINS[kind.name] = kind
        yield kind
        del JOINS[kind.name]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[MasterStore, pa.Table]]:
    """Stores by key and shape, each built once."""
    return cache(lambda key, shape: build(tmp_path_factory.mktemp("stores") / "s", key, shape))


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("master", MASTERS)
def test_the_toy_join_conforms(
    toy: type[Join], stores: Callable[[str, str], tuple[MasterStore, pa.Table]], master: str, how: How
) -> None:
    for number, key in enumerate(("int64", "string", "two", "float64")):
        store, table = stores(key, master)
        stream = STREAMS[(number + len(master)) % len(STREAMS)]
        for memory in ("least", "small", "large"):
            check_join(toy, question(store, table, key, stream, how, "all columns"), memory)


def test_everybody_knows_it(toy: type[Join], tmp_path: Path) -> None:
    store = MasterStore.build(pa.table({"id": [1, 2], "price": [1.5, 4.0]}), tmp_path / "s", key="id")
    made = join([pa.record_batch({"id": [2, 3]})], store, on="id", memory="1MB", algorithm=toy.name)
    assert pa.Table.from_batches(made).sort_by("id").to_pydict() == {"id": [2, 3], "price": [4.0, None]}
