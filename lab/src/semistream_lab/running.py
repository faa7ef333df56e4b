"""Cells one after the other, with a bar that says how much time is left, and a report of them at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from semistream_lab import busy, suites
from semistream_lab.needs import need_for
from semistream_lab.report import noted
from semistream_lab.results import Results, cell_of
from semistream_lab.settings import Run

if TYPE_CHECKING:
    from rich.console import Console

    from semistream_lab.cells import Cell

_LOOK_BACK_SECONDS = 600  # time left follows from the cells of so long


def run_cells(
    run: Run,
    cells: Sequence[Cell],
    prepare: Callable[[Callable[[str], None]], None],
    write: Callable[[Path], Path],
    console: Console,
) -> None:
    """Prepare the data, run what is missing with a bar that says how much time is left, write the report."""
    need_for(cells)
    results = Results.load(run.out)
    waiting = suites.missing(cells, results)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, speed_estimate_period=_LOOK_BACK_SECONDS) as progress:
        task = progress.add_task("data", total=len(cells), completed=len(cells) - len(waiting))
        prepare(lambda note: progress.update(task, description=note))

        def show(cell: Cell, result: dict[str, Any]) -> None:
            said = "[red]failed[/]        " if "error" in result else f"{result['rows_per_second']:>12,.0f} rows/s"
            doubt = f"  [yellow]{result['busy']}[/]" if result.get("busy") else ""
            progress.console.print(f"{said}  {cell.label}{doubt}", highlight=False)
            if "error" in result:
                progress.console.print(result["error"], style="red", markup=False, highlight=False)
            progress.update(task, advance=1)

        try:
            suites.run(run, waiting, results, lambda cell: progress.update(task, description=cell.label), show)
        finally:
            report_path = write(run.out)
    print(report_path)
    ours = {cell.key for cell in cells}
    doubt = busy.summary((line for line in results.done if cell_of(line).key in ours), noted(run.out)["environments"])
    if doubt:
        console.print(doubt, style="yellow", highlight=False)
    failed = [line for line in results.failed if cell_of(line).key in ours]
    if failed:
        console.print(
            f"[red]{len(failed)} of {len(cells)} cells could not be run[/]; the same command tries them again"
        )
        raise typer.Exit(1)
