"""TOPW: the w rows of the interval that meet the most rows of the master (MESHJOIN paper, section 4.2).

The paper says max-heap; what it needs is a min-heap of the w best. An interval is in memory here, so a selection does
it: every row above the w-th largest f_R, and of those equal to it the earliest.
"""

import numpy as np

from semistream.shedding.strategy import Kept, Numbers, Strategy


class TopW(Strategy):
    """The w rows with the largest f_R.

    >>> TopW().keep(5, 2, np.array([1.0, 7.0, 1.0, 2.0, 2.0]), np.random.default_rng(1)).rows.tolist()
    [1, 3]
    """

    name = "topw"
    idea = "the w rows of an interval with the most matches in the master"
    needs_counts = True

    def _keep(self, rows: int, most: int, counts: Numbers | None, chance: np.random.Generator) -> Kept:
        assert counts is not None
        if most == 0:
            return Kept.plainly(np.empty(0, np.int64))
        least = np.partition(counts, rows - most)[rows - most]
        above = counts > least
        equal = np.flatnonzero(counts == least)[: most - int(above.sum())]
        above[equal] = True
        return Kept.plainly(np.flatnonzero(above))
