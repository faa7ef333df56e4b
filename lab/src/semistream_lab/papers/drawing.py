"""A paper's figure from our data: curves, bars or a surface, as SVG for the page and as PNG for the docs.

Narrow pictures with letters of a normal size, so that a phone shows them without zooming. A model's values are dashed
or hollow beside the measured ones; thin bars are 95 % confidence intervals.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from semistream.budget import format_bytes
from semistream_lab import plots
from semistream_lab.papers.figures import Drawn, Panel

_WIDTH, _HEIGHT = 4.8, 3.7
_COLORS = ("#0b6e99", "#b4530a", "#3d8b40", "#7d4fa8", "#b42318", "#c99700", "#5b6770")
_MARKS = "osD^v<>"
_LONG = 24  # letters of a name, of which two fit side by side


def draw(drawn: Drawn, panel: Panel, png: Path | None = None) -> str:
    """The picture as SVG; empty where nothing was measured."""
    if not any(group.median(panel.measure) is not None for group in drawn.found.values()):
        return ""
    return {"lines": _lines, "bars": _bars, "surface": _surface}[drawn.figure.kind](drawn, panel, png)


def number(value: float, measure: str) -> str:
    """A value in few characters."""
    if measure.endswith(("_share", "_kept", "_ratio")):
        return f"{value:.0%}"
    if measure.endswith("_bytes"):
        return format_bytes(value)
    if measure.endswith("_seconds"):
        return f"{value:.2g} s" if value >= 1 else f"{1e3 * value:.3g} ms" if value >= 1e-3 else f"{1e6 * value:.3g} µs"
    return plots.short(value)


def _lines(drawn: Drawn, panel: Panel, png: Path | None) -> str:
    figure = drawn.figure
    with plots.figure(_HEIGHT, _salt(drawn, panel), width=_WIDTH, png=png) as (axes, text):
        for order, arm in enumerate(figure.arms):
            color = _COLORS[order % len(_COLORS)]
            found = _points(drawn, arm, panel.measure)
            if not found:
                continue
            at, values = zip(*found, strict=True)
            mark = _MARKS[order % len(_MARKS)]
            name = figure.name_of(arm) + (", measured" if panel.model else "")
            axes.plot(at, values, color=color, marker=mark, markersize=5, linewidth=1.8, label=name)
            _intervals(axes, drawn, arm, panel.measure, color)
            said = _points(drawn, arm, panel.model) if panel.model else []
            if said:
                at, values = zip(*said, strict=True)
                name = figure.name_of(arm) + ", model"
                axes.plot(at, values, color=color, marker=mark, markerfacecolor="white", linestyle="--", label=name)
        if panel.log:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set_xticks(range(len(drawn.labels)), drawn.labels)
        axes.set_xlabel(figure.across)
        _finish(axes, panel)
    return text.getvalue()


def _bars(drawn: Drawn, panel: Panel, png: Path | None) -> str:
    """One point, an arm a bar: the measured value, and the model's as a hollow bar below it."""
    figure, [label] = drawn.figure, drawn.labels
    found = [(arm, value) for arm in figure.arms if (value := drawn.value(arm, label, panel.measure)) is not None]
    if not panel.model:
        found.sort(key=lambda one: -one[1])
    thickness = 0.38 if panel.model else 0.7
    with plots.figure(1.0 + 0.44 * len(found), _salt(drawn, panel), width=_WIDTH, png=png) as (axes, text):
        largest = 0.0
        for place, (arm, value) in enumerate(found):
            said = drawn.value(arm, label, panel.model) if panel.model else None
            color = plots.OURS if arm.startswith("sweep") or panel.model else plots.OTHERS
            bars = [(place - (0.2 if panel.model else 0), value, {"color": color, "label": "measured"})]
            if said is not None:
                hollow = {"color": "white", "edgecolor": color, "linestyle": "--", "label": "model"}
                bars.append((place + 0.2, said, hollow))
            for at, height, look in bars:
                axes.barh(at, height, thickness, **{**look, "label": look["label"] if place == 0 else "_"})
                axes.text(height, at, " " + number(height, panel.measure), va="center", fontsize=11)
                largest = max(largest, height)
        axes.set_yticks(range(len(found)), [figure.name_of(arm) for arm, _ in found])
        axes.invert_yaxis()
        axes.set_xlim(0, largest * 1.3)
        axes.set_xticks([])
        axes.set_xlabel(panel.title)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        if panel.model:
            axes.figure.legend(loc="outside upper left", ncols=2, frameon=False)
    return text.getvalue()


def _surface(drawn: Drawn, panel: Panel, png: Path | None) -> str:
    """Points are named "row | column"; darker is more."""
    import numpy as np

    [arm] = drawn.figure.arms
    pairs = [label.split(" | ") for label in drawn.labels]
    rows, columns = (list(dict.fromkeys(pair[place] for pair in pairs)) for place in (0, 1))
    values = np.full((len(rows), len(columns)), np.nan)
    for label, (row, column) in zip(drawn.labels, pairs, strict=True):
        value = drawn.value(arm, label, panel.measure)
        if value is not None:
            values[rows.index(row), columns.index(column)] = value
    with plots.figure(_HEIGHT, _salt(drawn, panel), width=_WIDTH, png=png) as (axes, text):
        axes.imshow(values, cmap="Blues", aspect="auto", origin="lower", vmin=0)
        middle = float(np.nanmax(values)) * 0.6
        top = np.unravel_index(np.nanargmax(values), values.shape)
        for (row, column), value in np.ndenumerate(values):
            if not np.isnan(value):
                axes.text(
                    column,
                    row,
                    number(float(value), panel.measure),
                    ha="center",
                    va="center",
                    fontsize=11,
                    color="white" if value > middle else "#1c2429",
                    fontweight="bold" if (row, column) == top else "normal",
                )
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(rows)), rows)
        axes.set_xlabel(drawn.figure.across)
        axes.set_ylabel("pinned part")
        axes.set_title(panel.title, fontsize=12, loc="left")
    return text.getvalue()


def _finish(axes: Any, panel: Panel) -> None:
    from matplotlib import ticker

    axes.yaxis.set_major_formatter(lambda value, _: number(value, panel.measure))
    if panel.log:
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.set_title(panel.title, fontsize=12, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6eaed", linewidth=0.8)
    axes.set_axisbelow(True)
    longest = max((len(text) for text in axes.get_legend_handles_labels()[1]), default=0)
    columns = 2 if longest <= _LONG else 1  # two long names would run out of the picture
    axes.figure.legend(loc="outside lower left", ncols=columns, frameon=False, fontsize=11, handlelength=1.6)


def _points(drawn: Drawn, arm: str, measure: str) -> list[tuple[int, float]]:
    values = [drawn.value(arm, label, measure) for label in drawn.labels]
    return [(place, value) for place, value in enumerate(values) if value]


def _intervals(axes: Any, drawn: Drawn, arm: str, measure: str, color: str) -> None:
    for place, label in enumerate(drawn.labels):
        group = drawn.at(arm, label)
        interval = group.interval(measure) if group is not None else None
        if interval is not None and interval[0] > 0:
            axes.plot([place, place], interval, color=color, linewidth=1, marker="_", markersize=6)


def _salt(drawn: Drawn, panel: Panel) -> str:
    """Names inside the SVG: the same for the same picture, different from its neighbours' on the page."""
    return f"{drawn.figure.name} {drawn.figure.title} {panel.measure} {drawn.figure.arms}"
