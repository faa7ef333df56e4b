"""`semistream calibrate`: measure what the planner needs to know of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from semistream.commands.command_line import Commands, listed, progress_bars, show_table

app = Commands()


@app.command(rich_help_panel="Planning")
def calibrate(
    out: Annotated[
        Path | None, typer.Option("--out", help="Where it is written.", show_default="the user's cache")
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--directory", help="A directory on the disk to measure.", show_default="temporary")
    ] = None,
    joins: Annotated[
        str | None,
        typer.Option("--joins", help="Some joins, separated by commas; others stay as known.", show_default="all"),
    ] = None,
) -> None:
    """Measure what the cost models need to know of this machine; twenty minutes, best while it is idle.

    [bold]Examples[/]

    [cyan]semistream calibrate --directory /data[/]

    [cyan]semistream calibrate --joins sweep[/]
    """
    from semistream.joins import JOINS, choose_join
    from semistream.planner.machine import calibration_path
    from semistream.planner.rates import current_costs
    from semistream_lab.calibration import calibrate as run
    from semistream_lab.calibration import completed

    chosen = tuple(choose_join("--joins", name) for name in listed(joins))
    before = current_costs() if chosen else None
    with progress_bars() as progress:
        costs = run(
            directory, joins=chosen or tuple(JOINS), report=lambda _, done, total: progress("calibrating", done, total)
        )
    if before is not None:
        costs = completed(costs, before)
    path = out or calibration_path()
    costs.save(path)
    lines = [
        [name, *(f"{1e6 * value:.3g}" for value in (terms.read, terms.page, terms.miss, terms.hit, terms.piece))]
        for name, terms in costs.joins.items()
    ]
    show_table("µs of each join, beside the device", ["join", "a read", "a page", "a miss", "a hit", "a piece"], lines)
    steps = [[name, f"{1e9 * value:,.0f} ns"] for name, value in (*costs.steps.items(), *costs.keys.items())]
    show_table("a tuple: the papers' steps, and encoding a key by its type", [], steps)
    print(f"written to {path}")
