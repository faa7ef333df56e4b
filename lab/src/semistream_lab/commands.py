"""`semistream bench`: the command group; heavy imports wait until a command runs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semistream.commands.command_line import Commands, listed

if TYPE_CHECKING:
    from rich.console import Console

    from semistream_lab.settings import Settings

bench = Commands(
    help="Measure joins on this machine; results.jsonl and report.html are written as it goes on.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

FULL: dict[str, Any] = {"rows": 10_000_000, "out": Path("runs/bench")}
QUICK: dict[str, Any] = {
    "rows": 1_000_000,
    "out": Path("runs/bench-quick"),
    "batch_rows": (200_000,),
    "repetitions": 1,
    "batches": 5,
    "warmup": 5,
}

_QUICKLY = "10000000; with --quick 1000000"
Rows = Annotated[int | None, typer.Option("--rows", help="Rows of the master.", show_default=_QUICKLY)]
Out = Annotated[Path | None, typer.Option("--out", help="Where results go.", show_default="runs/bench[-quick]")]
Data = Annotated[
    Path | None, typer.Option("--data", help="Where data is made and found again.", show_default="the user's cache")
]
Quick = Annotated[bool, typer.Option("--quick", help="Small data, one repetition, few batches: minutes, not hours.")]
Repetitions = Annotated[int | None, typer.Option("--repetitions", help="Runs of each arm.", show_default="3")]
Arms = Annotated[
    str | None, typer.Option("--arms", help="Arms to run, separated by commas.", show_default="all of the suite")
]
Batches = Annotated[int | None, typer.Option("--batches", help="Timed batches.", show_default="by batch size")]
Warmup = Annotated[
    int | None, typer.Option("--warmup", help="Batches that fill caches first.", show_default="by batch size")
]
BatchRows = Annotated[
    str | None, typer.Option("--batch-rows", help="Batch sizes.", show_default="200000,2000000; with --quick 200000")
]
_SIZES = "200000,1000000,10000000; with --quick 200000"
_BUDGETS = "10%,5%,2%,1%; with --quick 10%,1%"
_SKEWS = "1,0.75,0.5,0.25,0; with --quick 1,0"
Columns = Annotated[
    str, typer.Option("--columns", help="Master columns to add: narrow (two), three, text (one) or all.")
]


@bench.command()
def core(
    rows: Annotated[
        str | None,
        typer.Option(
            "--rows", help="Rows of the master; several show how rates hold as it grows.", show_default=_QUICKLY
        ),
    ] = None,
    out: Out = None,
    data: Data = None,
    quick: Quick = False,
    repetitions: Repetitions = None,
    memory: Annotated[str, typer.Option("--memory", help="Budgets, as shares of the store.")] = "10%,1%",
    arms: Arms = None,
    batches: Batches = None,
    warmup: Warmup = None,
    batch_rows: BatchRows = None,
    columns: Columns = "three",
    skews: Annotated[str, typer.Option("--skews", help="Zipf exponents of the stream; 0 is uniform.")] = "1",
    threads: Annotated[str, typer.Option("--threads", help="Threads of DuckDB, and of sweep if it takes any.")] = "1,2",
    cold: Annotated[bool, typer.Option("--cold", help="Also from an empty cache: the rate over time.")] = False,
) -> None:
    """Our joins and DuckDB on batches, without Spark.

    [bold]Examples[/]

    [cyan]semistream bench core --quick[/]

    [cyan]semistream bench core --arms sweep,duckdb_table --columns narrow,all --threads 1,2[/]

    [cyan]semistream bench core --arms sweep,duckdb_table --memory 10% --rows 1000000,10000000,100000000[/]

    [cyan]semistream bench core --arms sweep,duckdb_table --memory 10% --skews 1,0 --cold[/]
    """
    sizes = numbers(rows, "--rows")
    _run(
        "core",
        quick=quick,
        rows=sizes[0] if sizes else None,
        more_rows=sizes[1:],
        out=out,
        data=data,
        repetitions=repetitions,
        memory=listed(memory),
        arms=listed(arms),
        batches=batches,
        warmup=warmup,
        batch_rows=numbers(batch_rows),
        columns=listed(columns),
        skews=_reals(skews, "--skews"),
        threads=numbers(threads, "--threads"),
        cold=cold,
    )


@bench.command()
def spark(
    rows: Rows = None,
    out: Out = None,
    data: Data = None,
    quick: Quick = False,
    repetitions: Repetitions = None,
    memory: Annotated[str, typer.Option("--memory", help="Budget of semistream, as a share of the store.")] = "10%",
    arms: Arms = None,
    batches: Batches = None,
    warmup: Warmup = None,
    batch_rows: BatchRows = None,
    streams: Annotated[
        str, typer.Option("--streams", help="narrow (20-byte rows), wide (about 250), or both.")
    ] = "narrow,wide",
    columns: Columns = "three",
) -> None:
    """Enrichment by semistream, and Spark's own joins, on the same stream.

    [bold]Examples[/]

    [cyan]semistream bench spark --quick[/]

    [cyan]semistream bench spark --arms passthrough,semistream --streams wide --out results[/]
    """
    _run(
        "spark",
        quick=quick,
        rows=rows,
        out=out,
        data=data,
        repetitions=repetitions,
        memory=listed(memory),
        arms=listed(arms),
        batches=batches,
        warmup=warmup,
        batch_rows=numbers(batch_rows),
        streams=listed(streams),
        columns=listed(columns),
    )


@bench.command()
def joins(
    out: Out = None,
    data: Data = None,
    quick: Quick = False,
    sizes: Annotated[str | None, typer.Option("--sizes", help="Rows of the master.", show_default=_SIZES)] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", help="Budgets, as shares of the store.", show_default=_BUDGETS)
    ] = None,
    skews: Annotated[str | None, typer.Option("--skews", help="Zipf exponents.", show_default=_SKEWS)] = None,
    layouts: Annotated[
        str | None, typer.Option("--layouts", help="shuffled, sorted or both.", show_default="both")
    ] = None,
    arms: Arms = None,
    repetitions: Repetitions = None,
    seconds: Annotated[float | None, typer.Option("--seconds", help="How long a cell is measured at most.")] = None,
    warm_seconds: Annotated[
        float | None,
        typer.Option("--warm-seconds", help="How long a cell warms up at most.", show_default="10; with --quick 5"),
    ] = None,
    cross: Annotated[bool, typer.Option("--cross", help="Every value with every other: days, not hours.")] = False,
) -> None:
    """Every join of the literature on one grid: what a read is worth, what waits how long, what it costs.

    Without --cross, one axis at a time is moved away from the centre: the first value of each, and the middle size.

    [bold]Examples[/]

    [cyan]semistream bench joins --quick[/]

    [cyan]semistream bench joins --sizes 1000000 --memory 10% --skews 1 --layouts shuffled --arms sscj,moij,sweep[/]
    """
    from semistream_lab.suites import GRIDS

    asked: dict[str, Any] = {
        "sizes": numbers(sizes, "--sizes"),
        "memory": listed(memory),
        "skews": _reals(skews, "--skews"),
        "layouts": listed(layouts),
        "seconds": seconds,
        "warm_seconds": warm_seconds,
        "crossed": cross,
    }
    grid = replace(GRIDS["quick" if quick else "full"], **given(asked))
    _run(
        "joins",
        quick=quick,
        out=out,
        data=data,
        arms=listed(arms),
        repetitions=1 if repetitions is None else repetitions,
        rows=grid.centre,
        grid=grid,
    )


@bench.command()
def report(directory: Annotated[Path, typer.Argument(help="Where results.jsonl lies.")]) -> None:
    """Make report.html from results.jsonl again."""
    from semistream_lab.report import write_report

    need_results(directory, "bench core")
    print(write_report(directory))


def _run(suite: str, *, quick: bool, **asked: Any) -> None:
    from rich.console import Console

    from semistream_lab.data import default_directory
    from semistream_lab.settings import Settings

    defaults = {**(QUICK if quick else FULL), "data": default_directory()}
    run_suite(Settings(suite, **{**defaults, **given(asked)}), Console(stderr=True))


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Those options of a command that were given."""
    return {name: value for name, value in options.items() if value not in (None, ())}


