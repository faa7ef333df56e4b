"""The grid of `bench joins`: one axis at a time around a centre, or everything crossed with everything."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from semistream.errors import choose
from semistream_lab.asked import check_memory, check_seconds, once
from semistream_lab.errors import SettingError

LAYOUTS = ("shuffled", "sorted")
AXES = ("rows", "memory", "skew", "layout")
Point = dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """Values of each axis; the first of memory, skew and layout and the given rows are the centre."""

    sizes: tuple[int, ...] = (200_000, 1_000_000, 10_000_000)
    memory: tuple[str, ...] = ("10%", "5%", "2%", "1%")
    skews: tuple[float, ...] = (1.0, 0.75, 0.5, 0.25, 0.0)
    layouts: tuple[str, ...] = LAYOUTS
    centre: int = 1_000_000
    crossed: bool = False
    warm_seconds: float = 10.0
    seconds: float = 5.0

    def __post_init__(self) -> None:
        for layout in self.layouts:
            choose("layouts", layout, LAYOUTS)
        for name in ("sizes", "memory", "skews", "layouts"):
            if not getattr(self, name):
                raise SettingError(f"--{name} must name at least one value")
        if min(self.sizes) < 1000 or not all(math.isfinite(skew) and skew >= 0 for skew in self.skews):
            raise SettingError("--sizes must be at least 1000 rows, --skews 0 or more")
        check_memory(*self.memory)
        check_seconds(seconds=self.seconds, warm_seconds=self.warm_seconds)
        for name in ("sizes", "memory", "skews", "layouts"):
            object.__setattr__(self, name, once(getattr(self, name)))
        if self.centre not in self.sizes:
            object.__setattr__(self, "centre", self.sizes[len(self.sizes) // 2])

    def points(self) -> Iterator[Point]:
        """All points, the centre first."""
        axes = [(self.centre, *(n for n in self.sizes if n != self.centre)), self.memory, self.skews, self.layouts]
        if self.crossed:
            for values in itertools.product(*axes):
                yield dict(zip(AXES, values, strict=True))
            return
        centre = dict(zip(AXES, (values[0] for values in axes), strict=True))
        yield centre
        for name, values in zip(AXES, axes, strict=True):
            for value in values[1:]:
                yield {**centre, name: value}
