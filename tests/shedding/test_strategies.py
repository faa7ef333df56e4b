"""The strategies: what they keep, how well they estimate, and how close they come to the best there is."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.errors import ArgumentError
from semistream.shedding import STRATEGIES, OnlineStrategy
from semistream.shedding.cluster_sample import ClusterSample, inclusion
from semistream.shedding.optimal_offline import OptimalOffline
from semistream.shedding.sample_w import SampleW
from semistream.shedding.topw import TopW

ONLINE = [kind for kind in STRATEGIES.values() if issubclass(kind, OnlineStrategy)]
STREAMS = st.lists(st.integers(0, 9), min_size=1, max_size=9)


def test_the_registry_names_them() -> None:
    assert list(STRATEGIES) == ["keep_w", "sample_w", "topw", "cluster_sample", "optimal_offline"]
    assert [kind.name for kind in ONLINE] == ["keep_w", "sample_w", "topw", "cluster_sample"]
    for name, kind in STRATEGIES.items():
        assert kind.__module__ == f"semistream.shedding.{name}"
        assert kind.idea


@pytest.mark.parametrize("kind", ONLINE, ids=lambda kind: kind.name)
@settings(max_examples=60, deadline=None)
@given(counts=st.lists(st.integers(0, 6), min_size=1, max_size=40), most=st.integers(0, 45), seed=st.integers(0, 99))
def test_never_more_than_w_and_the_same_for_a_seed(
    kind: type[OnlineStrategy], counts: list[int], most: int, seed: int
) -> None:
    given_counts = np.array(counts, float)
    kept, again = (kind().keep(len(counts), most, given_counts, np.random.default_rng(seed)) for _ in range(2))
    assert kept.rows.tolist() == again.rows.tolist()
    assert kept.weights.tolist() == again.weights.tolist()
    assert len(kept.rows) == min(most, len(counts))
    assert kept.rows.tolist() == sorted(set(kept.rows.tolist()))
    assert set(kept.rows.tolist()) <= set(range(len(counts)))
    assert (kept.weights >= 1 - 1e-9).all()
    if len(counts) <= most or not kind.samples:
        assert (kept.weights == 1).all()


@settings(max_examples=60, deadline=None)
@given(counts=st.lists(st.integers(0, 6), min_size=1, max_size=30), most=st.integers(0, 30))
def test_topw_keeps_the_largest(counts: list[int], most: int) -> None:
    kept = TopW().keep(len(counts), most, np.array(counts, float), np.random.default_rng(0))
    best = sorted(range(len(counts)), key=lambda row: (-counts[row], row))[:most]
    assert kept.rows.tolist() == sorted(best)


class TestOptimum:
    @settings(max_examples=150, deadline=None)
    @given(counts=STREAMS, loop_rows=st.integers(1, 6), most=st.integers(1, 4))
    def test_equals_trying_everything(self, counts: list[int], loop_rows: int, most: int) -> None:
        found = OptimalOffline().plan(counts, loop_rows, most)
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
    def test_no_strategy_loses_less(self, counts: list[int], loop_rows: int, most: int) -> None:
        best = OptimalOffline().plan(counts, loop_rows, most).loss
        for kind in ONLINE:
            assert best <= loss_of(kind(), np.array(counts, float), loop_rows, most)

    def test_topw_is_nearly_as_good_on_a_random_stream(self) -> None:
        # As in the paper: rows of many matches that are not clustered in time.
        counts = np.round(100 / np.sqrt(np.random.default_rng(3).integers(1, 1001, 2000)))
        best = OptimalOffline().plan(counts, 20, 10).loss
        assert loss_of(TopW(), counts, 20, 10) < best + 0.05 * counts.sum()

    def test_stalling_pays_when_the_rows_that_count_are_clustered(self) -> None:
        counts = [1, 1, 1, 1, 3, 3, 3, 3]  # the case of the paper's figure 8
        assert loss_of(TopW(), np.array(counts, float), 4, 2) == 8
        assert OptimalOffline().plan(counts, 4, 2).loss == 2

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
    def test_wrong_arguments(self, counts: list[float], loop_rows: int, most: int, words: str) -> None:
        with pytest.raises(ArgumentError, match=words):
            OptimalOffline().plan(counts, loop_rows, most)


class TestEstimates:
    """Weighted sums over 2,000 seeds: no bias beyond chance, and the spread that theory says."""

    seeds = 2000
    rows, most = 400, 80
    counts = np.round(20 / np.sqrt(np.random.default_rng(5).integers(1, 101, rows)))  # f_R of a Zipf 0.5 master
    values = counts * np.random.default_rng(6).uniform(0.5, 1.5, rows)  # a sum over the results of each row

    def estimates(self, strategy: OnlineStrategy) -> npt.NDArray[np.float64]:
        def one(seed: int) -> float:
            kept = strategy.keep(self.rows, self.most, self.counts, np.random.default_rng([9, seed]))
            return float((self.values[kept.rows] * kept.weights).sum())

        return np.array([one(seed) for seed in range(self.seeds)])

    def test_sample_w(self) -> None:
        found = self.estimates(SampleW())
        # Drawn without replacement: Var = n²/w · (1 − w/n) · S².
        spread = self.rows * np.sqrt((1 - self.most / self.rows) / self.most) * self.values.std(ddof=1)
        self.check(found, spread)
        assert 0.93 * spread < found.std() < 1.07 * spread

    def test_cluster_sample(self) -> None:
        found = self.estimates(ClusterSample())
        likely = inclusion(self.counts, self.most)
        # At most that of independent draws: Σ (1 − π)/π · y². Drawn systematically it is much less.
        self.check(found, float(np.sqrt(((1 - likely) / likely * self.values**2).sum())))
        # Since results are in proportion to f_R, it is better than a uniform sample of as many rows.
        assert found.std() < 0.7 * self.estimates(SampleW()).std()

    def check(self, found: npt.NDArray[np.float64], spread: float) -> None:
        total = self.values.sum()
        assert abs(found.mean() - total) < 4 * spread / np.sqrt(self.seeds)
        assert (np.abs(found - total) < 2 * spread).mean() > 0.94

    def test_probabilities_are_those_asked_for(self) -> None:
        likely = inclusion(self.counts, self.most)
        assert likely.sum() == pytest.approx(self.most)
        often = np.zeros(self.rows)
        for seed in range(self.seeds):
            kept = ClusterSample().keep(self.rows, self.most, self.counts, np.random.default_rng([7, seed]))
            often[kept.rows] += 1
        spread = np.sqrt(likely * (1 - likely) / self.seeds)
        assert (np.abs(often / self.seeds - likely) <= 5 * spread + 1e-9).all()

    def test_without_matches(self) -> None:
        kept = ClusterSample().keep(6, 2, np.zeros(6), np.random.default_rng(1))
        assert kept.weights.tolist() == [3.0, 3.0]
        few = inclusion(np.array([0.0, 5.0, 0.0, 1.0]), 3)
        assert few.tolist() == [0.5, 1.0, 0.5, 1.0]


def loss_of(strategy: OnlineStrategy, counts: npt.NDArray[np.float64], loop_rows: int, most: int) -> float:
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
