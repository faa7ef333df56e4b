"""The command line: every command calls the library and shows what it returns.

Errors of semistream are one message on standard error. The exit code is 2 when the command itself is wrong (its
options, a pipeline's file, columns that do not fit) and 1 when it met something (data, a store, a disk, a database).
Heavy imports wait until a command needs them.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semistream import __version__
from semistream.errors import ArgumentError, SemistreamError, choose, counted
from semistream.kernels import notice
from semistream.lab import changes_commands, pipeline_bench, pipelines, planning
from semistream.lab.command_line import Commands
from semistream.lab.commands import bench
from semistream.lab.generate import generate
from semistream.lab.papers_commands import lab
from semistream.lab.terminal import plain, progress_bars, show_checks, show_facts, show_table, store_facts

if TYPE_CHECKING:
    import pyarrow as pa

    from semistream.stores import MasterStore

EXAMPLES = """[bold]Examples[/]

[cyan]semistream build products.parquet products --key id[/]

[cyan]semistream get products 1001 1002[/]

[cyan]semistream upsert products changes.csv[/]

[cyan]semistream plan --master products --rate 200000[/]

[cyan]semistream bench core --quick[/]

[bold]Exit codes[/]

0: done. 1: something was wrong with data, a store, a state or the machine. 2: the command or its file is wrong.
"""
# A negative number is a key, not an option.
_KEYS = {"ignore_unknown_options": True}

app = Commands(
    name="semistream",
    help="Join a fast stream with master data too big for memory, inside a memory budget.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench.command()(pipeline_bench.pipeline)
app.add_typer(bench, name="bench")
for command in (planning.plan, planning.tune, planning.calibrate):
    app.command(rich_help_panel="Planning")(command)
app.command(rich_help_panel="Workloads")(generate)
for work in (pipelines.run, pipelines.check, pipelines.status, pipelines.retry, pipelines.undo):
    app.command(rich_help_panel="Pipelines")(work)
app.command(rich_help_panel="Stores")(changes_commands.apply)
app.command(rich_help_panel="Stores")(changes_commands.diff)
app.add_typer(lab, name="lab")

Store = Annotated[Path, typer.Argument(metavar="STORE", help="The directory of a store.")]
Keys = Annotated[
    list[str], typer.Argument(metavar="KEY...", help="Keys; the parts of a composite key separated by commas.")
]
Memory = Annotated[
    str, typer.Option("--memory", help="Memory for sorting; rows beyond it are spilled next to the store.")
]


def main() -> None:
    """Entry point: run the command, turn our errors into one message."""
    notice.speak_always()
    try:
        app()
    except (SemistreamError, OSError) as error:
        print("\n".join([f"semistream: {error}", *getattr(error, "__notes__", ())]), file=sys.stderr)
        sys.exit(error.exit_code if isinstance(error, SemistreamError) else 1)


@app.callback(invoke_without_command=True)
def options(version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False) -> None:
    """Options that stand before a command."""
    if version:
        print(f"semistream {__version__}")
        raise typer.Exit


@app.command(rich_help_panel="Stores")
def build(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="Parquet, CSV or Arrow: a file, or a directory of files.")
    ],
    store: Store,
    key: Annotated[list[str], typer.Option("--key", help="A key column; several for a composite key.")],
    column: Annotated[list[str] | None, typer.Option("--column", help="A column to store; by default all.")] = None,
    memory: Memory = "512MB",
    page_bytes: Annotated[
        int | None, typer.Option("--page-bytes", help="Size of a page; the default suits most disks.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Publish as a new version of a store that is there.")
    ] = False,
    null_keys: Annotated[
        str, typer.Option("--null-keys", help="Rows with a NULL in their key: drop (and count), or refuse.")
    ] = "drop",
) -> None:
    """Build a store from a table of any size, in any order.

    Example: [cyan]semistream build sales.csv sales --key store --key product --column price[/]
    """
    from semistream.stores import MasterStore

    more: dict[str, Any] = {} if page_bytes is None else {"page_bytes": page_bytes}
    with progress_bars() as progress:
        built = MasterStore.build(
            source,
            store,
            key=key,
            columns=column or None,
            memory=memory,
            replace=replace,
            progress=progress,
            null_keys=null_keys,
            **more,
        )
    _say_version(built, about=_keys_of(built))


@app.command(rich_help_panel="Stores")
def inspect(
    store: Store,
    version: Annotated[int | None, typer.Option("--version", help="A version; by default the newest.")] = None,
    shape: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
    as_json: Annotated[bool, typer.Option("--json", hidden=True)] = False,
) -> None:
    """Show schema, key, rows, pages, versions, sizes and what a read costs."""
    choose("--format", shape, ("table", "json"))
    from semistream.stores import MasterStore

    facts = store_facts(MasterStore.open(store, version))
    if as_json or shape == "json":
        print(json.dumps(facts, indent=1))
    else:
        show_facts(facts)


@app.command(rich_help_panel="Stores")
def verify(
    store: Store,
    version: Annotated[int | None, typer.Option("--version", help="A version; by default the newest.")] = None,
) -> None:
    """Read every page and check its checksum."""
    from semistream.stores import MasterStore

    with progress_bars() as progress:
        opened = MasterStore.open(store, version)
        pages = opened.verify(progress)
    print(f"{store}, version {opened.version}: {counted(pages, 'page')} {'is' if pages == 1 else 'are'} sound")


@app.command(rich_help_panel="Stores", context_settings=_KEYS)
def get(
    store: Store,
    keys: Keys,
    version: Annotated[int | None, typer.Option("--version", help="A version; by default the newest.")] = None,
    shape: Annotated[str, typer.Option("--format", help="table, or json: one object a line.")] = "table",
) -> None:
    """Print the rows of some keys; exit code 1 when there are none.

    Example: [cyan]semistream get sales 17,A-1004 17,A-1005 --format json[/]
    """
    choose("--format", shape, ("table", "json"))
    from semistream.stores import MasterStore

    opened = MasterStore.open(store, version)
    rows = opened.get(_parsed(keys, opened)).to_pylist()
    if shape == "json":
        for row in rows:
            print(json.dumps(row, default=plain))
    elif rows:
        show_table("", list(rows[0]), [[plain(value) for value in row.values()] for row in rows])
    if not rows:
        print("no row has such a key", file=sys.stderr)
        raise typer.Exit(1)


@app.command(rich_help_panel="Stores")
def upsert(
    store: Store, source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Rows in the store's columns.")]
) -> None:
    """Replace all rows of the keys that SOURCE has by its rows, as a new version."""
    from semistream.stores import MasterStore

    _say_version(MasterStore.open(store).upsert(source))


@app.command(rich_help_panel="Stores", context_settings=_KEYS)
def delete(store: Store, keys: Keys) -> None:
    """Remove all rows of some keys, as a new version."""
    from semistream.stores import MasterStore

    opened = MasterStore.open(store)
    _say_version(opened.delete(_parsed(keys, opened)))


@app.command(rich_help_panel="Stores")
def compact(store: Store, memory: Memory = "512MB") -> None:
    """Fold all changes into one file; older versions stay readable until `vacuum`."""
    from semistream.stores import MasterStore

    with progress_bars() as progress:
        compacted = MasterStore.open(store).compact(memory, progress)
    _say_version(compacted)


@app.command(rich_help_panel="Stores")
def vacuum(
    store: Store, keep: Annotated[int, typer.Option("--keep", help="Versions to keep, the newest.")] = 2
) -> None:
    """Remove old versions and the files that only they used."""
    from semistream.stores import MasterStore

    for name in MasterStore.open(store).vacuum(keep):
        print(f"removed {name}")


@app.command(rich_help_panel="Streams")
def reconcile(
    shed: Annotated[
        Path,
        typer.Argument(
            metavar="SHED_DIR|PIPELINE.toml", help="The directory that Shed(to=...) named, or a pipeline's file."
        ),
    ],
    to: Annotated[
        Path | None, typer.Option("--to", help="The Delta table that the stream writes to; a pipeline knows its own.")
    ] = None,
    master: Annotated[
        Path | None, typer.Option("--master", help="The store.", show_default="where it was when rows were shed")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="The stream's checkpoint: its last batch is loaded too.")
    ] = None,
    memory: Annotated[str | None, typer.Option("--memory", help="Memory for the join.", show_default="256MB")] = None,
    latest: Annotated[
        bool, typer.Option("--latest", help="Join with the newest version, not with the one the batch read.")
    ] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Delete what the table holds then.")] = False,
) -> None:
    """Join the rows that were shed and load them, each once, however often this is run or killed.

    [bold]Examples[/]

    [cyan]semistream reconcile shed --master products --to sales --checkpoint checkpoint[/]

    [cyan]semistream reconcile sales.toml[/]
    """
    from semistream.sinks import reconcile as load

    if shed.suffix == ".toml":
        if to or master or checkpoint or memory or latest or remove:
            raise ArgumentError(f"{shed} says where everything is; leave the options out")
        pipelines.reconcile(shed)
        return
    if to is None:
        raise ArgumentError("say by --to which Delta table the stream writes to")
    with progress_bars() as progress:
        done = load(
            shed,
            to,
            master=master,
            checkpoint=checkpoint,
            memory=memory or "256MB",
            latest=latest,
            remove=remove,
            progress=progress,
        )
    loaded, there = (counted(number, "batch", "batches") for number in (done.batches, done.skipped))
    print(f"{to}: {counted(done.rows, 'shed row')} of {loaded} loaded; {there} skipped, since their rows are there")
    for batch in done.waiting:
        print(f"batch {batch} is the newest and may still run: give --checkpoint, or run this again later")


@app.command(rich_help_panel="This machine")
def doctor(
    spark: Annotated[bool, typer.Option("--spark", help="Start a Spark session too.")] = False,
    directory: Annotated[Path, typer.Option("--directory", help="Where stores will lie.")] = Path(),
) -> None:
    """Check what semistream needs here; exit code 1 when something is wrong."""
    from semistream.lab.doctor import examine

    checks = examine(directory, spark=spark)
    show_checks(checks)
    if any(check.state == "bad" for check in checks):
        raise typer.Exit(1)


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
    from semistream.demo import run

    raise typer.Exit(run(directory, products, quick))


def _say_version(store: MasterStore, about: str = "") -> None:
    from semistream.budget import format_bytes

    print(
        f"{store.path}: version {store.version}, {counted(store.rows, 'row')} on {counted(store.pages, 'page')}, "
        f"{format_bytes(store.bytes)}{about}"
    )


def _keys_of(store: MasterStore) -> str:
    """What a build found out about its keys."""

    keys = sum(entry.keys for entry in store.manifest.segments)
    most = max(entry.largest_group for entry in store.manifest.segments)
    left_out = store.manifest.null_keys
    said = f"; {counted(keys, 'key')}, " + (f"up to {most:,} rows per key" if most > 1 else "one row per key")
    return said + (f"; {counted(left_out, 'row')} with a NULL key dropped" if left_out else "")


def _parsed(texts: list[str], store: MasterStore) -> pa.Table:
    """Keys given as text, in the key's types."""
    import pyarrow as pa

    parts = [next(csv.reader([text], skipinitialspace=True), [""]) if len(store.key) > 1 else [text] for text in texts]
    for text, part in zip(texts, parts, strict=True):
        if len(part) != len(store.key):
            raise ArgumentError(
                f"key {text!r} has {len(part)} parts, the key of {store.path} has {len(store.key)}: "
                f"{','.join(store.key)}"
            )
    return pa.table(
        {
            name: pa.array([_value(part[place], store.schema.field(name)) for part in parts])
            for place, name in enumerate(store.key)
        }
    )


def _value(text: str, field: pa.Field) -> pa.Scalar:
    import pyarrow as pa

    try:
        return pa.scalar(text).cast(field.type)
    except pa.ArrowException:
        raise ArgumentError(f"{text!r} is no {field.type}, which key {field.name!r} is") from None
