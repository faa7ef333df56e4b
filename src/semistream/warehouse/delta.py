"""A Delta table that holds every batch of a stream exactly once, written by delta-rs, so without any jar.

Each commit carries the rows and their marks in Delta's own transaction log, which outlive log clean-up. A batch is
judged by the marks on one snapshot of the table, and committed on top of that same snapshot: whoever commits in between
makes the commit fail. `DeltaWarehouse` is built of the same parts.
"""

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds

from semistream.errors import ArgumentError, SinkError, StaleWriterError, local_path
from semistream.warehouse.contract import BatchWrites, StagedFile, staged_path
from semistream.warehouse.marks import Find, Marks, Streams, check_app, digits_of
from semistream.warehouse.schemas import check_schema, stored_schema, types_of

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from deltalake.transaction import AddAction

_OLDEST = (1, 6)
_DELETE = "__delete"  # the row of a change stands for a key whose rows go


class DeltaSink:
    """For ``foreachBatch``: appends each batch of a stream to the Delta table at ``path``, exactly once.

    ``app`` names the stream. It must stay the same for as long as the table lives, and differ between streams that
    write to one table. The query's id is taken from the running batch, or from ``checkpoint`` where Spark does not tell
    it (Spark Connect). ``replaces`` is the id of a query, or its beginning, whose place a new checkpoint may take.
    The rows of a batch pass through the driver's memory.

    >>> sink = DeltaSink("/data/sales", app="sales")
    >>> stream.writeStream.foreachBatch(sink).option("checkpointLocation", "/data/check").start()  # doctest: +SKIP
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        app: str,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        replaces: str | None = None,
    ) -> None:
        self.path = local_path("path", path)
        self.app = check_app(app)
        self.checkpoint = None if checkpoint is None else local_path("checkpoint", checkpoint)
        self.written = 0
        self.skipped = 0
        may = {} if replaces is None else {app: digits_of(replaces)}
        self._streams = Streams(str(path), "DeltaSink(..., replaces={former!r})", may)

    def __call__(self, batch: Any, batch_id: int) -> None:
        """Write one batch, a DataFrame of Spark, or pass over it when the table holds it already."""
        self.load(batch.toArrow, batch_id, query_of(self.checkpoint) if self.checkpoint else running_query(batch))

    def load(self, read: Callable[[], pa.Table], batch_id: int, query: str, *, gaps: bool = False) -> None:
        """Write what ``read`` returns, unless the table holds that batch; ``gaps`` allows for numbers left out."""
        batch = BatchWrites(self.app, query, batch_id, ())
        table = open_table(self.path)
        if self._streams.holds(Marks.of(find_in(table), batch.app, batch.query), batch, gaps=gaps):
            self.skipped += 1
            return
        rows = read()
        if table is None:
            table = create_table(self.path, rows.schema)
        else:
            check_columns(self.path, table, rows.schema)
        self._commit(table, rows, batch)

    def _commit(self, table: "DeltaTable", rows: pa.Table, batch: BatchWrites) -> None:
        from deltalake import write_deltalake

        about = {"app": batch.app, "query": batch.query, "batch": str(batch.batch)}
        marks = batch.marks(tables=False)
        with committing(self.path, table, marks, about, lambda _: self._streams.stale(batch)) as properties:
            write_deltalake(table, rows, mode="append", commit_properties=properties)
        self._streams.wrote(batch)
        self.written += 1

    def __repr__(self) -> str:
        return f"DeltaSink({str(self.path)!r}, app={self.app!r}, written={self.written}, skipped={self.skipped})"


def query_of(checkpoint: str | os.PathLike[str]) -> str:
    """The id of the query that a checkpoint belongs to; Spark writes it there when the query first starts."""
    file = local_path("checkpoint", checkpoint) / "metadata"
    try:
        return str(uuid.UUID(str(json.loads(file.read_text(encoding="utf-8"))["id"])))
    except FileNotFoundError:
        raise SinkError(
            f"{checkpoint} is no checkpoint of a query that has started: it has no file 'metadata'"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SinkError(f"{file} does not hold the id of a query: {error}") from error


def running_query(batch: Any) -> str:
    """The id of the query that a batch belongs to."""
    try:
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    except Exception:  # noqa: BLE001 - Connect has no SparkContext and says so by errors of its own
        query = None
    if not query:
        raise ArgumentError(
            "Spark does not tell here which query this batch belongs to; give DeltaSink(..., checkpoint=...) the "
            "directory that the stream has as its checkpointLocation"
        )
    return str(query)


def open_table(path: Path) -> "DeltaTable | None":
    """The newest snapshot, or None when there is no table."""
    try:
        from deltalake import DeltaTable
    except ImportError:
        raise SinkError("a Delta table needs the package deltalake; run: pip install 'semistream[delta]'") from None
    return DeltaTable(path) if DeltaTable.is_deltatable(str(path)) else None


def create_table(path: Path, schema: pa.Schema) -> "DeltaTable":
    """An empty table first: two runs may both find none, and only a commit on a snapshot tells them apart."""
    from deltalake import CommitProperties, DeltaTable

    try:
        # Without retries: delta-rs would create the table again on top of what another run made meanwhile.
        DeltaTable.create(path, stored_schema(schema), commit_properties=CommitProperties(max_commit_retries=0))
    except Exception as error:
        # delta-rs raises Exception itself for a type that Delta does not have.
        if open_table(path) is None:
            raise SinkError(f"{path}: the Delta table cannot be made: {_first_line(error)}") from error
    return DeltaTable(path, version=0)


def find_in(table: "DeltaTable | None") -> Find:
    """The marks in a table's log; no table has none."""
    return (lambda _: None) if table is None else table.transaction_version


