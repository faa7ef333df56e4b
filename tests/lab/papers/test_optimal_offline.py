"""The least loss there is: equal to trying everything, and how close the strategies come to it."""

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.errors import ArgumentError
from semistream.shedding import STRATEGIES, Strategy
from semistream.shedding.topw import TopW
from semistream_lab.papers.optimal_offline import optimal_offline

STREAMS = st.lists(st.integers(0, 9), min_size=1, max_size=9)


@settings(max_examples=150, deadline=None)
@given(counts=STREAMS, loop_rows=st.integers(1, 6), most=st.integers(1, 4))
def test_equals_trying_everything(counts: list[int], loop_rows: int, most: int) -> None:
    found = optimal_offline(counts, loop_rows, most)
    assert found.loss == least_loss(counts, loop_rows, most)
    choice = np.isin(np.arange(len(counts)), found.rows).tolist()
    assert possible(choice, loop_rows, most)
    assert sum(count for count, kept in zip(counts, choice, strict=True) if not kept) == found.loss


@settings(max_examples=100, deadline=None)
@given(
    counts=st.lists(st.integers(0, 50), min_size=1, max_size=60),
    loop_rows=st.integers(1, 12),
    most=st.integers(1, 8),
)
def test_no_strategy_loses_less(counts: list[int], loop_rows: int, most: int) -> None:
    best = optimal_offline(counts, loop_rows, most).loss
    for kind in STRATEGIES.values():
        assert best <= loss_of(kind(), np.array(counts, float), loop_rows, most)


def test_topw_is_nearly_as_good_on_a_random_stream() -> None:
    # As in the paper: rows of many matches that are not clustered in time.
    counts = np.round(100 / np.sqrt(np.random.default_rng(3).integers(1, 1001, 2000)))
    best = optimal_offline(counts, 20, 10).loss
    assert loss_of(TopW(), counts, 20, 10) < best + 0.05 * counts.sum()


def test_stalling_pays_when_the_rows_that_count_are_clustered() -> None:
    counts = [1, 1, 1, 1, 3, 3, 3, 3]  # the case of the paper's figure 8
    assert loss_of(TopW(), np.array(counts, float), 4, 2) == 8
    assert optimal_offline(counts, 4, 2).loss == 2


@pytest.mark.parametrize(
    "counts, loop_rows, most, words",
    [
        ([1, 2], 0, 1, "loop_rows=0"),
        ([1, 2], 1, 0, "most=0"),
        ([1, 2], 1.5, 1, "loop_rows=1.5"),
        ([1, -2], 1, 1, "counts"),
        ([[1, 2]], 1, 1, "counts"),
        ([float("nan")], 1, 1, "counts"),
    ],
)
def test_wrong_arguments(counts: list[float], loop_rows: int, most: int, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        optimal_offline(counts, loop_rows, most)


def loss_of(strategy: Strategy, counts: npt.NDArray[np.float64], loop_rows: int, most: int) -> float:
    """What a strategy loses when the join takes ``most`` rows every ``loop_rows`` rows."""
    lost = 0.0
    for start in range(0, len(counts), loop_rows):
        some = counts[start : start + loop_rows]
        kept = strategy.keep(len(some), most, some, np.random.default_rng(start))
        lost += some.sum() - some[kept.rows].sum()
    return lost


def possible(choice: list[bool], loop_rows: int, most: int) -> bool:
    """Can a buffer of ``most`` rows take these, handed over when it is full and the join has asked?"""
    stored = asked = 0
    for row, kept in enumerate(choice):
        if stored == most and row >= asked:
            stored, asked = 0, row + loop_rows
        if kept and stored == most:
            return False
        stored += kept
    return True


def least_loss(counts: list[int], loop_rows: int, most: int) -> int:
    return min(
        sum(count for count, kept in zip(counts, choice, strict=True) if not kept)
        for choice in itertools.product((False, True), repeat=len(counts))
        if possible(list(choice), loop_rows, most)
    )
