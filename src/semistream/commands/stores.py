"""`semistream build`, `project`, `inspect`, `verify`, `get`, `upsert`, `delete`, `compact`, `vacuum`: stores."""

import csv
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

import semistream
from semistream.budget import format_bytes
from semistream.commands.command_line import Commands, Store, listed, progress_bars, show_table
from semistream.errors import ArgumentError, choose, counted

if TYPE_CHECKING:
    import pyarrow as pa

# A negative number is a key, not an option.
_KEYS = {"ignore_unknown_options": True}

app = Commands()

Keys = Annotated[list[str], Argument(metavar="KEY...", help="Keys; the parts of a composite key separated by commas.")]
Memory = Annotated[str, Option("--memory", help="Memory for sorting; rows beyond it are spilled next to the store.")]
Version = Annotated[int | None, Option("--version", help="A version; by default the newest.")]


@app.command(rich_help_panel="Stores")
def build(
    source: Annotated[Path, Argument(metavar="SOURCE", help="Parquet, CSV or Arrow: a file, or a directory of files.")],
    store: Store,
    key: Annotated[list[str], Option(help="A key column; several for a composite key.")],
    column: Annotated[list[str] | None, Option(help="A column to store; by default all.")] = None,
    memory: Memory = "512MB",
    page_bytes: Annotated[int | None, Option(help="Size of a page; the default suits most disks.")] = None,
    replace: Annotated[bool, Option("--replace", help="Publish as a new version of an existing store.")] = False,
    null_keys: Annotated[str, Option(help="Rows with a NULL in their key: drop (and count), or refuse.")] = "drop",
    group: Annotated[
        list[str] | None, Option(metavar="NAME=COLUMN,...", help="Columns that are often asked for without the others.")
    ] = None,
) -> None:
    """Build a store from a table of any size, in any order.

    Example: [cyan]semistream build sales.csv sales --key store --key product --group prices=price,currency[/]
    """
    more: dict[str, Any] = {} if page_bytes is None else {"page_bytes": page_bytes}
    with progress_bars() as progress:
        built = semistream.MasterStore.build(
            source,
            store,
            key=key,
            columns=column or None,
            memory=memory,
            replace=replace,
            progress=progress,
            null_keys=null_keys,
            groups=None if group is None else dict(map(_group, group)),
            **more,
        )
    _say_version(built, about=_keys_of(built))


@app.command(rich_help_panel="Stores")
def project(
    store: Store,
    group: Annotated[str, Argument(metavar="NAME=COLUMN,...", help="The group's name and its columns.")],
    drop: Annotated[bool, Option("--drop", help="Remove the group NAME.")] = False,
) -> None:
    """Write some columns once more into a column group: lookups that ask for no others read less.

    Example: [cyan]semistream project products prices=price,currency[/]
    """
    opened = semistream.MasterStore.open(store)
    if drop:
        _say_version(opened.drop_group(group))
        return
    name, columns = _group(group)
    with progress_bars() as progress:
        made = opened.project(name, columns, progress)
    _say_version(made, about=f"; group {name}: {format_bytes(made.manifest.groups[name].bytes)}")


@app.command(rich_help_panel="Stores")
def inspect(
    store: Store,
    version: Version = None,
    shape: Annotated[str, Option("--format", help="table or json.")] = "table",
    as_json: Annotated[bool, Option("--json", hidden=True)] = False,
) -> None:
    """Show schema, key, rows, pages, versions, sizes and what a read costs."""
    choose("--format", shape, ("table", "json"))
    facts = _facts_of(semistream.MasterStore.open(store, version))
    if as_json or shape == "json":
        print(json.dumps(facts, indent=1))
    else:
        _show_facts(facts)


@app.command(rich_help_panel="Stores")
def verify(store: Store, version: Version = None) -> None:
    """Read every page and check its checksum."""
    with progress_bars() as progress:
        opened = semistream.MasterStore.open(store, version)
        pages = opened.verify(progress)
    print(f"{store}, version {opened.version}: {counted(pages, 'page')} {'is' if pages == 1 else 'are'} sound")


@app.command(rich_help_panel="Stores", context_settings=_KEYS)
def get(
    store: Store,
    keys: Keys,
    version: Version = None,
    shape: Annotated[str, Option("--format", help="table, or json: one object per line.")] = "table",
) -> None:
    """Print the rows of some keys; exit code 1 when there are none.

    Example: [cyan]semistream get sales 17,A-1004 17,A-1005 --format json[/]
    """
    from semistream.rows import readable_rows

    choose("--format", shape, ("table", "json"))
    opened = semistream.MasterStore.open(store, version)
    rows = readable_rows(opened.get(_parsed(keys, opened)))
    if shape == "json":
        for row in rows:
            print(json.dumps(row, default=_plain))
    elif rows:
        show_table("", list(rows[0]), [[_plain(value) for value in row.values()] for row in rows])
    if not rows:
        print("no row has such a key", file=sys.stderr)
        raise Exit(1)


