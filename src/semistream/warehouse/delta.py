"""A Delta table that holds every batch of a stream exactly once, written by delta-rs, so without any jar.

Each commit carries the rows and two marks in Delta's own transaction log: how far this query has come, and which query
owns the stream. The marks outlive log clean-up. A batch is judged by them on one snapshot of the table, and committed
on top of that same snapshot: whoever commits in between makes the commit fail.

    batch already there              a replay after a crash: passed over
    the next batch                   written
    a later batch                    MissingBatchesError: the table was deleted or set back
    another query owns the stream    ForeignCheckpointError: the checkpoint was deleted, and Spark begins again at 0
    moved on behind our back         StaleWriterError: a second run works on the same checkpoint

The rows of one batch pass through the driver's memory.

>>> sink = DeltaSink("/data/sales", app="sales")
>>> stream.writeStream.foreachBatch(sink).option("checkpointLocation", "/data/checkpoint").start()  # doctest: +SKIP
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semistream.errors import ArgumentError, SinkError, local_path
from semistream.warehouse.delta_log import committing, create_table, marked, marks_in, open_table, types_in
from semistream.warehouse.marks import Stream, check_app, digits_of, stream_marks
from semistream.warehouse.schemas import check_schema, types_of

if TYPE_CHECKING:
    from deltalake import DeltaTable


class DeltaSink:
    """For ``foreachBatch``: appends each batch of a stream to the Delta table at ``path``, exactly once.

    ``app`` names the stream. It must stay the same for as long as the table lives, and differ between streams that
    write to one table. The query's id is taken from the running batch, or from ``checkpoint`` where Spark does not tell
    it (Spark Connect). ``replaces`` is the id of a query, or its beginning, whose place a new checkpoint may take.
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
        self._stream = Stream(
            app, str(path), "DeltaSink(..., replaces={former!r})", None if replaces is None else digits_of(replaces)
        )

    def __call__(self, batch: Any, batch_id: int) -> None:
        """Write one batch, a DataFrame of Spark, or pass over it when the table holds it already."""
        self.load(batch.toArrow, batch_id, query_of(self.checkpoint) if self.checkpoint else running_query(batch))

    def load(self, read: Callable[[], pa.Table], batch_id: int, query: str, *, gaps: bool = False) -> None:
        """Write the rows that ``read`` returns as a batch of ``query``; it is not called when the table holds them.

        ``gaps`` allows for numbers that are left out.
        """
        table = open_table(self.path)
        marks = marks_in(table, self._stream, query)
        if self._stream.holds(marks, query, batch_id, gaps=gaps):
            self.skipped += 1
            return
        rows = read()
        if table is None:
            table = create_table(self.path, rows.schema)
        else:
            # delta-rs would cast a column that changed its type.
            check_schema(self.path, types_in(table), types_of(rows.schema))
        self._commit(table, rows, query, batch_id)

    def _commit(self, table: DeltaTable, rows: pa.Table, query: str, batch_id: int) -> None:
        from deltalake import write_deltalake

        about = {"app": self.app, "query": query, "batch": str(batch_id)}
        properties = marked(stream_marks(self.app, query, batch_id), about)
        with committing(table, self._stream, query, batch_id, self._stream.place):
            write_deltalake(table, rows, mode="append", commit_properties=properties)
        self._stream.seen[query] = batch_id
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
