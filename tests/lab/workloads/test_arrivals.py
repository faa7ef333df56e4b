"""Arrivals: the average asked for, Poisson where asked for, pauses without rows, the same in every run."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.errors import ArgumentError
from semistream_lab.workloads.arrivals import Arrivals
from tests.lab.workloads.statistics import assert_drawn_from, merged

PATTERNS = [
    Arrivals(5000),
    Arrivals(5000, poisson=True),
    Arrivals(5000, on_seconds=0.5, off_seconds=2),
    Arrivals(5000, poisson=True, on_seconds=3, off_seconds=1, seed=9),
]


@pytest.mark.parametrize("arrivals", PATTERNS)
def test_the_average_is_the_rate(arrivals: Arrivals) -> None:
    assert arrivals.arrived(0) == arrivals.arrived(-1) == 0
    assert arrivals.arrived(200) == pytest.approx(1_000_000, rel=0.005)


@pytest.mark.parametrize("arrivals", PATTERNS)
def test_times_and_counts_agree(arrivals: Arrivals) -> None:
    times = arrivals.times(0, 60_000)
    assert (np.diff(times) >= 0).all()
    for row in (0, 1, 99, 20_000, 59_999):
        assert arrivals.arrived(times[row] + 1e-7) >= row + 1
        assert arrivals.arrived(times[row] - 1e-6) <= row
    assert arrivals.times(40_000, 700).tolist() == times[40_000:40_700].tolist()
    assert arrivals.times(5, 0).tolist() == []


@pytest.mark.parametrize("arrivals", PATTERNS)
def test_micro_batches_add_up(arrivals: Arrivals) -> None:
    sizes = list(itertools.islice(arrivals.batches(0.25), 40))
    assert sum(sizes) == arrivals.arrived(10.0)


def test_nothing_comes_in_a_pause() -> None:
    arrivals = Arrivals(100, on_seconds=1, off_seconds=4)
    assert list(itertools.islice(arrivals.batches(1.0), 10)) == [500, 0, 0, 0, 0, 500, 0, 0, 0, 0]
    times = Arrivals(1000, poisson=True, on_seconds=1, off_seconds=4).times(0, 50_000)
    assert (times % 5 <= 1).all()


def test_random_arrivals_are_poisson() -> None:
    """Counts in equal intervals have Poisson's distribution, and gaps are exponential, across block borders too."""
    arrivals = Arrivals(1000, poisson=True, seed=4)
    sizes = np.array(list(itertools.islice(arrivals.batches(0.01), 50_000)))
    places = np.arange(40)
    logs = places * np.log(10.0) - 10 - np.cumsum(np.log(np.maximum(places, 1)))
    assert_drawn_from(*merged(np.bincount(sizes, minlength=40)[:40], np.exp(logs)))
    gaps = np.diff(arrivals.times(0, 200_000), prepend=0)
    cells = np.histogram(np.exp(-gaps * 1000), bins=50, range=(0, 1))[0]
    assert_drawn_from(cells, np.ones(50))


def test_the_seed_decides() -> None:
    first, again, other = (Arrivals(10, poisson=True, seed=seed).times(0, 50) for seed in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()


@settings(deadline=None, max_examples=50)
@given(rate=st.floats(0.1, 1e6), moments=st.lists(st.floats(0, 1000), min_size=2, max_size=6), poisson=st.booleans())
def test_rows_never_go_back(rate: float, moments: list[float], poisson: bool) -> None:
    arrivals = Arrivals(rate, poisson=poisson, on_seconds=0.7, off_seconds=1.9)
    counts = [arrivals.arrived(moment) for moment in sorted(moments)]
    assert counts == sorted(counts)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"rows_per_second": 0}, "rows_per_second=0"),
        ({"rows_per_second": float("inf")}, "rows_per_second=inf"),
        ({"rows_per_second": 1, "off_seconds": 1}, "needs on_seconds="),
        ({"rows_per_second": 1, "on_seconds": -1}, "on_seconds=-1"),
        ({"rows_per_second": 1, "seed": -1}, "seed=-1"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Arrivals(**arguments)


def test_a_bad_interval() -> None:
    with pytest.raises(ArgumentError, match="interval_seconds=0"):
        next(Arrivals(1).batches(0))
