"""`semistream run`, `check`, `status`, `retry`, `undo` and `reconcile`: pipelines on the command line."""

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from semistream.commands.command_line import Commands, progress_bars, show_table
from semistream.errors import ArgumentError, counted

if TYPE_CHECKING:
    from semistream.pipeline.decision import Decision
    from semistream.pipeline.pipeline import Pipeline

app = Commands()

File = Annotated[Path, Argument(metavar="PIPELINE.toml", help="The pipeline's file.")]


def _load(file: Path) -> "Pipeline":
    from semistream.pipeline.file import load

    return load(file)


@app.command(rich_help_panel="Pipelines")
def run(
    file: File,
    once: Annotated[bool, Option("--once", help="Load what is there, then stop.")] = False,
    replaces: Annotated[
        str | None, Option(help="Id of the query whose checkpoint is gone; only new rows may come.")
    ] = None,
) -> None:
    """Run a pipeline until it is stopped (Ctrl-C ends it after the batch), or once.

    [bold]Examples[/]

    [cyan]semistream run sales.toml[/]

    [cyan]semistream run sales.toml --once[/]
    """
    from semistream.pipeline.decision import COUNTS

    running = _load(file).start(once=once, replaces=replaces, told=_tell)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C does
    try:
        running.wait()
    except KeyboardInterrupt:
        print("stopping after this batch", file=sys.stderr)
    finally:
        running.stop()
    if running.last is not None:
        totals = running.last.totals
        show_table("all batches", [], [[name.replace("_", " "), f"{totals.get(name, 0):,}"] for name in COUNTS])


@app.command(rich_help_panel="Pipelines")
def check(file: File) -> None:
    """Check a pipeline completely, without starting it, and show what it will do.

    Example: [cyan]semistream check sales.toml[/]
    """
    for line in _load(file).check():
        print(line)
    print("all right")


@app.command(rich_help_panel="Pipelines")
def status(file: File) -> None:
    """Show what a pipeline has loaded and what it holds; it may be running.

    Example: [cyan]semistream status sales.toml[/]
    """
    from semistream.pipeline.status import status_of

    pipeline = _load(file)
    stores = {one.name: one.store for step in pipeline.steps for one in step.lookups}
    show_table(pipeline.name, [], [list(line) for line in status_of(pipeline.state, pipeline.name, stores).lines()])


@app.command(rich_help_panel="Pipelines")
def retry(file: File) -> None:
    """Send the unmatched rows of a pipeline through its steps again; those that match now are loaded, once.

    Example: [cyan]semistream retry sales.toml[/]
    """
    done = _load(file).retry()
    if done is None:
        print("no unmatched rows")
        return
    counts = done.counts
    print(f"{counted(counts['retried'], 'row')} tried, {counts['enriched']:,} loaded, {counts['unmatched']:,} left")


@app.command(rich_help_panel="Pipelines")
def undo(
    file: File, batch: Annotated[int | None, Option(help="The number that the last decision must have.")] = None
) -> None:
    """Withdraw a pipeline's last decision when it cannot be carried out and no table shows any of it.

    Its rows are computed again by the next run.

    Example: [cyan]semistream undo sales.toml --batch 12[/]
    """
    done = _load(file).undo(batch)
    print(f"batch {done.writes.batch} of {done.writes.app} is withdrawn; the next run computes its rows again")


def _tell(decision: "Decision") -> None:
    counts = decision.counts
    rate = counts["rows_in"] / max(1e-9, decision.seconds)
    others = ", ".join(f"{counts[name]:,} {name}" for name in counts if name != "rows_in" and counts[name])
    rows = counted(counts["rows_in"], "row")
    print(f"batch {decision.writes.batch}: {rows}, {rate:,.0f} rows/s ({others})", flush=True)


@app.command(rich_help_panel="Pipelines")
def reconcile(
    shed: Annotated[
        Path,
        Argument(metavar="SHED_DIR|PIPELINE.toml", help="The directory that Shed(to=...) named, or a pipeline's file."),
    ],
    to: Annotated[
        Path | None, Option(help="The Delta table that the stream writes to; a pipeline knows its own.")
    ] = None,
    master: Annotated[Path | None, Option(help="The store.", show_default="where it was when rows were shed")] = None,
    checkpoint: Annotated[Path | None, Option(help="The stream's checkpoint: its last batch is loaded too.")] = None,
    memory: Annotated[str | None, Option(help="Memory for the join.", show_default="256MB")] = None,
    latest: Annotated[
        bool, Option("--latest", help="Join with the newest version, not with the one the batch read.")
    ] = False,
    remove: Annotated[bool, Option("--remove", help="Delete shed rows when the table holds them.")] = False,
) -> None:
    """Join the rows that were shed and load them, each once, however often this is run or killed.

    [bold]Examples[/]

    [cyan]semistream reconcile shed --master products --to sales --checkpoint checkpoint[/]

    [cyan]semistream reconcile sales.toml[/]
    """
    from semistream.warehouse import reconcile as load

    settings: dict[str, Any] = {"master": master, "checkpoint": checkpoint, "latest": latest, "remove": remove}
    if shed.suffix == ".toml":
        if to or memory or any(settings.values()):
            raise ArgumentError(f"{shed} says where everything is; leave the options out")
        whole = _load(shed).reconcile()
        if whole is None:
            print("no shed rows")
        else:
            rows = counted(whole.counts["reconciled"], "shed row")
            print(f"{rows} sent through the steps, {whole.counts['enriched']:,} loaded")
        return
    if to is None:
        raise ArgumentError("give --to, the Delta table that the stream writes to")
    with progress_bars() as progress:
        done = load(shed, to, memory=memory or "256MB", progress=progress, **settings)
    loaded, there = (counted(number, "batch", "batches") for number in (done.batches, done.skipped))
    print(f"{to}: {counted(done.rows, 'shed row')} of {loaded} loaded; {there} skipped, as the table has their rows")
    for batch in done.waiting:
        print(f"batch {batch} is the newest and may still run: give --checkpoint, or run this again later")
