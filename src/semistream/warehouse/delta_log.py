"""Opening, making and committing to Delta tables, with marks as application transactions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from semistream.warehouse import SinkError
from semistream.warehouse.marks import Marks, Stream
from semistream.warehouse.schemas import stored_schema

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable


def open_table(path: Path) -> DeltaTable | None:
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
        # delta-rs raises Exception itself for a type that Delta does not have, and adds its stack trace.
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


def marks_in(table: DeltaTable | None, stream: Stream, query: str) -> Marks:
    """What a table's log says of a stream; no table has no marks."""
    return Marks(-1, None) if table is None else stream.marks(table.transaction_version, query)


def first_line(error: Exception) -> str:
    """delta-rs adds its stack trace to a message."""
    return str(error).partition("\n")[0]
