"""The surface of Tuned X-HYBRIDJOIN: its rate over the sizes of both parts, by model and by measurement."""

from __future__ import annotations

from semistream.errors import ArgumentError
from semistream_lab import plots
from semistream_lab.tuning import Trial


def surface(trials: list[Trial]) -> str:
    """An SVG picture: one map by the model, beside it one by measurement where there is one."""
    points = [trial for trial in trials if hasattr(trial.settings, "pinned")]
    if not points:
        raise ArgumentError("a surface has two sizes, which only tuned_xhybrid has")
    maps = {"by the model": [t.rows_per_second for t in points]}
    if all(t.measured_rows_per_second is not None for t in points):
        maps["measured"] = [t.measured_rows_per_second or 0.0 for t in points]
    pinned = sorted({t.settings.pinned for t in points})
    swappable = sorted({t.settings.swappable for t in points})
    grids = {}
    for name, values in maps.items():
        grid = [[float("nan")] * len(pinned) for _ in swappable]
        for trial, value in zip(points, values, strict=True):
            grid[swappable.index(trial.settings.swappable)][pinned.index(trial.settings.pinned)] = value
        grids[name] = grid
    return plots.maps(
        grids,
        [f"{share:.1%}" for share in pinned],
        [f"{share:.1%}" for share in swappable],
        "pinned part, share of the budget",
        "swappable part",
    )
