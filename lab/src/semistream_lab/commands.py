"""`semistream bench`: the command group; heavy imports wait until a command runs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semistream.commands.command_line import Commands
from semistream.commands.options import listed

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
Columns = Annotated[str, typer.Option("--columns", help="Master columns to add: three or all.")]


@bench.command()
def core(
    rows: Rows = None,
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
) -> None:
    """Our joins and DuckDB on batches, without Spark.

    [bold]Examples[/]

    [cyan]semistream bench core --quick[/]

    [cyan]semistream bench core --arms sweep,duckdb_table --memory 10% --out results[/]
    """
    _run(
        "core",
        quick=quick,
        rows=rows,
        out=out,
        data=data,
        repetitions=repetitions,
        memory=listed(memory),
        arms=listed(arms),
        batches=batches,
        warmup=warmup,
        batch_rows=_numbers(batch_rows),
        columns=columns,
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
        batch_rows=_numbers(batch_rows),
        streams=listed(streams),
        columns=columns,
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
    from semistream_lab.errors import SettingError
    from semistream_lab.suites import GRIDS

    try:
        asked: dict[str, Any] = {
            "sizes": _numbers(sizes, "--sizes"),
            "memory": listed(memory),
            "skews": tuple(float(part) for part in listed(skews)),
            "layouts": listed(layouts),
            "seconds": seconds,
            "warm_seconds": warm_seconds,
            "crossed": cross,
        }
    except ValueError:
        raise SettingError(f"--skews {skews} must be numbers separated by commas, such as 0,0.5,1") from None
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
    from semistream_lab.report import write_report
    from semistream_lab.running import run_cells

    run_cells(settings, suites.cells(settings), partial(suites.prepare, settings), write_report, console)


@bench.command()
def plan(
    settings: Annotated[int, typer.Option("--settings", help="How many questions, drawn at random.")] = 20,
    seed: Annotated[int, typer.Option("--seed", help="Another seed, other questions.")] = 1,
    seconds: Annotated[float, typer.Option("--seconds", help="Measured seconds of each.")] = 3.0,
    repetitions: Annotated[int, typer.Option("--repetitions", help="Runs of each, the median counts.")] = 3,
    out: Annotated[Path, typer.Option("--out", help="Where plan.jsonl goes.")] = Path("runs/bench-plan"),
    data: Data = None,
) -> None:
    """Ask the planner at random, run what it recommends, and compare.

    Example: [cyan]semistream bench plan --settings 20 --seed 7[/]
    """
    from semistream.commands.terminal import progress_bars, show_table
    from semistream_lab.asked import check_directories, check_numbers, check_seconds
    from semistream_lab.busy import summary as busy_summary
    from semistream_lab.data import default_directory
    from semistream_lab.plan_check import run
    from semistream_lab.plots import short

    data = data or default_directory()
    check_numbers(1, settings=settings, repetitions=repetitions)
    check_numbers(0, seed=seed)
    check_seconds(seconds=seconds)
    check_directories(out=out, data=data)
    with progress_bars() as progress:
        results = run(
            settings,
            seed,
            data,
            seconds,
            out,
            repetitions,
            lambda done, total: progress("runs", done, total),
        )
    lines = [
        [
            short(r["rows"]),
            f"{r['skew']:g}",
            r["asks"],
            f"{r['memory_bytes'] / 1e6:.1f} MB",
            r["algorithm"],
            short(r["expected_rows_per_second"]),
            short(r["rows_per_second"]),
            f"{r['as_it_came'] - 1:+.0%}",
            f"{r['at_pace'] - 1:+.0%}",
        ]
        for r in results
    ]
    header = ["R", "skew", "asked", "memory", "join", "rows/s said", "came", "differs", "at its pace"]
    show_table("what the planner said, and what came", header, lines)
    near, raw = (sum(abs(r[share] - 1) <= 0.25 for r in results) for share in ("at_pace", "as_it_came"))
    print(
        f"within 25 %: {near} of {len(results)} at the machine's pace while each ran, {raw} without regard to it; "
        f"written to {out / 'plan.jsonl'}"
    )
    if doubt := busy_summary(results):
        print(doubt)


def _numbers(text: str | None, option: str = "--batch-rows") -> tuple[int, ...]:
    from semistream_lab.errors import SettingError

    try:
        return tuple(int(part.replace("_", "")) for part in listed(text))
    except ValueError:
        raise SettingError(f"{option} {text} must be numbers separated by commas, such as 200000,2000000") from None
