"""`semistream bench profile`: where a row's time goes in one cell of `bench core`, and how far that is from what the
machine can do.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semistream_lab.commands import Batches, Columns, Data, Quick, Rows, Warmup, given

if TYPE_CHECKING:
    from rich.console import Console

    from semistream_lab.cells import Cell
    from semistream_lab.settings import Settings

FULL: dict[str, Any] = {"rows": 10_000_000, "out": Path("runs/profile"), "batch_rows": (200_000,)}
QUICK: dict[str, Any] = {"rows": 1_000_000, "out": Path("runs/profile-quick"), "batches": 10, "warmup": 15}
ARMS = ("sweep", "sweep_groups", "sweep_each")
PAGE = 4096
_OTHERS = "Python, numpy and Arrow between"


def profile(
    rows: Rows = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where profile.json goes.", show_default="runs/profile[-quick]")
    ] = None,
    data: Data = None,
    quick: Quick = False,
    arm: Annotated[str, typer.Option("--arm", help=f"One of {', '.join(ARMS)}.")] = "sweep",
    memory: Annotated[str, typer.Option("--memory", help="Budget, as a share of the store.")] = "10%",
    batches: Batches = None,
    warmup: Warmup = None,
    batch_rows: Annotated[int, typer.Option("--batch-rows", help="Rows per batch.")] = 200_000,
    columns: Columns = "three",
    skew: Annotated[float, typer.Option("--skew", help="Zipf exponent of the stream; 0 is uniform.")] = 1.0,
    wait_seconds: Annotated[
        float | None,
        typer.Option("--wait-seconds", help="How long a row may wait; inf: counts are the same in every run."),
    ] = None,
) -> None:
    """Where a row's time goes in one cell of `bench core`, by CPU time and counts, beside the machine's limits.

    One thread, files in the page cache. Counts do not depend on what else the machine does, unless it makes rows
    wait to their deadline; CPU time and limits only as far as others use the processor's caches; the rate does.

    [bold]Examples[/]

    [cyan]semistream bench profile --quick[/]

    [cyan]semistream bench profile --arm sweep_groups --columns narrow --memory 1%[/]
    """
    from rich.console import Console

    from semistream.errors import choose
    from semistream.lookup.pacing import check_wait_seconds
    from semistream_lab import suites
    from semistream_lab.data import default_directory
    from semistream_lab.settings import Settings

    asked = {
        "rows": rows,
        "out": out,
        "memory": (memory,),
        "arms": (choose("arms", arm, ARMS),),
        "batches": batches,
        "warmup": warmup,
        "batch_rows": (batch_rows,),
        "columns": (columns,),
        "skews": (skew,),
    }
    chosen = {**(QUICK if quick else FULL), "data": data or default_directory(), **given(asked)}
    settings = Settings("core", **chosen, repetitions=1, threads=(1,))
    cell = next(cell for cell in suites.cells(settings) if not cell.params["direct"])
    if wait_seconds is not None:
        check_wait_seconds(wait_seconds)
        cell = replace(cell, params={**cell.params, "wait_seconds": wait_seconds})
    run(settings, cell, Console(stderr=True))


def run(settings: Settings, cell: Cell, console: Console) -> None:
    """Make the data, run the cell in a process of its own, show and keep what was seen."""
    from semistream_lab import making, suites
    from semistream_lab.cells import Cell

    said = making.announcement(settings)
    if said:
        console.print(said, highlight=False)
    with console.status("data") as status:
        suites.prepare(settings, status.update)
        status.update(cell.label)
        result = suites.run_cell(Cell("profile", cell.arm, cell.params), settings)
    settings.out.mkdir(parents=True, exist_ok=True)
    target = settings.out / "profile.json"
    target.write_text(json.dumps({"arm": cell.arm, "params": cell.params, **result}, indent=1) + "\n", encoding="utf-8")
    show(result)
    print(target)
    if result.get("busy"):
        console.print(
            f"{result['busy']}; counts hold, CPU times and limits are somewhat high, and rows/s mean nothing",
            style="yellow",
            highlight=False,
        )


@dataclass(frozen=True)
class Floor:
    """The least that a phase could take, and why."""

    ns: float
    why: str


def floors(result: dict[str, Any]) -> dict[str, Floor]:
    """For phases that are bound by memory or by the system; the others have none."""
    phases, limits = result["phases"], result["limits"]
    line, copied = limits["line_in_flight_ns"], limits["copy_ns_per_byte"]
    requests, size = result["counts"]["read requests"], result["counts"]["bytes read"]
    reading = requests * limits["page_read_ns"] + max(0, size - requests * PAGE) * limits["read_ns_per_byte"]

    def lines(name: str, each: int, why: str) -> Floor:
        return Floor(phases[name]["rows"] * each * line, why)

    def moved(name: str) -> Floor:
        return Floor(phases[name]["bytes"] * copied, "its bytes copied once")

    return {
        "encode": Floor(8 * phases["encode"]["rows"] * copied, "8 bytes copied per row"),
        "probe": lines("probe", 2, "2 lines of memory per row, 16 in flight: bucket and cell"),
        "gather": moved("gather"),
        "take stream rows": moved("take stream rows"),
        "let misses wait": moved("let misses wait"),
        "read": Floor(reading, "1 preadv2 of 4 KiB per request, and its other bytes at the rate of one of 256 KiB"),
        "check pages": Floor(phases["check pages"]["rows"] * limits["page_check_ns"], "1 checksum of 4 KiB per page"),
        "project": moved("project"),
        "admission": lines("admission", 4, "4 lines of memory per key: bucket, two counters, cell"),
    }


def phase_table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A line per phase, all per million rows of the stream; milliseconds per million rows are nanoseconds per row."""
    header = ["phase", "calls", "rows", "CPU, ms", "share", "ns each", "limit, ms", "× limit", "what the limit is"]
    millions, whole = result["rows"] / 1e6, max(1, result["cpu_ns"])
    least = floors(result)
    lines = []
    for name, phase in result["phases"].items():
        if not phase["calls"]:
            continue
        floor = least.get(name)
        bound = floor.ns / millions / 1e6 if floor else 0.0
        took = phase["ns"] / millions / 1e6
        lines.append(
            [
                name,
                f"{phase['calls'] / millions:,.1f}",
                f"{phase['rows'] / millions:,.0f}" if phase["rows"] else "–",
                f"{took:,.2f}",
                f"{phase['ns'] / whole:.1%}",
                f"{phase['ns'] / phase['rows']:,.1f}" if phase["rows"] else "–",
                f"{bound:,.2f}" if floor else "–",
                f"{took / bound:,.1f}" if bound else "–",
                floor.why if floor else "",
            ]
        )
    rest = whole - sum(phase["ns"] for phase in result["phases"].values())
    lines.append([_OTHERS, "", "", f"{rest / millions / 1e6:,.2f}", f"{rest / whole:.1%}", "", "", "", ""])
    lines.append(["all", "", "", f"{whole / millions / 1e6:,.2f}", "100.0%", "", "", "", ""])
    return header, lines


