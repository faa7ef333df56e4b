"""Memory and order of several lookups, against trying everything."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream import MasterStore
from semistream.errors import MemoryBudgetError
from semistream.pipeline import compute, keep, lookup
from semistream.pipeline import memory as module
from semistream.pipeline.memory import Allotment, Claim, arrange, divide
from semistream.pipeline.steps.contract import Step
from semistream.pipeline.steps.lookup import Lookup, OnMiss

MB = 1 << 20
UNITS = module._UNITS


@dataclass(frozen=True)
class Curve(Claim):
    """A lookup whose times are given: by units of memory."""

    times: tuple[float, ...] = field(default=())
    unit: int = 1

    def seconds(self, memory_bytes: int, tasks: int) -> tuple[float, str]:
        return self.times[min(len(self.times), memory_bytes // self.unit) - 1], "cachejoin"


@given(st.integers(1, 3), st.integers(0, 1 << 30))
@settings(max_examples=20, deadline=None)
def test_memory_is_divided_as_well_as_can_be(lookups: int, seed: int) -> None:
    chance = random.Random(seed)
    curves = []
    for _ in range(lookups):
        least = chance.randrange(0, 14)  # units below which it cannot work
        falling = sorted((chance.random() for _ in range(UNITS - least)), reverse=True)
        curves.append((*[math.inf] * least, *falling))
    store: Any = SimpleNamespace(bytes=1000)
    asked = [Curve(f"l{n}", store, None, times=times, unit=MB) for n, times in enumerate(curves)]
    best = min(
        sum(curve[units - 1] for curve, units in zip(curves, division, strict=True))
        for division in itertools.product(range(1, UNITS + 1), repeat=lookups)
        if sum(division) <= UNITS
    )
    if best == math.inf:
        with pytest.raises(MemoryBudgetError, match="too small for"):
            divide(asked, UNITS * MB, 2)
        return
    shares = divide(asked, UNITS * MB, 2)
    assert sum(share.memory_bytes for share in shares.values()) <= UNITS * MB
    assert sum(share.seconds for share in shares.values()) <= best + 1e-12


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("stores")
    for name in ("a", "b", "c", "d"):
        MasterStore.build(pa.table({"id": [1, 2], f"of_{name}": [1, 2]}), root / name, key="id")
    return {name: root / name for name in ("a", "b", "c", "d")}


def names(steps: list[Step]) -> list[str]:
    return [step.name if isinstance(step, Lookup) else type(step).__name__.lower() for step in steps]


def shares(**seconds: float) -> dict[str, Allotment]:
    return {name: Allotment(MB, value, "cachejoin") for name, value in seconds.items()}


class TestOrder:
    def test_cheapest_first_and_what_lets_go_before_what_keeps(self, stores: dict[str, Path]) -> None:
        steps = [
            lookup(stores["a"], on={"x": "id"}),
            lookup(stores["b"], on={"y": "id"}),
            lookup(stores["c"], on={"z": "id"}, on_miss="drop"),
            lookup(stores["d"], on={"x": "id"}, on_miss="drop"),
        ]
        cost = shares(a=3.0, b=1.0, c=2.0, d=1.0)
        assert names(arrange(steps, cost, {})) == ["d", "c", "b", "a"]
        # c lets half of its rows go, d only one in a thousand: 2 / 0.5 before 1 / 0.001
        assert names(arrange(steps, cost, {"c": 0.5, "d": 0.999})) == ["c", "d", "b", "a"]

    def test_the_rule_for_filters_is_the_best_order(self, stores: dict[str, Path]) -> None:
        chance = random.Random(7)
        for _ in range(50):
            steps = [lookup(stores[name], on={"x": "id"}, on_miss="drop") for name in stores]
            cost = shares(**{name: chance.uniform(0.1, 5) for name in stores})
            passing = {name: chance.uniform(0.05, 0.99) for name in stores}

            def total(order: Any, cost: Any = cost, passing: Any = passing) -> float:
                left, time = 1.0, 0.0
                for name in order:
                    time += left * cost[name].seconds
                    left *= passing[name]
                return time

            found = names(arrange(steps, cost, passing))
            assert total(found) == pytest.approx(min(map(total, itertools.permutations(stores))))

    def test_cost_never_decides_what_becomes_of_a_row(self, stores: dict[str, Path]) -> None:
        kinds: list[OnMiss] = ["hold", "drop", "redirect", "fail"]
        for order in itertools.permutations(range(4)):
            steps = [lookup(stores[name], on={"x": "id"}, on_miss=kinds[order[n]]) for n, name in enumerate(stores)]
            found = arrange(steps, shares(a=1.0, b=2.0, c=3.0, d=4.0), {})
            assert [one.on_miss for one in found if isinstance(one, Lookup)] == ["fail", "redirect", "drop", "hold"]

    def test_null_keys_are_quarantined_before_a_row_can_be_put_elsewhere(self, stores: dict[str, Path]) -> None:
        steps = [
            lookup(stores["a"], on={"x": "id"}, on_miss="redirect"),
            lookup(stores["b"], on={"y": "id"}, on_miss="redirect", on_null="quarantine"),
        ]
        assert names(arrange(steps, shares(a=1.0, b=100.0), {})) == ["b", "a"]

    def test_other_steps_stay_where_they_are(self, stores: dict[str, Path]) -> None:
        steps: list[Step] = [
            lookup(stores["a"], on={"x": "id"}),
            keep("x > 0"),
            lookup(stores["b"], on={"y": "id"}),
            lookup(stores["c"], on={"z": "id"}),
            compute(w="1"),
        ]
        found = names(arrange(steps, shares(a=9.0, b=5.0, c=1.0), {}))
        assert found == ["a", "keep", "c", "b", "compute"]

    def test_a_lookup_comes_after_the_one_whose_column_it_needs(self, stores: dict[str, Path]) -> None:
        steps = [
            lookup(stores["a"], on={"x": "id"}, rename={"of_a": "link"}),
            lookup(stores["b"], on={"link": "id"}, on_miss="drop"),
        ]
        assert names(arrange(steps, shares(a=9.0, b=1.0), {})) == ["a", "b"]


def test_memory_by_name(tmp_path: Path) -> None:
    store = MasterStore.build(pa.table({"id": range(2000), "text": ["x" * 20] * 2000}), tmp_path / "s", key="id")
    asked = [Claim("one", store, None, memory="8MB"), Claim("two", store, None)]
    found = divide(asked, 40 * MB, 2)
    assert found["one"].memory_bytes == 8_000_000 or found["one"].memory_bytes == 8 * MB
    assert 0 < found["two"].memory_bytes <= 40 * MB - found["one"].memory_bytes
    with pytest.raises(MemoryBudgetError, match=r"less than the lookups ask for by name \(one"):
        divide(asked, 4 * MB, 2)
    with pytest.raises(MemoryBudgetError, match="too small for 1 lookups at once"):
        divide(asked[1:], 1000, 2)


def test_what_grows_gets_room_to_grow(tmp_path: Path) -> None:
    """A dimension is empty when its pipeline begins; it must not be given next to nothing."""
    large = MasterStore.build(
        pa.table({"id": range(50_000), "text": ["x" * 40] * 50_000}), tmp_path / "large", key="id"
    )
    empty = MasterStore.build(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "empty", key="id")
    shares = divide([Claim("large", large, None), Claim("empty", empty, (), grows=True)], 64_000_000, 2)
    assert shares["empty"].memory_bytes >= 64_000_000 // 8
