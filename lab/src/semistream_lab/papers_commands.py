"""`semistream lab`: the papers' figures from our own runs; heavy imports wait until a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from semistream.commands.command_line import Commands, listed
from semistream_lab.commands import Data, need_results

lab = Commands(
    help="The papers' experiments: run them here, and see their figures from our data.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

QUICK, FULL = Path("runs/lab-quick"), Path("runs/lab")
Out = Annotated[Path | None, typer.Option("--out", help="Where results go.", show_default="runs/lab[-quick]")]


@lab.command("list")
def list_suites() -> None:
    """The suites, their figures, what each is drawn from and how many cells it takes."""
    from semistream.commands.command_line import show_table
    from semistream_lab.papers import SUITES

    for suite in SUITES.values():
        scale = suite.scale("quick")
        lines = [
            [figure.name, figure.title, str(len(figure.points) * len(figure.arms)), figure.note]
            for figure in suite.figures(scale)
        ]
        title = f"{suite.name}: {suite.title}, {scale.rows:,} rows quick, {suite.scale('full').rows:,} full"
        show_table(title, ["figure", "what it shows", "cells", "note"], lines)


@lab.command()
def run(
    suite: Annotated[str, typer.Argument(metavar="SUITE", help="A suite that `semistream lab list` names, or all.")],
    quick: Annotated[
        bool, typer.Option("--quick/--full", help="Minutes at a small R, or the paper's sizes: hours and a large disk.")
    ] = True,
    out: Out = None,
    data: Data = None,
    repetitions: Annotated[int, typer.Option("--repetitions", help="Runs of each cell.")] = 1,
    figures: Annotated[
        str | None, typer.Option("--figures", help="Some figures, separated by commas.", show_default="all")
    ] = None,
    arms: Annotated[
        str | None, typer.Option("--arms", help="Some joins of them, separated by commas.", show_default="all")
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option("--rows", help="Rows of the largest R; budgets follow.", show_default="by suite, see list"),
    ] = None,
    direct: Annotated[
        bool | None,
        typer.Option(
            "--direct/--cached",
            help="Read R past the system's page cache (O_DIRECT), or through it.",
            show_default="cached quick, direct full",
        ),
    ] = None,
) -> None:
    """Run the experiments of a paper; what is done already is not run again.

    [bold]Examples[/]

    [cyan]semistream lab run meshjoin[/]

    [cyan]semistream lab run moij --full --figures 7a,7c --repetitions 3 --data /mnt/large[/]

    [cyan]semistream lab run sweep --full --figures 4 --arms sweep,moij[/]
    """
    from rich.console import Console

    from semistream_lab.data import default_directory
    from semistream_lab.papers import SUITES
    from semistream_lab.papers.page import write_page
    from semistream_lab.papers.runs import LabRun
    from semistream_lab.running import run_cells

    runs = [
        LabRun(
            name,
            out=out or (QUICK if quick else FULL),
            data=data or default_directory(),
            scale="quick" if quick else "full",
            repetitions=repetitions,
            figures=listed(figures),
            arms=listed(arms),
            direct=direct,
            rows=rows,
        )
        for name in (SUITES if suite == "all" else (suite,))
    ]
    for one in runs:
        run_cells(one, one.cells, one.prepare, write_page, Console(stderr=True))


@lab.command()
def report(out: Out = None) -> None:
    """Make lab.html, its pictures as PNG and summary.md from the results again."""
    from semistream_lab.papers.page import write_page
    from semistream_lab.papers.summary import write_summary

    directory = out or next((one for one in (QUICK, FULL) if (one / "results.jsonl").exists()), QUICK)
    need_results(directory, "lab run meshjoin")
    write_summary(directory)
    print(write_page(directory))
