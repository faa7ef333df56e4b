"""What every workload offers: a master, a stream over it, and the columns on which they join.

Every row follows from the settings and its number: it is the same in batches of every size and from every starting
point. So a stream can be cut anywhere, made by several processes, and made again after a crash.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

import pyarrow as pa

from semistream_lab.workloads.numbered import BATCH_ROWS

if TYPE_CHECKING:
    from semistream.stores.paged.store import Progress


@runtime_checkable
class Workload(Protocol):
    """A master and a stream, by row number."""

    name: ClassVar[str]
    idea: ClassVar[str]
    aliases: ClassVar[Mapping[str, str]]

    @property
    def on(self) -> dict[str, str]:
        """The join: {stream column: master column}, as `semistream.join` takes it."""
        ...

    @property
    def key(self) -> list[str]:
        """The master's key columns, as `MasterStore.build` takes them."""
        ...

    @property
    def master_schema(self) -> pa.Schema:
        """Columns of the master."""
        ...

    @property
    def stream_schema(self) -> pa.Schema:
        """Columns of the stream."""
        ...

    @property
    def master_rows(self) -> int:
        """Rows of the master."""
        ...

    @property
    def stream_rows(self) -> int | None:
        """Rows of the stream; None when it has no end."""
        ...

    def master(self, batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """All rows of the master."""
        ...

    def master_slice(self, start: int, count: int) -> pa.RecordBatch:
        """Rows ``start`` to ``start + count`` of the master."""
        ...

    def stream(self, start: int, count: int) -> pa.RecordBatch:
        """Rows ``start`` to ``start + count`` of the stream."""
        ...

    def prepare(self, progress: Progress | None = None) -> None:
        """Make what must lie on disk before the first row; nothing for workloads that are computed."""
        ...
