"""Pictures as SVG text, to stand in a page of their own without any other file."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semistream_lab.needs import need

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
    """Rows per second as horizontal bars, the value written at each."""
    need("drawing", "matplotlib")
    import matplotlib as mpl

    with figure(0.55 + 0.42 * len(bars), repr(bars)) as (axes, text):
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
        axes.set_xlabel("rows per second")
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    return text.getvalue()


def lines(
    found: dict[str, list[tuple[str, float]]],
    values: list[str],
    labels: list[str],
    across: str,
    upwards: str,
    colors: dict[str, str],
) -> str:
    """One line an arm over the values of an axis, in logarithmic steps; arms with a color are named at their end."""
    with figure(3.8, repr(found)) as (axes, text):
        ends = []
        for arm, points in sorted(found.items(), key=lambda item: item[0] in colors):
            at, heights = [values.index(value) for value, _ in points], [height for _, height in points]
            main = arm in colors
            axes.plot(
                at,
                heights,
                color=colors.get(arm, BOUND),
                linewidth=2 if main else 1.2,
                marker="o",
                markersize=4 if main else 2.5,
                zorder=3 if main else 2,
            )
            if main:
                ends.append((heights[-1], at[-1], arm))
        axes.set_yscale("log")
        axes.set_xticks(range(len(labels)), labels)
        axes.set_xlim(-0.2, len(labels) - 1 + 0.22 * len(labels))
        axes.set_xlabel(across)
        axes.set_ylabel(upwards)
        axes.yaxis.set_major_formatter(lambda value, _: short(value))
        axes.spines[["top", "right"]].set_visible(False)
        low, high = axes.get_ylim()
        step, last = (high / low) ** 0.055, 0.0
        for height, at_end, arm in sorted(ends):  # pushed apart, so that names do not cover each other
            last = max(height, last * step)
            axes.annotate(
                arm, (at_end, height), (len(labels) - 1 + 0.12, last), color=colors[arm], va="center", fontsize=11
            )
    return text.getvalue()


def over_rows(found: dict[str, list[tuple[float, float]]], color: Callable[[str], str]) -> str:
    """Rates as a stream goes on, one line an arm, named at its end; nothing when there is none."""
    if not found:
        return ""
    with figure(3.4, repr(found)) as (axes, text):
        for number, (name, points) in enumerate(found.items()):
            across, upwards = zip(*points, strict=True)
            axes.plot(across, upwards, color=color(name), linewidth=1.6, linestyle=("-", "--", ":", "-.")[number % 4])
            axes.annotate(name, (across[-1], upwards[-1]), (4, 0), textcoords="offset points", va="center", fontsize=9)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: short(value))
        axes.set_xlabel("stream rows")
        axes.set_ylabel("rows per second")
        axes.spines[["top", "right"]].set_visible(False)
    return text.getvalue()


def maps(grids: dict[str, list[list[float]]], columns: list[str], rows: list[str], across: str, upwards: str) -> str:
    """Maps above each other, a value in each field, the largest marked."""
    import numpy as np

    with figure(3.4 * len(grids), repr(grids), len(grids)) as (every, text):
        for axes, (title, grid) in zip(every if len(grids) > 1 else [every], grids.items(), strict=True):
            values = np.array(grid)
            axes.imshow(values, cmap="GnBu", aspect="auto", origin="lower")
            best = np.unravel_index(np.nanargmax(values), values.shape)
            for (row, column), value in np.ndenumerate(values):
                if not np.isnan(value):  # a setting that was not tried
                    strong = (row, column) == best
                    dark = value > np.nanmin(values) + 0.6 * (np.nanmax(values) - np.nanmin(values))
                    axes.text(
                        column,
                        row,
                        short(value),
                        ha="center",
                        va="center",
                        fontsize=8,
                        color="white" if dark else "black",
                        weight="bold" if strong else "normal",
                    )
            axes.set_xticks(range(len(columns)), columns, fontsize=9)
            axes.set_yticks(range(len(rows)), rows, fontsize=9)
            axes.set_xlabel(across)
            axes.set_ylabel(upwards)
            axes.set_title(f"rows per second, {title}", fontsize=11)
    return text.getvalue()


@contextmanager
def figure(
    height: float, salt: str, panels: int = 1, *, width: float = 6.0, png: Path | None = None
) -> Iterator[tuple[Any, io.StringIO]]:
    """Axes to draw on, several if there are several panels; afterwards the text holds the picture as SVG.

    A file that is named gets it as PNG.
    """
    need("drawing", "matplotlib")
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": salt,
        "font.family": "sans-serif",
        "font.size": 12,
    }
    drawn, text = io.StringIO(), io.StringIO()
    with mpl.rc_context(settings):
        drawing = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(drawing)
        yield drawing.subplots(panels), text
        drawing.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
        if png is not None:
            png.parent.mkdir(parents=True, exist_ok=True)
            drawing.savefig(png, format="png", dpi=100, metadata={"Software": None})
    svg = drawn.getvalue()
    text.write(svg[svg.index("<svg") :])


def short(value: float) -> str:
    """A rate in few characters.

    >>> short(1_634_000), short(18_500), short(730)
    ('1.63 M', '18.5 k', '730')
    """
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"