def need_results(directory: Path, command: str) -> None:
    """Raise an error that says how to get results, when there are none."""
    from semistream_lab.errors import SettingError

    if not (directory / "results.jsonl").exists():
        raise SettingError(
            f"there is no results.jsonl in {directory}; run `semistream {command} --out {directory}` first"
        )


def run_suite(settings: Settings, console: Console) -> None:
    """Prepare, run with a progress bar, report."""
    from semistream_lab import suites
    from semistream_lab.making import announcement
    from semistream_lab.needs import need_for
    from semistream_lab.report import write_report
    from semistream_lab.running import run_cells

    cells = suites.cells(settings)
    need_for(cells)
    said = None if settings.grid else announcement(settings)
    if said:
        console.print(said, highlight=False)
    run_cells(settings, cells, partial(suites.prepare, settings), write_report, console)
    if settings.suite in ("core", "peers"):
        _show_core(settings.out, {cell.key for cell in cells})


def _show_core(directory: Path, ours: set[str]) -> None:
    from semistream.commands.command_line import show_table
    from semistream_lab import report_core
    from semistream_lab.results import Results, cell_of, grouped

    groups = grouped(Results.load(directory).done, lambda line: cell_of(line).key in ours)
    for title, header, lines in report_core.tables(groups):
        show_table(title, header, lines)


def numbers(text: str | None, option: str = "--batch-rows") -> tuple[int, ...]:
    """Whole numbers that were given with commas."""
    from semistream_lab.errors import SettingError

    try:
        return tuple(int(part.replace("_", "")) for part in listed(text))
    except ValueError:
        raise SettingError(f"{option} {text} must be numbers separated by commas, such as 200000,2000000") from None


def _reals(text: str | None, option: str) -> tuple[float, ...]:
    from semistream_lab.errors import SettingError

    try:
        return tuple(float(part) for part in listed(text))
    except ValueError:
        raise SettingError(f"{option} {text} must be numbers separated by commas, such as 0,0.5,1") from None
