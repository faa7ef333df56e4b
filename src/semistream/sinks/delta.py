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
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

from semistream.errors import ArgumentError, SchemaError
from semistream.sinks import ForeignCheckpointError, MissingBatchesError, SinkError, StaleWriterError

if TYPE_CHECKING:
    from deltalake import DeltaTable

_OWNER_DIGITS = 15  # of the 32 of a query's id: 60 bits, what fits a transaction's signed 64-bit version
_RESTART = "Stop one of the two; a restart goes on where the table is"


class BatchFrame(Protocol):
    """What the sink needs of a Spark DataFrame."""

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        """All rows of the batch."""


class _Marks(NamedTuple):
    """What a snapshot says of a stream: the query's last batch (-1: none), and who owns the stream."""

    done: int
    owner: int | None


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
        if not isinstance(app, str) or not app or "@" in app:
            raise ArgumentError(
                f"app={app!r} is no name; give the stream a name without '@' that stays, such as 'sales'"
            )
        if "://" in str(path):
            raise ArgumentError(f"path={str(path)!r} is remote; so far a table must lie on a local or mounted disk")
        self.path = Path(path)
        self.app = app
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.replaces = None if replaces is None else _digits(replaces)
        self.written = 0
        self.skipped = 0
        self._seen: dict[str, int] = {}  # the last batch of each query as this object left the table

    def __call__(self, batch: BatchFrame, batch_id: int) -> None:
        """Write one batch, or pass over it when the table holds it already."""
        self.load(batch.toArrow, batch_id, query_of(self.checkpoint) if self.checkpoint else _running_query(batch))

    def load(self, read: Callable[[], pa.Table], batch_id: int, query: str, *, gaps: bool = False) -> None:
        """Write the rows that ``read`` returns as a batch of ``query``; it is not called when the table holds them.

        ``gaps`` allows for numbers that are left out.
        """
        table = _open(self.path)
        marks = _Marks(-1, None) if table is None else self._marks(table, query)
        self._check_owner(marks, query, batch_id, gaps=gaps)
        if batch_id <= marks.done:
            self._seen[query] = marks.done
            self.skipped += 1
            return
        rows = read()
        if table is None:
            table = self._create(rows.schema)
        else:
            _check_schema(self.path, table, rows.schema)
        self._commit(table, rows, query, batch_id)

    def _marks(self, table: DeltaTable, query: str) -> _Marks:
        done = table.transaction_version(f"{self.app}@{query}")
        return _Marks(-1 if done is None else done, table.transaction_version(self.app))

    def _check_owner(self, marks: _Marks, query: str, batch_id: int, *, gaps: bool) -> None:
        """Refuse a batch that must not be written; one that is there already passes."""
        if marks.owner is not None and marks.owner != _owner(query):
            former = _shown(marks.owner)
            if self.replaces is None or not self.replaces.startswith(former.replace("-", "")):
                raise ForeignCheckpointError(
                    f"{self.path} holds batches of {self.app!r} that were written under another checkpoint (query "
                    f"{former}…). Under this one (query {query}) Spark begins anew, and rows that are there already "
                    "would be added again. Restore the old checkpoint, or write to an empty table; if only new rows "
                    f"come in, go on with DeltaSink(..., replaces={former!r})"
                )
            return
        left = self._seen.get(query, marks.done)
        if left != marks.done:
            del self._seen[query]  # whoever restarts with this object begins from what the table says
            raise StaleWriterError(
                f"{self.path}: {self.app!r} was left at batch {left} and is now at batch {marks.done}. Another run "
                f"works on the same checkpoint; batch {batch_id} was not written. {_RESTART}"
            )
        if batch_id > marks.done + 1 and not gaps:
            there = "holds no batch" if marks.done < 0 else f"ends with batch {marks.done}"
            raise MissingBatchesError(
                f"{self.path} {there} of {self.app!r}, but Spark's checkpoint is at batch {batch_id}: those between "
                "are missing. Was the table deleted, moved or set back? Restore it, or start again with a new "
                "checkpoint and an empty table. The sink must be called for every batch, empty ones too"
            )

    def _create(self, schema: pa.Schema) -> DeltaTable:
        """An empty table first: two runs may both find none, and only a commit on a snapshot tells them apart."""
        from deltalake import CommitProperties, DeltaTable

        # Nullable, since the first batch of a column does not show whether later ones have NULLs.
        columns = pa.schema([pa.field(field.name, stored_type(field.type)) for field in schema])
        try:
            # Without retries: delta-rs would create the table again on top of what another run made meanwhile.
            DeltaTable.create(self.path, columns, commit_properties=CommitProperties(max_commit_retries=0))
        except Exception as error:
            # delta-rs raises Exception itself for a type that Delta does not have, and adds its stack trace.
            if _open(self.path) is None:
                raise SinkError(f"{self.path}: the Delta table cannot be made: {_first_line(error)}") from error
        return DeltaTable(self.path, version=0)

    def _commit(self, table: DeltaTable, rows: pa.Table, query: str, batch_id: int) -> None:
        from deltalake import CommitProperties, Transaction, write_deltalake
        from deltalake.exceptions import CommitFailedError

        before = self._marks(table, query)
        properties = CommitProperties(
            custom_metadata={"semistream.app": self.app, "semistream.query": query, "semistream.batch": str(batch_id)},
            app_transactions=[Transaction(f"{self.app}@{query}", batch_id), Transaction(self.app, _owner(query))],
        )
        try:
            write_deltalake(table, rows, mode="append", commit_properties=properties)
        except CommitFailedError as error:
            now = _open(self.path)
            if now is None or self._marks(now, query) == before:
                raise SinkError(f"{self.path}: batch {batch_id} was not written: {_first_line(error)}") from error
            raise StaleWriterError(
                f"{self.path}: another run wrote to the table while batch {batch_id} of {self.app!r} was on its way, "
                f"so this batch was not written. {_RESTART}"
            ) from error
        self._seen[query] = batch_id
        self.written += 1

    def __repr__(self) -> str:
        return f"DeltaSink({str(self.path)!r}, app={self.app!r}, written={self.written}, skipped={self.skipped})"