def check_columns(
    path: Path, table: "DeltaTable", schema: pa.Schema, *, may_add: bool = False, may_lack: bool = False
) -> list[str]:
    """`check_schema` for a Delta table: delta-rs would cast a column that changed its type."""
    there = types_of(pa.schema(table.schema().to_arrow()))
    return check_schema(path, there, types_of(schema), may_add=schema if may_add else None, may_lack=may_lack)


@contextmanager
def committing(
    path: Path,
    table: "DeltaTable",
    marks: Mapping[str, int],
    about: Mapping[str, str],
    stale: Callable[[Find], StaleWriterError],
    *,
    retries: int | None = None,
) -> "Iterator[CommitProperties]":
    """What makes a commit on this snapshot set the marks; ``about`` is for people who read the table's history. Where
    the commit fails, another run was first when the marks have moved.
    """
    from deltalake import CommitProperties, Transaction
    from deltalake.exceptions import CommitFailedError

    try:
        yield CommitProperties(
            custom_metadata={f"semistream.{name}": value for name, value in about.items()},
            app_transactions=[Transaction(mark, value) for mark, value in marks.items()],
            max_commit_retries=retries,
        )
    except CommitFailedError as error:
        before, now = find_in(table), find_in(open_table(path))
        if all(now(mark) in (None, before(mark)) for mark in marks):
            what = ", ".join(f"{name} {value}" for name, value in about.items())
            raise SinkError(f"{path}: nothing was written ({what}): {_first_line(error)}") from error
        raise stale(now) from error


def check_deltalake() -> None:
    """Refuse a delta-rs that adds files without their marks: a batch would be written again after a crash."""
    import deltalake

    found = deltalake.__version__
    if tuple(int(part) for part in found.split(".")[:2]) < _OLDEST:
        raise SinkError(
            f"deltalake {found} is too old for a warehouse; run: pip install 'deltalake>={'.'.join(map(str, _OLDEST))}'"
        )


def add_action(root: Path, file: StagedFile) -> "AddAction":
    """What adds a staged file to a table's log. With the count, readers need not open the file to count rows."""
    from deltalake.transaction import AddAction

    path = staged_path(root, file)
    name = str(path.relative_to(root))
    if not name.isascii() or not all(c.isalnum() or c in "-._=/" for c in name):  # the log would have to encode it
        raise SinkError(f"{path} cannot be named in a Delta log; use letters, digits, '-', '_', '.' and '='")
    modified = int(path.stat().st_mtime * 1000)
    return AddAction(name, file.bytes, {}, modified, data_change=True, stats=json.dumps({"numRecords": file.rows}))


def rows_of(table: "DeltaTable") -> pa.Table:
    """All rows of a local table. Through Arrow's own file system: delta-rs's calls back into Python, and a thread that
    does so while Python ends aborts it, now and then, with all work done
    (https://github.com/apache/arrow/issues/34314).
    """
    root, *paths = (unquote(uri.removeprefix("file://")) for uri in (table.table_uri, *table.file_uris()))
    if table.metadata().partition_columns or not Path(root).is_dir():
        return table.to_pyarrow_table()  # not one of ours
    schema = pa.schema(table.schema().to_arrow())
    return ds.dataset(paths, schema=schema, format="parquet").to_table() if paths else schema.empty_table()


def replace_keys(table: "DeltaTable", keys: pa.Table, rows: pa.Table, properties: "CommitProperties") -> None:
    """Rows of these keys go, the new ones come: one commit, though a key may have several rows."""
    gone = keys.append_column(_DELETE, pa.repeat(True, keys.num_rows))
    come = rows.append_column(_DELETE, pa.repeat(False, rows.num_rows))
    same = " AND ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in keys.column_names)
    merger = table.merge(
        pa.concat_tables([come, gone], promote_options="default"),
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


def _first_line(error: Exception) -> str:
    """What delta-rs says, without its stack trace."""
    return str(error).partition("\n")[0]
