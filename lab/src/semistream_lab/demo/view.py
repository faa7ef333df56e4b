"""What the demo shows while it runs: drawn live in a terminal, plain lines where there is none (a log, a CI run)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.progress_bar import ProgressBar
from rich.table import Table

from semistream.budget import format_bytes

if TYPE_CHECKING:
    from semistream.stores.paged.store import Progress as BuildProgress
    from semistream_lab.demo import Place, Settings
    from semistream_lab.demo.query import Reading

_LOG_WIDTH = 110  # of a log: rich would guess 80


class View:
    """The demo's terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        if console is None and not self.console.is_terminal:
            self.console = Console(highlight=False, width=_LOG_WIDTH)

    def opening(self, place: Place, settings: Settings) -> None:
        """What is going to happen."""
        text = (
            f"[bold]{settings.rows:,} sales of {settings.products:,} products[/] arrive as files, "
            f"{settings.arrival_rate:,.0f} per second. A pipeline adds to each sale the key, vendor and price of its "
            f"product, from a store on disk with memory for {settings.memory} of it, the city of its store, and the "
            "warehouse's key of its customer, a new one when the customer is unknown. It writes each sale to a Delta "
            f"table exactly once. Then Spark's own joins get the same files. Everything is in {short(place.root)}; "
            f"on two idle cores all of it takes {settings.duration}."
        )
        self.console.print("", Padding(text, (0, 2)), "", sep="\n")

    @contextmanager
    def building(self) -> Iterator[BuildProgress]:
        """A bar for the store."""
        started = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
        with Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as bars:
            bar = bars.add_task("Making up products", total=None)

            def progress(stage: str, done: int, total: int | None) -> None:
                bars.update(bar, description=f"Building the store: {stage}", completed=done, total=total)

            yield progress
        self._done("Products and sales made up, store built", started)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Something without steps."""
        started = time.monotonic()
        with self.console.status(what):
            yield
        self._done(what, started)

    @contextmanager
    def live(self, title: str, rows: int, budget_bytes: int = 0) -> Iterator[LiveQuery]:
        """One query on its way to so many rows."""
        started = time.monotonic()
        shown = LiveQuery(self, title, rows, budget_bytes)
        if self.console.is_terminal:
            first = f"[bold]{title}[/]\n  [dim]Spark plans the query[/]"
            with Live(first, console=self.console, refresh_per_second=4, transient=True) as shown.screen:
                yield shown
        else:
            self.console.print(f"… {title}")
            yield shown
        stopped = ", then stopped: enough to compare" if shown.rows < rows else ""
        self._done(f"{title}: {shown.rows:,} sales{stopped}", started)

    def _done(self, what: str, started: float) -> None:
        self.console.print(f"[green]✓[/] {what} [dim]({time.monotonic() - started:.1f} s)[/]")


class LiveQuery:
    """A running query: a block that is drawn again and again, or a line for every batch."""

    def __init__(self, view: View, title: str, goal: int, budget_bytes: int) -> None:
        self.view = view
        self.title = title
        self.goal = goal
        self.budget_bytes = budget_bytes
        self.screen: Live | None = None
        self.rows = 0
        self._batch = -1

    def update(self, reading: Reading) -> None:
        """Show a new reading."""
        self.rows = reading.rows
        if self.screen is not None:
            self.screen.update(self._block(reading))
        elif reading.batch > self._batch:
            self._batch = reading.batch
            said = [f"{reading.rows:,} sales", *_facts(self, reading).values()]
            self.view.console.print(f"  batch {reading.batch}: {', '.join(said)}", soft_wrap=True)

    def finished(self, rows: int) -> None:
        """The table has the last word: a query may load a batch more than it came to tell."""
        self.rows = rows

    def stopped(self, batch: int, rows: int) -> None:
        """Say what was done to the query."""
        text = (
            f"Stopped on purpose after batch {batch}, with {rows:,} sales in the table. Spark's note that batch "
            f"{batch} is done is removed: this is how a crash between the two commits leaves it. Restarted from its "
            f"checkpoint, Spark sends batch {batch} again."
        )
        grid = Table.grid(padding=(0, 1))
        grid.add_row("[yellow]![/]", text)
        self.view.console.print(grid)

    def _block(self, reading: Reading) -> Group:
        grid = Table.grid(padding=(0, 2))
        grid.add_row("  Sales", f"{reading.rows:,} of {self.goal:,}")
        for name, text in _facts(self, reading).items():
            grid.add_row(f"  {name}", text)
        bar = ProgressBar(total=self.goal, completed=min(reading.rows, self.goal), width=60)
        return Group(f"[bold]{self.title}[/]", Padding(bar, (0, 2)), grid)


def _facts(query: LiveQuery, reading: Reading) -> dict[str, str]:
    facts = {"Speed": "first batch under way"}
    if reading.batch_seconds:
        facts["Speed"] = f"{reading.batch_rows / reading.batch_seconds:,.0f} rows/s"
    if query.budget_bytes:
        stats = reading.stats
        facts["Cache"] = f"{stats.hit_ratio:.0%} found in the cache" if stats else "empty"
        used = format_bytes(stats.peak_bytes) if stats else "nothing"
        facts["Memory"] = f"{used} of {format_bytes(query.budget_bytes)} used"
        files = f"{reading.files_behind} file{'s' * (reading.files_behind != 1)}"
        facts["Lag"] = f"{files} ({reading.seconds_behind:.1f} s) behind" if reading.files_behind else "up to date"
    return facts


def short(path: Path) -> str:
    """A path as one would type it here."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)
