"""`semistream tune`: the settings of a join by its model, and by measurement."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semistream.commands.command_line import Commands, progress_bars, show_table
from semistream.commands.planning import (
    Master,
    On,
    Ranked,
    RowBytes,
    Sample,
    Skew,
    StreamColumns,
    question_of,
    read_sample,
)
from semistream.errors import ArgumentError

if TYPE_CHECKING:
    from semistream_lab.tuning import Trial


app = Commands()


@app.command(rich_help_panel="Planning")
def tune(
    join: Annotated[str, typer.Argument(metavar="JOIN", help="mesh, tuned_xhybrid or sscj.")],
    master: Master,
    memory: Annotated[str, typer.Option("--memory", help="The budget.")] = "10%",
    rate: Annotated[float | None, typer.Option("--rate", help="mesh only: the least memory for a rate.")] = None,
    skew: Skew = None,
    sample: Sample = None,
    on: On = None,
    columns: StreamColumns = None,
    ranked: Ranked = False,
    row_bytes: RowBytes = 20,
    measured: Annotated[bool, typer.Option("--measure", help="Run every setting on the sample, too.")] = False,
    threshold: Annotated[bool, typer.Option("--threshold", help="sscj only: measure its thresholds.")] = False,
    seconds: Annotated[float, typer.Option("--seconds", help="Measured seconds of each setting.")] = 1.0,
    plot: Annotated[Path | None, typer.Option("--plot", help="tuned_xhybrid only: draw the surface as SVG.")] = None,
) -> None:
    """Find the best settings of one of the papers' joins, by its model or by measurement.

    [bold]Examples[/]

    [cyan]semistream tune mesh --master products --rate 100000[/]

    [cyan]semistream tune tuned_xhybrid --master products --sample sales.parquet --measure --plot surface.svg[/]
    """
    from semistream.budget import format_bytes, parse_bytes
    from semistream_lab import tuning

    tuning.trials(join)  # refuses what cannot be tuned
    rows = None if sample is None else read_sample(sample)
    store, question, profile = question_of(master, skew, rows, on, columns, row_bytes, ranked=ranked)
    if rate is not None:
        if join != "mesh":
            raise ArgumentError(f"--rate is for mesh, not for {join}; 'semistream plan' answers it for all joins")
        size, settings = tuning.least_memory_for_mesh(store, question, rate)
        print(f"mesh reaches {rate:,.0f} rows/s per core with {format_bytes(size)}, as {settings}")
        return
    if (measured or threshold) and rows is None:
        raise ArgumentError("a measurement needs a stream; give --sample")
    stream = (lambda: itertools.cycle(rows)) if rows is not None and (measured or threshold) else None
    with progress_bars() as progress:
        trials = tuning.tune(
            join,
            store,
            question,
            parse_bytes(memory, whole=store.bytes),
            profile,
            settings=tuning.thresholds(0.3) if threshold and join == "sscj" else None,
            stream=stream,
            seconds=seconds,
            report=lambda done, total: progress(f"trying settings of {join}", done, total),
        )
    _show_trials(trials)
    if plot is not None:
        from semistream_lab.surface import surface

        plot.write_text(surface(trials), encoding="utf-8")
        print(f"drawn in {plot}")


def _show_trials(trials: list[Trial]) -> None:
    def number(value: float | None) -> str:
        return "–" if value is None else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"

    header = ["settings", "tuples per page", "rows/s", "measured: tuples per page", "rows/s"]
    lines = [
        [
            ", ".join(f"{name} {value}" for name, value in vars(trial.settings).items()),
            number(trial.tuples_per_page),
            number(trial.rows_per_second),
            number(trial.measured_tuples_per_page),
            number(trial.measured_rows_per_second),
        ]
        for trial in trials[:12]
    ]
    show_table(f"the best of {len(trials)}", header, lines)
