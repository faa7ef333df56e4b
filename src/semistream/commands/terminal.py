"""How commands show things on a terminal: bars while they work, tables when they are done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from semistream.budget import format_bytes

if TYPE_CHECKING:
    from rich.text import Text

    from semistream.stores import MasterStore
    from semistream.stores.paged.store import Progress


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """A bar for each phase, on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def show(phase: str, done: int, total: int | None) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=total)
            bars.update(tasks[phase], completed=done, total=total)

        yield show


def store_facts(store: MasterStore) -> dict[str, Any]:
    """What is known of a store, as `semistream inspect --format json` prints it."""
    entries = store.manifest.segments
    # A key that a delta changed lies in two segments; counting it once would take a scan.
    distinct = min(sum(entry.keys for entry in entries), store.rows)
    return {
        "path": str(store.path),
        "version": store.version,
        "rows": store.rows,
        "key": list(store.key),
        "columns": {field.name: str(field.type) for field in store.schema},
        "pages": store.pages,
        "page_bytes": store.page_bytes,
        "bytes": store.bytes,
        "bytes_all_versions": sum(file.stat().st_size for file in store.path.iterdir() if file.is_file()),
        "index_bytes": store.facts.index_bytes,
        "filter_bytes": store.facts.filter_bytes,
        "keys": {
            "distinct_at_most": distinct,
            "exact": all(entry.role == "base" for entry in entries),
            "rows_a_key": store.rows / max(1, distinct),
            "largest_group": max((entry.largest_group for entry in entries), default=0),
            "null_keys_left_out": store.manifest.null_keys,
        },
        "segments": [
            {"file": e.file, "role": e.role, "rows": e.rows, "pages": e.pages, "bytes": e.bytes} for e in entries
        ],
        "groups": {
            name: {"columns": list(one.columns), "bytes": one.bytes} for name, one in store.manifest.groups.items()
        },
        "versions": store.versions(),
        "device": store.manifest.device,
        "properties": store.properties,
    }


def show_facts(facts: dict[str, Any]) -> None:
    keys, device = facts["keys"], facts["device"]
    about = "" if keys["exact"] else "at most "

    def size(name: str) -> str:
        return format_bytes(facts[name])

    lines = [
        ["rows", f"{facts['rows']:,}"],
        ["key", ", ".join(facts["key"])],
        ["pages", f"{facts['pages']:,} of {facts['page_bytes']:,} bytes"],
        ["on disk", f"{size('bytes')}, with older versions {size('bytes_all_versions')}"],
        ["in memory", f"{size('index_bytes')} index, {size('filter_bytes')} filter if it is used"],
        ["distinct keys", f"{about}{keys['distinct_at_most']:,}"],
        ["rows per key", f"{keys['rows_a_key']:.2f} on average, {keys['largest_group']:,} at most"],
        ["rows left out", f"{keys['null_keys_left_out']:,} with a NULL key"],
    ]
    lines += [[name, value] for name, value in facts["properties"].items()]
    for kind, name in (("cached", "page cache"), ("direct", "O_DIRECT")):
        if f"{kind}_request_seconds" in device:
            request, rate = 1e6 * device[f"{kind}_request_seconds"], 1e-6 / device[f"{kind}_byte_seconds"]
            lines.append([f"one read, {name}", f"{request:.1f} µs per request, {rate:,.0f} MB/s"])
    show_table(f"{facts['path']}, version {facts['version']}", [], lines)
    show_table("columns", ["name", "type"], [list(item) for item in facts["columns"].items()])
    if facts["groups"]:
        groups = [
            [name, ", ".join(one["columns"]), format_bytes(one["bytes"])] for name, one in facts["groups"].items()
        ]
        show_table("column groups", ["name", "columns beside the key", "bytes"], groups)
    versions = []
    for one in facts["versions"]:
        created = datetime.fromtimestamp(one["created"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        versions.append([str(one["version"]), created, one["change"], f"{one['rows']:,}", format_bytes(one["bytes"])])
    show_table("versions", ["version", "created", "by", "rows", "bytes"], versions)


def show_table(title: str, header: Sequence[str], lines: Sequence[Sequence[str | Text]]) -> None:
    """Print a table; values are shown as they are, whatever brackets they hold."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Text(title) if title else None
    table = Table(*header, title=shown, title_justify="left", box=SIMPLE_HEAD, show_header=bool(header))
    for line in lines:
        table.add_row(*(Text(value) if isinstance(value, str) else value for value in line))
    Console().print(table)


def plain(value: object) -> str:
    return "" if value is None else "0x" + value.hex() if isinstance(value, bytes) else str(value)
