"""Opening, making, reading and committing to Delta tables, with marks as application transactions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa

from semistream.errors import SinkError
from semistream.warehouse.contract import StagedFile, staged_path
from semistream.warehouse.marks import Marks, Stream
from semistream.warehouse.schemas import stored_schema, types_of

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from deltalake.transaction import AddAction

_OLDEST = (1, 6)
_DELETE = "__delete"  # the row of a change stands for a key whose rows go


def open_table(path: Path | str) -> DeltaTable | None:
    """The newest snapshot, or None when there is no table."""
    try:
        from deltalake import DeltaTable
    except ImportError:
        raise SinkError("a Delta table needs the package deltalake; run: pip install 'semistream[delta]'") from None
    return DeltaTable(path) if DeltaTable.is_deltatable(str(path)) else None


def create_table(path: Path, schema: pa.Schema) -> DeltaTable:
    """An empty table first: two runs may both find none, and only a commit on a snapshot tells them apart."""
    from deltalake import CommitProperties, DeltaTable

    try:
        # Without retries: delta-rs would create the table again on top of what another run made meanwhile.
        DeltaTable.create(path, stored_schema(schema), commit_properties=CommitProperties(max_commit_retries=0))
    except Exception as error:
        # delta-rs raises Exception itself for a type that Delta does not have.
        if open_table(path) is None:
            raise SinkError(f"{path}: the Delta table cannot be made: {first_line(error)}") from error
    return DeltaTable(path, version=0)


def marked(marks: Mapping[str, int], about: Mapping[str, str], *, retries: int | None = None) -> CommitProperties:
    """What makes a commit set these marks; ``about`` is for people who read the table's history."""
    from deltalake import CommitProperties, Transaction

    return CommitProperties(
        custom_metadata={f"semistream.{name}": value for name, value in about.items()},
        app_transactions=[Transaction(mark, value) for mark, value in marks.items()],
        max_commit_retries=retries,
    )


def types_in(table: DeltaTable) -> dict[str, str]:
    """The columns of a table, as they are compared."""
    return types_of(pa.schema(table.schema().to_arrow()))


def marks_in(table: DeltaTable | None, stream: Stream, query: str) -> Marks:
    """What a table's log says of a stream; no table has no marks."""
    return Marks(-1, None) if table is None else stream.marks(table.transaction_version, query)


@contextmanager
def committing(table: DeltaTable, stream: Stream, query: str, batch: int, place: str) -> Iterator[None]:
    """A commit on this snapshot; where it fails, another run was first when the marks at ``place`` have moved."""
    from deltalake.exceptions import CommitFailedError

    before = marks_in(table, stream, query)
    try:
        yield
    except CommitFailedError as error:
        now = open_table(place)
        if now is None or marks_in(now, stream, query) == before:
            raise SinkError(f"{place}: batch {batch} was not written: {first_line(error)}") from error
        raise stream.stale(batch, place=place) from error


def first_line(error: Exception) -> str:
    """What delta-rs says, without its stack trace."""
    return str(error).partition("\n")[0]


def check_deltalake() -> None:
    """Refuse a delta-rs that adds files without their marks: a batch would be written again after a crash."""
    import deltalake

    found = deltalake.__version__
    if tuple(int(part) for part in found.split(".")[:2]) < _OLDEST:
        raise SinkError(
            f"deltalake {found} is too old for a warehouse; run: pip install 'deltalake>={'.'.join(map(str, _OLDEST))}'"
        )


def add_action(root: Path, file: StagedFile) -> AddAction:
    """What adds a staged file to a table's log. With the count, readers need not open the file to count rows."""
    from deltalake.transaction import AddAction

    path = staged_path(root, file)
    name = str(path.relative_to(root))
    if not name.isascii() or not all(c.isalnum() or c in "-._=/" for c in name):  # the log would have to encode it
        raise SinkError(f"{path} cannot be named in a Delta log; use letters, digits, '-', '_', '.' and '='")
    modified = int(path.stat().st_mtime * 1000)
    return AddAction(name, file.bytes, {}, modified, data_change=True, stats=json.dumps({"numRecords": file.rows}))


def rows_of(table: DeltaTable) -> pa.Table:
    """All rows of a local table.

    Through Arrow's own file system: delta-rs's calls back into Python, and a thread that does so while Python ends
    aborts it, now and then, with all work done (https://github.com/apache/arrow/issues/34314).
    """
    import pyarrow.dataset as ds

    root, *paths = (unquote(uri.removeprefix("file://")) for uri in (table.table_uri, *table.file_uris()))
    if table.metadata().partition_columns or not Path(root).is_dir():
        return table.to_pyarrow_table()  # not one of ours
    schema = pa.schema(table.schema().to_arrow())
    return ds.dataset(paths, schema=schema, format="parquet").to_table() if paths else schema.empty_table()


def replace_keys(table: DeltaTable, keys: pa.Table, rows: pa.Table, properties: CommitProperties) -> None:
    """Rows of these keys go, the new ones come: one commit, though a key may have several rows."""
    gone = keys.append_column(_DELETE, pa.array([True] * keys.num_rows, pa.bool_()))
    come = rows.append_column(_DELETE, pa.array([False] * rows.num_rows, pa.bool_()))
    source = pa.concat_tables([come, gone], promote_options="default")
    same = " AND ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in keys.column_names)
    merger = table.merge(
        source,
        f"{same} AND s.{_quoted(_DELETE)}",
        source_alias="s",
        target_alias="t",
        commit_properties=properties,
        streamed_exec=False,  # files whose statistics rule out every key are not read
    )
    columns = {_quoted(name): f"s.{_quoted(name)}" for name in rows.column_names}
    done = merger.when_matched_delete().when_not_matched_insert(columns, f"NOT s.{_quoted(_DELETE)}").execute()
    if not done["num_target_rows_deleted"] and not done["num_target_rows_inserted"]:
        # A merge that changes nothing makes no commit, and the version would not be marked.
        table.create_write_transaction([], "append", table.schema(), commit_properties=properties)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
