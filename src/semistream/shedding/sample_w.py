"""Sample-w: a uniform sample of w rows of the interval (MESHJOIN paper, section 4.1).

For keys with one row in the master the results are then a uniform sample of the join's. The paper keeps a reservoir;
an interval is in memory here, so w of its rows are drawn without replacement. Departure: over several intervals the
sample is uniform only while all have the same length, so each row carries the weight n/w of its own interval.
"""

import numpy as np

from semistream.shedding.strategy import Kept, Numbers, Strategy


class SampleW(Strategy):
    """A uniform sample of w rows, each of weight n/w.

    >>> SampleW().keep(6, 2, None, np.random.default_rng(1)).weights.tolist()
    [3.0, 3.0]
    """

    name = "sample_w"
    idea = "a uniform sample of w rows of an interval, with weights"
    samples = True

    def _keep(self, rows: int, most: int, counts: Numbers | None, chance: np.random.Generator) -> Kept:
        chosen = np.sort(chance.choice(rows, most, replace=False, shuffle=False))
        return Kept(chosen, np.full(most, rows / most if most else 1.0))
