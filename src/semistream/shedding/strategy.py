"""What a shedding strategy offers."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Kept:
    """Positions of the rows that are kept, ascending, and how many rows of the interval each stands for."""

    rows: Positions
    weights: Numbers

    @staticmethod
    def plainly(rows: Positions) -> "Kept":
        """Rows that stand for themselves."""
        return Kept(rows, np.ones(len(rows)))


class Strategy(ABC):
    """Chooses rows of a running stream, one interval after the other; a class is its own description."""

    name: ClassVar[str]
    idea: ClassVar[str]
    needs_counts: ClassVar[bool] = False  # f_R: how many rows of the master each stream row meets
    samples: ClassVar[bool] = False  # the rows kept are a sample, with weights that scale sums

    def keep(self, rows: int, most: int, counts: Numbers | None, chance: np.random.Generator) -> Kept:
        """Which ``most`` of the interval's ``rows`` rows are kept; ``counts`` is f_R, for strategies that need it."""
        if rows <= most:
            return Kept.plainly(np.arange(rows))
        return self._keep(rows, max(0, most), counts, chance)

    @abstractmethod
    def _keep(self, rows: int, most: int, counts: Numbers | None, chance: np.random.Generator) -> Kept:
        """As `keep`, where there are more rows than may be kept."""
