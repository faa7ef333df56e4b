"""`semistream bench plan`: the command; what it does is in `plan_check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from semistream_lab.commands import Data


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
    from semistream.commands.command_line import progress_bars, show_table
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
