"""What `bench core` shows: one section a kind of stream, the rate over time from an empty cache, growth, and a table
for the terminal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from semistream.budget import format_bytes
from semistream_lab import busy, plots
from semistream_lab.cells import COLUMN_WORDS
from semistream_lab.results import Group
from semistream_lab.targets import grown, ratio, rival

_KEYS = {1.0: "", 0.0: ", uniform keys"}


def name_of(group: Group) -> str:
    """The arm as a table names it."""
    params = group.params
    extra = [params["memory"]] if params.get("memory") and group.arm != "whole" else []
    threads = params.get("threads", 1)
    extra += [f"{threads} threads"] if threads > 1 else ["1 thread"] if group.arm.startswith("duckdb") else []
    extra += ["O_DIRECT"] if params.get("direct") else []
    return ", ".join([group.arm.replace("_", " "), *extra])


def taken(group: Group) -> str:
    """The figure that says what memory an arm really took: peak resident size above idle, where the kernel tells it."""
    return "rss_growth_bytes" if group.median("rss_growth_bytes") is not None else "pss_growth_bytes"


def pages_per_million(group: Group) -> str:
    """Pages read per million rows of the stream."""
    value = group.median("pages_read")
    return "–" if value is None else f"{1e6 * value / (group.median('rows') or 1):,.0f}"


def bytes_per_row(group: Group) -> str:
    """Bytes read per row of the stream."""
    value = group.median("bytes_read")
    return "–" if value is None else f"{value / (group.median('rows') or 1):,.0f} B"


def to_others(group: Group) -> str:
    """The CPU time of the machine that others had in the worst run, marked where its rate is not to be believed."""
    shares = [busy.others_of(result) for result in group.results if "others_share" in result]
    if not shares:
        return "–"
    return f"{max(shares):.0%}{' (busy)' if max(shares) > busy.LIMIT else ''}"


def sections(groups: list[Group]) -> Iterator[tuple[str, list[Group], str]]:
    """(title, warm arms, picture of the cold ones) for each kind of stream."""
    for place in sorted({_place(group) for group in groups}):
        here = [group for group in groups if _place(group) == place]
        size, columns, skew = place
        title = f"Core, no Spark, batches of {size:,} rows, {COLUMN_WORDS[columns]}{_keys(skew)}"
        yield title, [group for group in here if not group.params.get("cold")], _curves(here)


def _place(group: Group) -> tuple[int, str, float]:
    return group.params["batch_rows"], group.params["columns"], group.params.get("skew", 1.0)


def _keys(skew: float) -> str:
    return _KEYS.get(skew, f", skew {skew:g}")


def _curves(groups: list[Group]) -> str:
    found = {
        name_of(group): [(float(x), float(y)) for x, y in group.results[-1]["curve"]]
        for group in groups
        if group.params.get("cold") and group.results[-1].get("curve")
    }
    return plots.over_rows(found, lambda name: plots.OURS if name.startswith("sweep") else plots.OTHERS)


def growth(groups: Iterable[Group]) -> tuple[list[str], list[list[str]]]:
    """A table of arms that were run with several masters."""
    found = [sizes for _, sizes in grown(groups)]
    rows = sorted({size for sizes in found for size in sizes})
    header = ["arm", "", *(f"{size:,} rows" for size in rows), "last / first"]
    lines = []
    for sizes in found:
        few, many = next(iter(sizes.values())), list(sizes.values())[-1]
        size, columns, skew = _place(few)
        lines.append(
            [
                name_of(few),
                f"{size:,}-row batches, {COLUMN_WORDS[columns]}{_keys(skew)}",
                *(plots.short(sizes[size].rate) if size in sizes else "–" for size in rows),
                f"{ratio(many, few):.2f}",
            ]
        )
    return header, lines


def tables(groups: list[Group]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """(title, header, lines) for the terminal: rates, DuckDB's with as many threads beside them, and memory."""
    header = ["arm", "rows/s", "pages per M rows", "read per row", "× DuckDB", "memory taken", "CPU to others"]
    peers = {json.dumps(g.params, sort_keys=True): g for g in groups if g.suite == "peers" and g.arm == "duckdb"}
    found: dict[str, list[list[str]]] = {}
    for group in groups:
        if group.arm == "build":
            continue
        params = group.params
        other = rival(group, groups) or peers.get(json.dumps(params, sort_keys=True))
        size, columns, skew = _place(group)
        title = (
            f"{plots.short(params['rows'])} rows, {plots.short(size)}-row batches, {COLUMN_WORDS[columns]}{_keys(skew)}"
        )
        title += ", from an empty cache" if params.get("cold") else ""
        found.setdefault(title, []).append(
            [
                name_of(group),
                plots.short(group.rate),
                pages_per_million(group),
                bytes_per_row(group),
                "–" if other is None or other is group else f"{ratio(group, other):.2f}",
                format_bytes(group.median(taken(group)) or 0),
                to_others(group),
            ]
        )
    for title, lines in found.items():
        yield title, header, lines
