"""How long sales wait before they are loaded, watched over the run: who keeps up is told by whether that grows.

>>> lag = Lag()
>>> for second in range(12):
...     lag.note(second, batch=3, seconds=12 - second)
>>> lag.trend
(10.5, 2.5)
>>> lag.grew(1.0)
False
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean

_LEAST = 12  # looks that make a trend


@dataclass
class Lag:
    """Looks at a query while sales arrive."""

    looks: list[tuple[float, int, float]] = field(default_factory=list)

    def note(self, now: float, batch: int, seconds: float) -> None:
        """One look: the last batch that was done, and how long the oldest sale has waited that is not loaded."""
        self.looks.append((now, batch, seconds))

    @property
    def trend(self) -> tuple[float, float]:
        """The mean lag in the first and in the last third of the time, in seconds.

        The time until the first batch is done, in which Spark starts its workers, is left out where enough remains.
        """
        steady = [look for look in self.looks if look[1] >= 0]
        looks = steady if len(steady) >= _LEAST else self.looks
        if not looks:
            return 0.0, 0.0
        start, end = looks[0][0], looks[-1][0]
        third = (end - start) / 3
        first = fmean(seconds for now, _, seconds in looks if now <= start + third)
        return first, fmean(seconds for now, _, seconds in looks if now >= end - third)

    def grew(self, tolerance_seconds: float) -> bool:
        """Whether sales waited longer at the end than at the beginning."""
        first, last = self.trend
        return last > first + tolerance_seconds
