"""`semistream bench pipeline`: three masters, a Delta table, against the same pipeline by Spark's own joins."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from semistream_lab.asked import check_directories, check_memory, check_numbers
from semistream_lab.cells import Cell
from semistream_lab.commands import Data, Quick, Repetitions, given
from semistream_lab.errors import SettingError

ARMS = ("semistream", "spark")
_QUICKLY = "10000000; with --quick 200000"
Rows = Annotated[
    int | None, typer.Option("--rows", help="Rows of the largest of three masters.", show_default=_QUICKLY)
]
Out = Annotated[
    Path | None, typer.Option("--out", help="Where results go.", show_default="runs/bench-pipeline[-quick]")
]


@dataclass(frozen=True)
class PipelineSettings:
    """What a run is asked for."""

    rows: int
    out: Path
    data: Path
    batch_rows: int = 200_000
    batches: int = 20
    closed: int = 20
    warmup: int = 20
    repetitions: int = 3
    memory: str = "10%"
    minutes: float = 0.0
    changes: bool = False
    load: float = 0.8

    def __post_init__(self) -> None:
        for name in ("rows", "batches", "closed", "warmup", "repetitions"):
            check_numbers(1, **{name: getattr(self, name)})
        if self.batch_rows < 2:
            raise SettingError(f"batch_rows={self.batch_rows} must be at least 2")
        if not 0 < self.load <= 1:
            raise SettingError(f"load={self.load:g} must be a share of the measured rate, such as 0.8")
        if not 0 <= self.minutes < math.inf:
            raise SettingError(f"soak={self.minutes:g} must be minutes")
        if self.changes and not self.minutes:
            raise SettingError("--changes is a second soak: give --soak more than 0 minutes, or leave it out")
        check_memory(self.memory)
        check_directories(out=self.out, data=self.data)

    @property
    def timeout_seconds(self) -> float:
        """When a cell is given up."""
        return 3600.0 + 120 * self.minutes

    @property
    def command(self) -> str:
        """How to run this again; where data and results go is left out."""
        words = f"semistream bench pipeline --rows {self.rows} --batch-rows {self.batch_rows} --batches {self.batches}"
        words += f" --warmup {self.warmup} --repetitions {self.repetitions} --memory {self.memory}"
        words += f" --soak {self.minutes:g} --load {self.load:g}" if self.minutes else ""
        return words + (" --changes" if self.changes else "")

    def cells(self) -> list[Cell]:
        """Both arms, each repetition with the other first."""
        from semistream_lab.suites import in_turns

        common: dict[str, Any] = {"rows": self.rows, "batch_rows": self.batch_rows}
        common |= {"warmup": self.warmup, "batches": self.batches, "closed": self.closed}
        place = [("semistream", {**common, "memory": self.memory}), ("spark", common)]
        return in_turns("pipeline", [place], self.repetitions)

    def soaks(self, rate: float) -> list[Cell]:
        """Under a steady load: with and without a master that changes."""
        if not self.minutes:
            return []
        params: dict[str, Any] = {"rows": self.rows, "batch_rows": self.batch_rows, "memory": self.memory}
        params |= {"minutes": self.minutes, "rate": round(self.load * rate), "warmup": self.warmup}
        return [Cell("pipeline", arm, params) for arm in ("soak", *(("soak_changes",) if self.changes else ()))]


FULL = {"rows": 10_000_000, "out": Path("runs/bench-pipeline")}
QUICK = {
    "rows": 200_000,
    "out": Path("runs/bench-pipeline-quick"),
    "batch_rows": 20_000,
    "batches": 5,
    "closed": 5,
    "warmup": 2,
    "repetitions": 1,
    "memory": "50%",
}


def pipeline(
    rows: Rows = None,
    out: Out = None,
    data: Data = None,
    quick: Quick = False,
    batch_rows: Annotated[
        int | None, typer.Option("--batch-rows", help="Rows per batch.", show_default="200000")
    ] = None,
    batches: Annotated[
        int | None, typer.Option("--batches", help="Timed batches of each phase.", show_default="20")
    ] = None,
    warmup: Annotated[
        int | None, typer.Option("--warmup", help="Batches before those that are timed.", show_default="20")
    ] = None,
    repetitions: Repetitions = None,
    memory: Annotated[
        str | None, typer.Option("--memory", help="Of all lookups; a share is of all stores.", show_default="10%")
    ] = None,
    soak: Annotated[
        float | None, typer.Option("--soak", metavar="MINUTES", help="Then so long under a steady load.")
    ] = None,
    load: Annotated[float, typer.Option("--load", help="Of the soak, as a share of the measured rate.")] = 0.8,
    changes: Annotated[
        bool, typer.Option("--changes", help="A second soak in which 1 % of a master changes every 10 s.")
    ] = False,
) -> None:
    """A whole pipeline, from files to a Delta table: three masters, against Spark's stream-static joins.

    [bold]Examples[/]

    [cyan]semistream bench pipeline --quick[/]

    [cyan]semistream bench pipeline --soak 30 --changes[/]
    """
    from rich.console import Console

    from semistream_lab.data import default_directory

    asked = {
        "rows": rows,
        "out": out,
        "batch_rows": batch_rows,
        "batches": batches,
        "closed": batches,
        "warmup": warmup,
        "repetitions": repetitions,
        "memory": memory,
        "minutes": soak if soak is not None else 2.0 if changes else None,
    }
    chosen: dict[str, Any] = {**(QUICK if quick else FULL), "data": data or default_directory(), **given(asked)}
    run(PipelineSettings(**chosen, load=load, changes=changes), Console(stderr=True))


def run(settings: PipelineSettings, console: Any) -> None:
    """Both arms, then the soaks at a share of the rate that was measured; then the targets."""
    from semistream_lab.report import write_report
    from semistream_lab.results import Results, cell_of, grouped
    from semistream_lab.running import run_cells

    cells = settings.cells()
    run_cells(settings, cells, partial(prepare, settings), write_report, console)
    wanted = {cell.key for cell in cells if cell.arm == "semistream"}
    rates = [line["rows_per_second"] for line in Results.load(settings.out).done if cell_of(line).key in wanted]
    soaks = settings.soaks(statistics.median(rates))
    if soaks:
        run_cells(settings, soaks, lambda _: None, write_report, console)
    ours = {cell.key for cell in (*cells, *soaks)}
    show_targets(grouped(Results.load(settings.out).done, lambda line: cell_of(line).key in ours))


def prepare(settings: PipelineSettings, note: Callable[[str], None]) -> None:
    """Make the data before anything is timed; what is there is kept."""
    from semistream_lab.data_pipeline import GROUP, SalesData
    from semistream_lab.soak import BATCHES

    data = SalesData(settings.data, settings.rows)
    for name, master in data.masters().items():
        note(f"data: {name}, {master.rows:,} rows")
        master.store(GROUP)
        master.master()
    note("data: the sales")
    data.sales(settings.warmup + settings.batches + settings.closed, settings.batch_rows)
    if settings.minutes:
        data.sales(BATCHES, settings.batch_rows)


def show_targets(groups: list[Any]) -> None:
    """What had to be reached, and what was."""
    from rich.text import Text

    from semistream.commands.command_line import show_table
    from semistream_lab.report_pipeline import STATED_FOR, targets

    lines: list[list[str | Text]] = [
        [Text("✓", "green") if one.met else Text("✗", "red"), one.what, one.wanted, one.measured, one.where]
        for one in targets(groups)
    ]
    show_table(f"targets, stated for {STATED_FOR}", ["", "", "wanted", "reached", "where"], lines)
