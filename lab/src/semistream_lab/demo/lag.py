"""How long sales wait from their arrival until they are loaded: who keeps up is told by whether that grows.

>>> lag = Lag()
>>> lag.note([9.0, 9.0, 8.0, 7.0, 6.0, 5.0])
>>> lag.trend
(9.0, 5.5)
>>> lag.grew(1.0)
False
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean


@dataclass
class Lag:
    """The lag of every file, in the order in which they arrived."""

    seconds: list[float] = field(default_factory=list)

    def note(self, seconds: Iterable[float]) -> None:
        """Files that were just loaded."""
        self.seconds.extend(seconds)

    @property
    def trend(self) -> tuple[float, float]:
        """The mean lag of the first and of the last third of the files, in seconds."""
        if not self.seconds:
            return 0.0, 0.0
        third = max(1, len(self.seconds) // 3)
        return fmean(self.seconds[:third]), fmean(self.seconds[-third:])

    def grew(self, tolerance_seconds: float) -> bool:
        """Whether sales waited longer at the end than at the beginning."""
        first, last = self.trend
        return last > first + tolerance_seconds
