"""Cluster sampling: a sample of w rows, drawn in proportion to their matches (MESHJOIN paper, section 4.1).

A row is kept with probability min(1, w·f_R/Σf_R); what those at 1 leave over is shared among the others. The weight is
one over the probability, so weighted sums over the results are unbiased (Horvitz and Thompson 1952). The draw is
systematic after a shuffle: one random number places w equidistant marks on the probabilities laid end to end, so never
more than w rows are kept. Rows without a match come last: they add nothing to a sum over matches.
"""

import numpy as np

from semistream.shedding.strategy import Kept, Numbers, Strategy


class ClusterSample(Strategy):
    """A sample with probabilities in proportion to f_R.

    >>> kept = ClusterSample().keep(4, 2, np.array([9.0, 1.0, 1.0, 1.0]), np.random.default_rng(1))
    >>> kept.rows.tolist()[0], kept.weights.tolist()
    (0, [1.0, 3.0])
    """

    name = "cluster_sample"
    idea = "a sample in proportion to the matches in the master, with weights"
    needs_counts = True
    samples = True

    def _keep(self, rows: int, most: int, counts: Numbers | None, chance: np.random.Generator) -> Kept:
        assert counts is not None
        likely = inclusion(counts, most)
        order = chance.permutation(rows)
        marks = np.floor(np.cumsum(likely[order]) + chance.random() + 1e-9)  # a sum of w times 1 must reach w
        chosen = np.sort(order[np.diff(marks, prepend=0.0) > 0][:most])
        return Kept(chosen, 1.0 / likely[chosen])


def inclusion(counts: Numbers, most: int) -> Numbers:
    """The probability with which each row is kept; their sum is ``most``.

    >>> inclusion(np.array([6.0, 1.0, 1.0, 0.0]), 2).tolist()
    [1.0, 0.5, 0.5, 0.0]
    """
    likely = np.zeros(len(counts))
    left = float(most)
    for some in (np.flatnonzero(counts > 0), np.flatnonzero(counts <= 0)):
        shares = counts[some] if counts[some].any() else np.ones(len(some))
        open_ = np.ones(len(some), np.bool_)
        while left > 0 and open_.any():
            scaled = shares * (left / shares[open_].sum())
            certain = open_ & (scaled >= 1)
            if not certain.any():
                likely[some[open_]] = scaled[open_]
                return likely
            likely[some[certain]] = 1.0
            left -= int(certain.sum())
            open_ &= ~certain
    return likely
