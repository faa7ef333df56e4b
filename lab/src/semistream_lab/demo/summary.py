"""The end of the demo: the accounting, the rates side by side, the table, and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from semistream.budget import format_bytes, parse_bytes
from semistream_lab.demo.query import MEASURED
from semistream_lab.demo.view import short

if TYPE_CHECKING:
    import pyarrow as pa

    from semistream.stores import MasterStore
    from semistream_lab.demo import Place, Settings
    from semistream_lab.demo.checks import Verdict


def summary(place: Place, settings: Settings, store: MasterStore, verdict: Verdict, seconds: float) -> Panel:
    """All of it in one panel."""
    parts: list[RenderableType] = [
        "[bold]Accounting[/]",
        _accounting(verdict),
        "",
        f"[bold]Rates[/] from file to Delta table, by the last {MEASURED} full batches",
        _rates(settings, verdict, store),
        f"  {_judgement(settings, verdict)}",
        "",
        f"[bold]Three rows[/] of {short(verdict.ours.table)}",
        _rows(verdict.sample),
        "",
        "[bold]Next[/]",
        _next(place, verdict),
    ]
    title = "Every sale once, and the same rows as from Spark's own joins" if verdict.good else "Not as promised: see ✗"
    return Panel(
        Group(*parts),
        title=f"[bold]{title}[/]",
        subtitle=f"{seconds:.0f} s in all",
        border_style="green" if verdict.good else "red",
        padding=(1, 2),
    )


def _accounting(verdict: Verdict) -> Table:
    stats = verdict.ours.stats
    lines = [
        (
            verdict.accounted,
            f"{stats.rows_in:,} sales in = {stats.matched:,} with a product + {stats.unmatched:,} of unknown products",
        ),
        (
            verdict.once,
            f"{verdict.in_table:,} rows in the table, {verdict.distinct:,} different sales, {verdict.sold:,} sold",
        ),
        (
            verdict.ours.replayed > 0,
            f"{verdict.ours.replayed} batch sent again after the restart, and not written again",
        ),
        (verdict.numbered, f"{verdict.customers[0]:,} new customers, each with one key of the warehouse"),
    ]
    lines += [
        (equal, f"{rows:,} rows of {name} compared with ours: {'equal' if equal else 'different'}")
        for name, (rows, equal) in verdict.same.items()
    ]
    grid = Table.grid(padding=(0, 1))
    for good, text in lines:
        grid.add_row("  [green]✓[/]" if good else "  [red]✗[/]", text)
    return grid


def _rates(settings: Settings, verdict: Verdict, store: MasterStore) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column()
    table.add_column("rows/s", justify="right")
    table.add_column("batches", justify="right")
    table.add_column("s per batch", justify="right")
    table.add_column()
    budget, whole = parse_bytes(settings.memory, whole=store.bytes), format_bytes(store.bytes)
    remarks = [f"{format_bytes(budget)} of memory for {whole}, and makes customers"]
    remarks += ["reads all products every time"] * 2
    for outcome, remark in zip((verdict.ours, *verdict.natives), remarks, strict=True):
        counted, median = f"{len(outcome.measured)}", f"{outcome.batch_seconds:.2f}"
        table.add_row(f"  {outcome.name}", f"{outcome.rate:,.0f}", counted, median, f"[dim]{remark}[/]")
    return table


def _judgement(settings: Settings, verdict: Verdict) -> str:
    if not settings.compare_rates:
        return "[dim]Too few sales to judge the rates by.[/]"
    lines = [f"Sales arrived at {settings.arrival_rate:,.0f} rows/s."]
    first, last = verdict.ours.lag.trend
    between = f"from {first:.1f} s to {last:.1f} s (first and last third of the files)"
    if verdict.ours.lag.grew(settings.trigger_seconds):
        lines.append(f"semistream fell behind: its lag grew {between}.")
    elif verdict.ours.rate < settings.arrival_rate:
        lines.append(f"semistream did not keep up: its batches are slower than that, though its lag went {between}.")
    else:
        lines.append(f"semistream kept up: its lag went {between}.")
    lines += [
        f"{one.name} would {'keep up' if one.rate >= settings.arrival_rate else 'fall behind'}, by its rate."
        for one in verdict.natives
    ]
    return "\n  ".join(lines)


def _rows(sample: pa.Table) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in sample.column_names:
        table.add_column(name, no_wrap=True, justify="right" if name in ("quantity", "price") else "left")
    for row in sample.to_pylist():
        table.add_row(*[_cell(value) for value in row.values()])
    return table


def _cell(value: Any) -> Text:
    if value is None:
        return Text("NULL", style="dim")
    return Text(f"{value:%H:%M:%S.%f}"[:-3] if hasattr(value, "strftime") else str(value))


def _next(place: Place, verdict: Verdict) -> Table:
    grid = Table.grid(padding=(0, 3))
    for command, meaning in (
        (f"semistream inspect {short(place.store)}", "look into the store"),
        ("docs/tutorial.md", "a pipeline of your own, from an empty directory"),
        ("semistream build FILE STORE --key COLUMN", "build a store from your own master data"),
        (f"DeltaTable({short(verdict.ours.table)!r}).to_pyarrow_table()", "read the table in Python"),
        (f"rm -r {short(place.root)}", "remove everything that the demo made"),
    ):
        grid.add_row(f"  [cyan]{command}[/]", meaning)
    return grid
