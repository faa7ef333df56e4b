"""The strategies: what they keep, and how well they estimate."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.shedding import STRATEGIES, Strategy
from semistream.shedding.cluster_sample import ClusterSample, inclusion
from semistream.shedding.sample_w import SampleW
from semistream.shedding.topw import TopW


def test_the_registry_names_them() -> None:
    assert list(STRATEGIES) == ["keep_w", "sample_w", "topw", "cluster_sample"]
    for name, kind in STRATEGIES.items():
        assert kind.__module__ == f"semistream.shedding.{name}"
        assert kind.idea


@pytest.mark.parametrize("kind", STRATEGIES.values(), ids=lambda kind: kind.name)
@settings(max_examples=60, deadline=None)
@given(counts=st.lists(st.integers(0, 6), min_size=1, max_size=40), most=st.integers(0, 45), seed=st.integers(0, 99))
def test_never_more_than_w_and_the_same_for_a_seed(
    kind: type[Strategy], counts: list[int], most: int, seed: int
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


class TestEstimates:
    """Weighted sums over 2,000 seeds: no bias beyond chance, and the spread that theory says."""

    seeds = 2000
    rows, most = 400, 80
    counts = np.round(20 / np.sqrt(np.random.default_rng(5).integers(1, 101, rows)))  # f_R of a Zipf 0.5 master
    values = counts * np.random.default_rng(6).uniform(0.5, 1.5, rows)  # a sum over the results of each row

    def estimates(self, strategy: Strategy) -> npt.NDArray[np.float64]:
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
