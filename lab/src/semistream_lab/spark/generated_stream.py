"""A workload as a stream: rows as they arrive, the same rows for the same offsets.

An offset is the number of a row, and every row follows from its number: the rows between two offsets are the same in
every attempt, after every restart, and in every number of partitions. Beside the number an offset holds a checksum of
the options that rows depend on: a checkpoint goes on only with the options that it began with.

The rate is kept by the clock of the driver, from the first batch after a start: what has not arrived yet is not
offered. Without a rate, every micro-batch has ``rowsPerBatch`` rows. With ``trigger(availableNow=True)`` all ``total``
rows count as arrived.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from semistream.errors import ArgumentError
from semistream_lab.errors import OffsetError
from semistream_lab.spark.generated import Generated


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Rows as they arrive."""

    def __init__(self, generated: Generated, schema: StructType, clock: Callable[[], float] = time.monotonic) -> None:
        self.generated = generated
        self.schema = schema
        self._clock = clock
        self._arrivals = generated.settings.arrivals
        self._began: tuple[int, float] | None = None
        self._at_once = False

    def initialOffset(self) -> dict[str, Any]:
        """Row 0."""
        return self._offset(0)

    def getDefaultReadLimit(self) -> ReadLimit:
        """A micro-batch's most rows."""
        return ReadMaxRows(self.generated.settings.rows_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on, all rows up to the end have arrived."""
        if self.generated.end is None:
            raise ArgumentError(
                "trigger(availableNow=True) needs an end: give the option total, the number of rows of the stream"
            )
        self._at_once = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The last row that has arrived, within the limit."""
        row = self._row(start)
        arrived = self._arrived(row)
        if isinstance(limit, ReadMaxRows):
            arrived = min(arrived, row + limit.max_rows)
        return self._offset(max(row, arrived))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The rows between two offsets."""
        return self.generated.pieces(self._row(start), self._row(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        return self.generated.read(partition, self.schema)

    def _arrived(self, row: int) -> int:
        if self._began is None:
            self._began = (row, self._clock())
        end, arrivals = self.generated.end, self._arrivals
        if self._at_once and end is not None:
            return end
        if arrivals is None:
            arrived = row + self.generated.settings.rows_per_batch
        else:
            arrived = self._began[0] + arrivals.arrived(self._clock() - self._began[1])
        return arrived if end is None else min(arrived, end)

    def _offset(self, row: int) -> dict[str, Any]:
        return {"row": row, "made_of": self.generated.made_of}

    def _row(self, offset: dict[str, Any]) -> int:
        if offset.get("made_of") != self.generated.made_of:
            raise OffsetError(
                f"this checkpoint was written with other options of semistream-{self.generated.workload} "
                f"({offset.get('made_of')}; now {self.generated.made_of}), so its next rows would be others; "
                "give the options of the first run, or a new checkpoint"
            )
        return int(offset["row"])
