"""`semistream demo`; heavy imports wait until the command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from semistream.commands.command_line import Commands

app = Commands()


@app.command(rich_help_panel="This machine")
def demo(
    directory: Annotated[
        Path | None, typer.Option("--directory", help="Where its files go.", show_default="runs/demo")
    ] = None,
    products: Annotated[int, typer.Option("--products", help="Products in the master.")] = 1_000_000,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer sales and products: it works, but rates say nothing.")
    ] = False,
) -> None:
    """A pipeline of sales into Delta tables, then Spark's own joins on the same files, watched live.

    It is stopped and restarted on the way, and every sale must be in the table once. About a minute on two idle
    cores, half a minute with --quick; the first time also compiles kernels.
    """
    from semistream_lab.demo import run

    raise typer.Exit(run(directory, products, quick))