def limit_table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """What the machine can do at best."""
    from semistream.budget import format_bytes

    limits = result["limits"]
    memory = f"from {format_bytes(limits['memory_bytes'])} of memory"
    return ["what", "CPU"], [
        [f"64 bytes at random {memory}, one after the other", f"{limits['line_ns']:,.1f} ns"],
        [f"64 bytes at random {memory}, 16 in flight", f"{limits['line_in_flight_ns']:,.1f} ns"],
        ["preadv2 of 4 KiB from the page cache", f"{limits['page_read_ns']:,.0f} ns"],
        ["each KiB more in the same preadv2", f"{1024 * limits['read_ns_per_byte']:,.0f} ns"],
        ["checksum of 4 KiB", f"{limits['page_check_ns']:,.0f} ns"],
        ["copying memory", f"{1 / limits['copy_ns_per_byte']:,.1f} GB/s"],
    ]


def count_table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """What was counted, and per million rows."""
    millions = result["rows"] / 1e6
    lines = [[name, f"{count:,}", f"{count / millions:,.0f}"] for name, count in result["counts"].items()]
    return ["what", "in all", "per million rows"], lines


def show(result: dict[str, Any]) -> None:
    """All three tables, and what the clocks themselves took."""
    from semistream.commands.command_line import show_table

    show_table(f"CPU time per million rows of the stream, {result['rows']:,} rows", *phase_table(result))
    show_table("counts", *count_table(result))
    show_table("the machine's limits, measured in the same process", *limit_table(result))
    print(f"the clocks took about {result['clock_share']:.2%} of the CPU time; {result['rows_per_second']:,.0f} rows/s")