def query_of(checkpoint: str | os.PathLike[str]) -> str:
    """The id of the query that a checkpoint belongs to; Spark writes it there when the query first starts."""
    file = Path(checkpoint) / "metadata"
    try:
        return str(uuid.UUID(str(json.loads(file.read_text(encoding="utf-8"))["id"])))
    except FileNotFoundError:
        raise SinkError(
            f"{checkpoint} is no checkpoint of a query that has started: it has no file 'metadata'"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SinkError(f"{file} does not hold the id of a query: {error}") from error


def _running_query(batch: Any) -> str:
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


def _open(path: Path) -> DeltaTable | None:
    try:
        from deltalake import DeltaTable
    except ImportError:
        raise SinkError("a Delta table needs the package deltalake; run: pip install 'semistream[delta]'") from None
    return DeltaTable(path) if DeltaTable.is_deltatable(str(path)) else None


def _digits(query: str) -> str:
    digits = query.replace("-", "").rstrip("…").lower()
    if len(digits) < _OWNER_DIGITS or set(digits) - set("0123456789abcdef"):
        raise ArgumentError(
            f"replaces={query!r} is not the id of a query; the error that refused the checkpoint names it"
        )
    return digits


def _owner(query: str) -> int:
    return int(uuid.UUID(query).hex[:_OWNER_DIGITS], 16)


def _shown(owner: int) -> str:
    digits = f"{owner:0{_OWNER_DIGITS}x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:]}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _check_schema(path: Path, table: DeltaTable, schema: pa.Schema) -> None:
    """Delta-rs would cast a column that changed its type; a warehouse wants to be asked."""
    there = {field.name: stored_type(field.type) for field in pa.schema(table.schema().to_arrow())}
    here = {field.name: stored_type(field.type) for field in schema}
    found = [f"{name} ({kind}) is new" for name, kind in here.items() if name not in there]
    found += [f"{name} ({kind}) is gone" for name, kind in there.items() if name not in here]
    found += [f"{name} was {there[name]} and is {kind}" for name, kind in here.items() if there.get(name, kind) != kind]
    if found:
        raise SchemaError(
            f"{path}: the columns of the batch are not those of the table: {'; '.join(found)}. "
            "Select the table's columns, or write to another table"
        )


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type as Delta keeps it: instants in UTC, one kind of string."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return kind
