"""Bar charts as SVG text, to stand in a page of their own without any other file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

OURS, OTHERS, BOUND = "#0b6e99", "#9aa5ad", "#d7dde1"


@dataclass(frozen=True)
class Bar:
    """One bar: the median, and the smallest and largest value as a line over it."""

    name: str
    value: float
    low: float
    high: float
    color: str = OTHERS


def rate_bars(bars: Sequence[Bar]) -> str:
    """Rows a second as horizontal bars, the value written at each."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": repr(bars),
        "font.family": "sans-serif",
        "font.size": 12,
    }
    with mpl.rc_context(settings):
        figure = Figure(figsize=(6.0, 0.55 + 0.42 * len(bars)), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        places = range(len(bars))
        values = [bar.value for bar in bars]
        errors = [[b.value - b.low for b in bars], [b.high - b.value for b in bars]]
        axes.barh(places, values, color=[b.color for b in bars], height=0.7)
        if any(bar.low < bar.high for bar in bars):
            axes.errorbar(values, places, xerr=errors, fmt="none", ecolor="#333333", elinewidth=1, capsize=3)
        largest = max(bar.high for bar in bars)
        for place, bar in zip(places, bars, strict=True):
            axes.text(bar.high + largest * 0.015, place, short(bar.value), va="center")
        axes.set_yticks(list(places), [bar.name for bar in bars])
        axes.invert_yaxis()
        axes.set_xlim(0, largest * 1.18)
        axes.xaxis.set_major_formatter(lambda value, _: short(value))
        axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(4))
        axes.set_xlabel("rows a second")
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def short(value: float) -> str:
    """A rate in few characters.

    >>> short(1_634_000), short(18_500), short(730)
    ('1.63 M', '18.5 k', '730')
    """
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"
