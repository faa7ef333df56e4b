"""Sizes in words, and a budget that is never overrun."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semistream.budget import Budget, format_bytes, parse_bytes
from semistream.errors import ArgumentError, MemoryBudgetError


@pytest.mark.parametrize(
    "memory, size",
    [
        (1, 1),
        (268435456, 268435456),
        ("512", 512),
        ("512b", 512),
        ("1k", 1000),
        ("256MB", 256_000_000),
        ("256mb", 256_000_000),
        (" 1.5 GiB ", 3 << 29),
        ("1KiB", 1024),
        ("2 tb", 2 * 10**12),
        ("10%", 200),
        ("0.5 %", 10),
        ("150%", 3000),
    ],
)
def test_sizes(memory: int | str, size: int) -> None:
    assert parse_bytes(memory, whole=2000) == size


@pytest.mark.parametrize(
    "memory",
    ["", "much", "1 parsec", "MB", "-1", "1e6", "1,000", "0", "0MB", "0.1b", 0, -5, 1.5, True, None, [], b"1MB"],
    ids=repr,
)
def test_sizes_that_are_none(memory: object) -> None:
    with pytest.raises(ArgumentError, match=r"memory=.*(256MB)"):
        parse_bytes(memory, whole=2000)  # type: ignore[arg-type]


def test_a_share_needs_a_whole() -> None:
    with pytest.raises(ArgumentError, match="'10%' is a share") as raised:
        parse_bytes("10%")
    assert "share of the master" not in str(raised.value)  # it would be refused once more
    with pytest.raises(ArgumentError, match="less than a byte"):
        parse_bytes("1%", whole=10)


def test_a_size_is_called_by_its_name() -> None:
    with pytest.raises(ArgumentError, match=r"^hold_bytes='much' is not a size; "):
        parse_bytes("much", name="hold_bytes")


@pytest.mark.parametrize(
    "count, text", [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_550_000, "1.6 MB"), (3 * 10**9, "3.0 GB")]
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert format_bytes(count) == text


def test_grants() -> None:
    budget = Budget(1000)
    assert budget.grant("cache", 600)
    assert not budget.grant("window", 401)
    assert budget.grant("window", 400)
    assert (budget.used, budget.free, budget.peak) == (1000, 0, 1000)
    budget.release("cache", 100)
    budget.release("window")
    assert (budget.used, budget.free, budget.peak) == (500, 500, 1000)
    budget.release("never held")
    with pytest.raises(MemoryBudgetError, match="cache gives back 501 bytes but holds 500"):
        budget.release("cache", 501)


def test_a_refused_need_names_what_it_takes() -> None:
    budget = Budget("1kB")
    budget.require("index", 700)
    with pytest.raises(
        MemoryBudgetError, match=r"memory=1,000 .* buffer needs 4,096 beside 700 for index; give at least 4,796"
    ):
        budget.require("buffer", 4096)
    assert budget.used == 700


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 400), st.booleans()), max_size=40))
def test_whatever_is_asked_the_total_is_kept(steps: list[tuple[str, int, bool]]) -> None:
    budget = Budget(1000)
    held = dict.fromkeys("abc", 0)
    most = 0
    for part, size, back in steps:
        if back:
            size = min(size, held[part])
            budget.release(part, size)
            held[part] -= size
        elif budget.grant(part, size):
            held[part] += size
        most = max(most, sum(held.values()))
        assert budget.used == sum(held.values()) <= 1000
        assert budget.free == 1000 - budget.used
        assert budget.peak == most


def test_a_part_is_resized_or_stays() -> None:
    budget = Budget(1000)
    assert budget.resize("cache", 600)
    assert budget.resize("cache", 200)
    assert not budget.resize("cache", 1001)
    assert (budget.parts["cache"], budget.free, budget.peak) == (200, 800, 600)
