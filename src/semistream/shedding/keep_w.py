"""Keep-w: any w rows of the interval, here the first (MESHJOIN paper, section 4.1).

For keys with one row in the master each row that is shed costs one result, whichever it is, so the loss is least.
The first rows cost nothing to choose: they are a slice.
"""

import numpy as np

from semistream.shedding.strategy import Kept, Numbers, Strategy


class KeepW(Strategy):
    """The first w rows of an interval.

    >>> KeepW().keep(5, 2, None, np.random.default_rng(1)).rows.tolist()
    [0, 1]
    """

    name = "keep_w"
    idea = "the first w rows of an interval"

    def _keep(self, rows: int, most: int, counts: Numbers | None, chance: np.random.Generator) -> Kept:
        return Kept.plainly(np.arange(most))
