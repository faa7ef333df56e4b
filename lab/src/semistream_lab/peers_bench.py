"""`semistream bench peers`: what somebody could take instead of semistream, on the same stream."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from semistream.commands.command_line import listed
from semistream_lab.commands import Batches, Data, Quick, Repetitions, Warmup, given, numbers, run_suite
from semistream_lab.errors import BenchmarkError

FULL: dict[str, Any] = {"rows": 1_000_000, "out": Path("runs/bench-peers"), "batch_rows": (200_000,)}
QUICK: dict[str, Any] = {
    "rows": 100_000,
    "out": Path("runs/bench-peers-quick"),
    "batch_rows": (20_000,),
    "repetitions": 1,
    "batches": 10,
    "warmup": 5,
}
_QUICKLY = "1000000; with --quick 100000"


def peers(
    rows: Annotated[int | None, typer.Option("--rows", help="Rows of the master.", show_default=_QUICKLY)] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where results go.", show_default="runs/bench-peers[-quick]")
    ] = None,
    data: Data = None,
    quick: Quick = False,
    repetitions: Repetitions = None,
    memory: Annotated[str, typer.Option("--memory", help="Budget, as a share of the store.")] = "10%",
    peers: Annotated[
        str | None,
        typer.Option("--peers", help="Which, separated by commas.", show_default="all that are installed"),
    ] = None,
    batches: Batches = None,
    warmup: Warmup = None,
    batch_rows: Annotated[
        str | None, typer.Option("--batch-rows", help="Batch sizes.", show_default="200000; with --quick 20000")
    ] = None,
    columns: Annotated[
        str, typer.Option("--columns", help="Master columns to add: narrow (two), three, text (one) or all.")
    ] = "narrow",
) -> None:
    """Key-value stores, embedded databases and Flink's lookup join beside semistream, one thread each.

    Peers that are not installed are named and left out. Key-value stores come with
    [cyan]pip install 'semistream-lab\\[peers]'[/]; Flink with [cyan]python -m semistream_lab.peers.flink_fetch[/].

    [bold]Examples[/]

    [cyan]semistream bench peers --quick[/]

    [cyan]semistream bench peers --peers semistream,lmdb,flink --columns all[/]
    """
    from rich.console import Console

    from semistream_lab.data import default_directory
    from semistream_lab.peers import PEERS
    from semistream_lab.settings import Settings

    asked: dict[str, Any] = {
        "rows": rows,
        "out": out,
        "repetitions": repetitions,
        "memory": listed(memory),
        "arms": listed(peers),
        "batches": batches,
        "warmup": warmup,
        "batch_rows": numbers(batch_rows),
        "columns": listed(columns),
    }
    chosen = {**(QUICK if quick else FULL), "data": data or default_directory(), **given(asked)}
    settings = Settings("peers", **{**chosen, "arms": chosen.get("arms") or tuple(PEERS)})
    console = Console(stderr=True)
    there = _installed(settings.arms, console)
    run_suite(Settings("peers", **{**chosen, "arms": there}), console)


def _installed(names: tuple[str, ...], console: Any) -> tuple[str, ...]:
    """Those that can be run; of the others a line says what to install."""
    from semistream_lab.peers import peer

    lacking = {name: said for name in names if (said := peer(name).missing()) is not None}
    for name, said in lacking.items():
        console.print(f"{name}: {said}", style="yellow", markup=False, highlight=False)
    if len(lacking) == len(names):
        raise BenchmarkError(f"none of {', '.join(names)} is installed")
    return tuple(name for name in names if name not in lacking)
