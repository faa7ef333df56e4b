"""Which rows of an interval are kept: one way to choose, for `join`, `enrich` and pipelines.

Chance is seeded by the stream and by the number of the interval, so the same intervals give the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from semistream.keys import KeyCodec
from semistream.shedding.row_counts import RowCounts
from semistream.shedding.settings import Shed
from semistream.shedding.strategy import Kept, Numbers

Column = Callable[[str], pa.Array]  # of an interval, by name


class Matches:
    """f_R of one lookup: the rows of output that it makes of each row. Of a history these are the most it can give."""

    def __init__(self, codec: KeyCodec, on: dict[str, str], counts: RowCounts, *, several: bool, leaves: bool) -> None:
        """``several``: all matches of a row are given, not one; ``leaves``: a row without a match gives none."""
        self._codec = codec
        self._columns = codec.stream_columns(on)
        self._counts = counts
        self._several = several
        self._leaves = leaves

    def of(self, column: Column) -> Numbers:
        """For every row of an interval."""
        codes, valid = self._codec.encode([column(name) for name in self._columns])
        return self._counts.output(codes, valid, several=self._several, leaves=self._leaves)


class Chooser:
    """Chooses interval after interval; ``seeds`` tell streams apart."""

    def __init__(self, shed: Shed, matches: Sequence[Matches], seeds: Sequence[int]) -> None:
        self._strategy = shed.kind()
        self._matches = matches
        self._seeds = [shed.seed, *seeds]
        self._number = 0

    def keep(self, rows: int, most: int, column: Column) -> Kept:
        """The rows of the next interval that may go on, ``most`` at most."""
        chance = np.random.default_rng([*self._seeds, self._number])
        self._number += 1
        counts: Numbers | None = None
        if self._strategy.needs_counts and rows > most:
            counts = np.ones(rows)
            for one in self._matches:
                counts *= one.of(column)
        return self._strategy.keep(rows, most, counts, chance)