@app.command(rich_help_panel="Stores")
def upsert(
    store: Store, source: Annotated[Path, Argument(metavar="SOURCE", help="Rows in the store's columns.")]
) -> None:
    """Replace all rows of the keys in SOURCE by its rows, as a new version."""
    _say_version(semistream.MasterStore.open(store).upsert(source))


@app.command(rich_help_panel="Stores", context_settings=_KEYS)
def delete(store: Store, keys: Keys) -> None:
    """Remove all rows of some keys, as a new version."""
    opened = semistream.MasterStore.open(store)
    _say_version(opened.delete(_parsed(keys, opened)))


@app.command(rich_help_panel="Stores")
def compact(store: Store, memory: Memory = "512MB") -> None:
    """Fold all changes into one file; older versions stay readable until `vacuum`."""
    with progress_bars() as progress:
        compacted = semistream.MasterStore.open(store).compact(memory, progress)
    _say_version(compacted)


@app.command(rich_help_panel="Stores")
def vacuum(store: Store, keep: Annotated[int, Option("--keep", help="Versions to keep, the newest.")] = 2) -> None:
    """Remove old versions and the files that only they used."""
    for name in semistream.MasterStore.open(store).vacuum(keep):
        print(f"removed {name}")


def _say_version(store: "semistream.MasterStore", about: str = "") -> None:
    rows, pages = counted(store.rows, "row"), counted(store.pages, "page")
    print(f"{store.path}: version {store.version}, {rows} on {pages}, {format_bytes(store.bytes)}{about}")


def _group(text: str) -> tuple[str, list[str]]:
    name, equals, columns = text.partition("=")
    if not name or not equals:
        raise ArgumentError(f"{text!r} is no group; write NAME=COLUMN,COLUMN, for example prices=price,currency")
    return name, list(listed(columns))


def _keys_of(store: "semistream.MasterStore") -> str:
    """What a build found out about its keys."""
    keys = sum(entry.keys for entry in store.manifest.segments)
    most = max(entry.largest_group for entry in store.manifest.segments)
    left_out = store.manifest.null_keys
    said = f"; {counted(keys, 'key')}, " + (f"up to {most:,} rows per key" if most > 1 else "one row per key")
    return said + (f"; {counted(left_out, 'row')} with a NULL key dropped" if left_out else "")


def _parsed(texts: list[str], store: "semistream.MasterStore") -> "pa.Table":
    """Keys given as text, in the key's types."""
    import pyarrow as pa

    def value(text: str, field: "pa.Field") -> "pa.Scalar":
        try:
            return pa.scalar(text).cast(field.type)
        except pa.ArrowException:
            raise ArgumentError(f"{text!r} is no {field.type}, which key {field.name!r} is") from None

    parts = [next(csv.reader([text], skipinitialspace=True), [""]) if len(store.key) > 1 else [text] for text in texts]
    for text, part in zip(texts, parts, strict=True):
        if len(part) != len(store.key):
            found, wanted = counted(len(part), "part"), f"{len(store.key)}: {','.join(store.key)}"
            raise ArgumentError(f"key {text!r} has {found}, the key of {store.path} has {wanted}")
    columns = zip(store.key, zip(*parts, strict=True), strict=True)
    return pa.table({name: [value(text, store.schema.field(name)) for text in column] for name, column in columns})


def _facts_of(store: "semistream.MasterStore") -> dict[str, Any]:
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


def _show_facts(facts: dict[str, Any]) -> None:
    keys, device = facts["keys"], facts["device"]
    about = "" if keys["exact"] else "at most "
    index, filters = format_bytes(facts["index_bytes"]), format_bytes(facts["filter_bytes"])
    lines = [
        ["rows", f"{facts['rows']:,}"],
        ["key", ", ".join(facts["key"])],
        ["pages", f"{facts['pages']:,} of {facts['page_bytes']:,} bytes"],
        ["on disk", f"{format_bytes(facts['bytes'])}, with older versions {format_bytes(facts['bytes_all_versions'])}"],
        ["in memory", f"{index} index, {filters} filter if it is used"],
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
    groups = [[name, ", ".join(one["columns"]), format_bytes(one["bytes"])] for name, one in facts["groups"].items()]
    if groups:
        show_table("column groups", ["name", "columns beside the key", "bytes"], groups)
    versions = []
    for one in facts["versions"]:
        created = datetime.fromtimestamp(one["created"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        versions.append([str(one["version"]), created, one["change"], f"{one['rows']:,}", format_bytes(one["bytes"])])
    show_table("versions", ["version", "created", "by", "rows", "bytes"], versions)


def _plain(value: object) -> str:
    return "" if value is None else "0x" + value.hex() if isinstance(value, bytes) else str(value)
