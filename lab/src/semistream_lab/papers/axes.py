"""The axes that several papers share: what a figure's title says, what stands below it, and its points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semistream_lab.papers.figures import Point, Scale
from semistream_lab.plots import short

Axis = tuple[str, str, tuple[Point, ...]]  # title, words below the axis, points
MEMORY = ("1%", "2%", "5%", "10%")
SKEWS = (0.0, 0.25, 0.5, 0.75, 1.0)
MILLIONS = (20, 40, 60, 80, 100)
FIXED = 1.12e9  # bytes, where |R| varies
_RATE = "Service rate"


def by_memory(scale: Scale, params: dict[str, Any] | None = None, data: str = "") -> Axis:
    """Budgets as shares of R; of another workload, if its parameters and its name are given."""
    base = scale.cell() if params is None else params
    points = tuple(Point(share, {**base, "memory": share}) for share in scale.some(MEMORY))
    return f"{_RATE} by memory{data and ', ' + data}", "memory, share of R", points


def by_budget(scale: Scale, budgets: Sequence[float], **more: Any) -> Axis:
    """Budgets in bytes, as the paper states them."""
    sizes = [scale.memory(size) for size in scale.some(budgets)]
    points = tuple(Point(f"{size / 1e6:.3g}", scale.cell(memory=size, **more)) for size in sizes)
    return f"{_RATE} by memory{_of(more)}", "memory, MB", points


def by_size(
    scale: Scale, title: str = _RATE, fixed: float = FIXED, millions: Sequence[float] = MILLIONS, **more: Any
) -> Axis:
    """|R| at a fixed memory."""
    rows = [scale.size(1e6 * number) for number in scale.some(millions)]
    points = tuple(Point(short(n), scale.cell(rows=n, memory=scale.memory(fixed), **more)) for n in rows)
    return f"{title} by the size of R", "rows of R", points


def by_skew(scale: Scale, **more: Any) -> Axis:
    """The stream's Zipf exponent."""
    points = tuple(Point(f"{skew:g}", scale.cell(skew=skew, **more)) for skew in scale.some(SKEWS))
    return f"{_RATE} by skew of the stream{_of(more)}", "skew of the stream", points


def _of(more: dict[str, Any]) -> str:
    return f", {short(more['rows'])} rows" if "rows" in more else ""
