"""`semistream apply` and `semistream diff`: changes of a master table."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

import semistream
from semistream.commands.command_line import Commands, Store, pairs, progress_bars
from semistream.errors import ArgumentError, choose, counted

if TYPE_CHECKING:
    import pyarrow as pa

app = Commands()


@app.command(rich_help_panel="Stores")
def apply(
    store: Store,
    files: Annotated[list[Path], Argument(metavar="FILES...", help="JSON lines, CSV, Parquet or Arrow.")],
    shape: Annotated[
        str, Option("--format", help="debezium (envelopes, as JSON lines), or plain: rows with an operation.")
    ] = "debezium",
    op: Annotated[str, Option(help="For plain rows: the column that says insert, update, upsert or delete.")] = "_op",
    order: Annotated[
        str | None, Option(help="For plain rows: the column that orders them.", show_default="as read")
    ] = None,
    time_unit: Annotated[str | None, Option(help="Unit of Debezium times without a schema: s, ms, us or ns.")] = None,
    effective: Annotated[
        str | None, Option(help="For a dimension with history: the column since when a row is valid.")
    ] = None,
    token: Annotated[
        str | None, Option(metavar="APP:BATCH", help="Applied once: the same token again changes nothing.")
    ] = None,
    constant: Annotated[
        list[str] | None,
        Option("--set", metavar="COLUMN=TEXT", help="A column missing from the records, such as their source."),
    ] = None,
    rejects: Annotated[
        Path | None, Option(help="Where bad records go: JSON lines with source, line and reason.")
    ] = None,
    max_bad_rate: Annotated[
        float | None, Option(help="Stop when a larger share of records is bad.", show_default="0, with --rejects 1")
    ] = None,
) -> None:
    """Apply changes to a store or a dimension as one new version; the last change of each key counts.

    [bold]Examples[/]

    [cyan]semistream apply products changes.jsonl --rejects bad.jsonl[/]

    [cyan]semistream apply products prices.csv --format plain --op action --token prices:17[/]
    """
    from semistream.changes import apply_changes, read_changes
    from semistream.changes.applying import was_applied
    from semistream.changes.rows import write_rejects
    from semistream.dimensions import Dimension

    choose("--format", shape, ("debezium", "plain"))
    mark = None if token is None else _token(token)
    opened = semistream.MasterStore.open(store)
    if was_applied(opened, mark):
        print(f"{store}: {token} was applied before; nothing to do, version {opened.version}")
        return
    dimension = Dimension(opened) if "dimension" in opened.properties else None
    if effective is not None and (dimension is None or not dimension.shape.history):
        raise ArgumentError(f"--effective is for dimensions with history, which {store} is not")
    schema, key = dimension.with_time(effective) if dimension else (opened.schema, opened.key)
    fixed = pairs(constant)
    with progress_bars() as bars:
        changes = read_changes(
            files, schema, key, format=shape, op=op, order=order, time_unit=time_unit, constants=fixed, progress=bars
        )
    if rejects is not None:
        write_rejects(changes.rejects, rejects)
    # Without a place for bad records, one is too many.
    changes.check(max_bad_rate if max_bad_rate is not None else (0.0 if rejects is None else 1.0))
    if dimension is not None:
        done = dimension.apply(changes, effective=effective, token=mark)
        said = f"{counted(done.created, 'row')} created, {done.completed:,} completed, {done.changed:,} changed"
        said, version = f"{said}, {done.closed:,} closed", done.version
    else:
        result = apply_changes(opened, changes, token=mark)
        said, version = _counts(result.inserted, result.updated, result.deleted), result.store.version
    print(f"{store}: {said}, {len(changes.rejects):,} rejected; version {version}")


@app.command(rich_help_panel="Stores")
def diff(
    store: Store,
    snapshot: Annotated[
        list[Path],
        Argument(metavar="SNAPSHOT...", help="The whole table now: Parquet, CSV or Arrow files of one kind."),
    ],
    write: Annotated[bool, Option("--apply", help="Apply the differences as a new version.")] = False,
    out: Annotated[Path | None, Option(help="Write the changes to this Parquet file, as `apply` reads them.")] = None,
    memory: Annotated[str, Option(help="Memory for the joins.")] = "256MB",
) -> None:
    """Show what was inserted, updated and deleted in a snapshot of a table, compared with its store.

    Example: [cyan]semistream diff products products-today.parquet --apply[/]
    """
    import pyarrow.parquet as pq

    from semistream.changes import apply_changes, snapshot_differences
    from semistream.changes.rows import change_schema

    opened = semistream.MasterStore.open(store)
    kept: list[pa.RecordBatch] = []
    counts = {"insert": 0, "update": 0, "delete": 0}
    with progress_bars() as progress, ExitStack() as files:
        found = snapshot_differences(_one_source(snapshot), opened, memory=memory, progress=progress)
        writer = out and files.enter_context(pq.ParquetWriter(out, change_schema(opened.schema)))
        for batch in found:
            counts[batch.column(0)[0].as_py()] += batch.num_rows
            if writer:
                writer.write_batch(batch)
            if write:
                kept.append(batch)
    if kept:
        opened = apply_changes(opened, iter(kept)).store
    print(f"{store}: {_counts(*counts.values())}{';' if write else ' since'} version {opened.version}")


def _counts(inserted: int, updated: int, deleted: int) -> str:
    return f"{inserted:,} inserted, {updated:,} updated, {deleted:,} deleted"


def _token(text: str) -> tuple[str, int]:
    app, colon, batch = text.rpartition(":")
    if not colon or not app or not batch.isdigit():
        raise ArgumentError(f"--token {text!r} must be APP:BATCH, such as prices:17")
    return app, int(batch)


def _one_source(paths: list[Path]) -> Any:
    """One path as it is; several files as one stream of batches."""
    from semistream.stores.sources import open_source

    if len(paths) == 1:
        return paths[0]
    opened = [open_source(path, None) for path in paths]
    for path, one in zip(paths, opened, strict=True):
        if not one.schema.equals(opened[0].schema):
            raise ArgumentError(f"{path} has the columns {one.schema}, but {paths[0]} has {opened[0].schema}")
    return (batch for one in opened for batch in one.batches())
