"""When the rows of a stream arrive: steadily, at random (Poisson), or in bursts with pauses between them.

Bursts stretch time: while a burst lasts, rows come so much faster that the average over bursts and pauses is
``rows_per_second``. Random arrivals are a Poisson process of that rate, drawn block by block: the number of rows in a
block is Poisson's, and given their number their places in it are independent and uniform. Everything follows from the
seed, so the same rows arrive at the same times in every run.

>>> steady = Arrivals(1000)
>>> steady.arrived(0.25), steady.times(0, 3).tolist()
(250, [0.001, 0.002, 0.003])
>>> bursts = Arrivals(1000, on_seconds=1, off_seconds=3)
>>> [bursts.arrived(second) for second in (0.5, 1, 2, 4, 4.5)]
[2000, 4000, 4000, 4000, 6000]
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from semistream.errors import ArgumentError
from semistream_lab.workloads.numbered import check_range

Times = npt.NDArray[np.float64]
_BLOCK = 1 << 14  # expected rows of a block: 10 billion rows are half a million blocks
_BLOCKS = 1 << 10  # drawn at once


@dataclass(frozen=True)
class Arrivals:
    """``rows_per_second`` on average; ``poisson`` makes it random, ``on_seconds`` and ``off_seconds`` make bursts."""

    rows_per_second: float
    poisson: bool = False
    on_seconds: float = 0.0
    off_seconds: float = 0.0
    seed: int = 1
    _ends: list[int] = field(default_factory=lambda: [0], init=False, repr=False, compare=False)
    _drawn: dict[int, Times] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 < self.rows_per_second < math.inf:
            raise ArgumentError(f"rows_per_second={self.rows_per_second} must be above 0")
        for name in ("on_seconds", "off_seconds", "seed"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ArgumentError(f"{name}={getattr(self, name)} must be 0 or more")
        if self.off_seconds and not self.on_seconds:
            raise ArgumentError(f"off_seconds={self.off_seconds} needs on_seconds=, how long a burst lasts")

    def arrived(self, seconds: float) -> int:
        """Rows that have arrived after so many seconds."""
        expected = self._expected(max(0.0, seconds))
        if not self.poisson:
            return int(expected + 1e-9)  # 0.29 · 100 is 28.999999999999996
        block, place = divmod(expected, _BLOCK)
        before = self._before(int(block))
        return before + int(np.searchsorted(self._places(int(block)), place, side="right"))

    def times(self, start: int, count: int) -> Times:
        """When rows ``start`` to ``start + count`` arrive, in seconds; never falling."""
        check_range(start, count)
        if not self.poisson:
            return self._seconds(np.arange(start + 1, start + count + 1, dtype=np.float64))
        block, found = self._block_of(start), [np.empty(0)]
        first = self._before(block)
        while first + sum(map(len, found)) < start + count:
            found.append(block * float(_BLOCK) + self._places(block))
            block += 1
        return self._seconds(np.concatenate(found)[start - first : start - first + count])

    def batches(self, interval_seconds: float) -> Iterator[int]:
        """Rows of one micro-batch after the other, each of so many seconds; without end."""
        if not 0 < interval_seconds < math.inf:
            raise ArgumentError(f"interval_seconds={interval_seconds} must be above 0")
        number = before = 0
        while True:
            number += 1
            now = self.arrived(number * interval_seconds)
            yield now - before
            before = now

    @property
    def _cycle(self) -> float:
        return self.on_seconds + self.off_seconds

    def _expected(self, seconds: float) -> float:
        """Rows that are to be expected by then: time as the process feels it."""
        if not self.off_seconds:
            return seconds * self.rows_per_second
        cycles, rest = divmod(seconds, self._cycle)
        return (cycles + min(1.0, rest / self.on_seconds)) * self._cycle * self.rows_per_second

    def _seconds(self, expected: Times) -> Times:
        """The other way round."""
        if not self.off_seconds:
            return expected / self.rows_per_second
        cycles, rest = np.divmod(expected / self.rows_per_second, self._cycle)
        at_end = (rest == 0) & (cycles > 0)  # the last row of a burst comes with the burst, not after the pause
        cycles[at_end] -= 1
        rest[at_end] = self._cycle
        return cycles * self._cycle + rest / self._cycle * self.on_seconds

    def _before(self, block: int) -> int:
        """Rows before a block."""
        while len(self._ends) <= block:
            drawn = np.random.default_rng([self.seed, 0, (len(self._ends) - 1) // _BLOCKS]).poisson(_BLOCK, _BLOCKS)
            self._ends.extend((self._ends[-1] + np.cumsum(drawn)).tolist())
        return self._ends[block]

    def _block_of(self, row: int) -> int:
        while self._ends[-1] <= row:
            self._before(len(self._ends))
        return int(np.searchsorted(self._ends, row, side="right")) - 1

    def _places(self, block: int) -> Times:
        """Where the rows of a block lie in it, sorted; the block asked for last is kept, since time goes on slowly."""
        if block not in self._drawn:
            count = self._before(block + 1) - self._before(block)
            self._drawn.clear()
            self._drawn[block] = np.sort(np.random.default_rng([self.seed, 1, block]).random(count)) * _BLOCK
        return self._drawn[block]
