"""Where enriched rows go, each batch exactly once.

`foreachBatch` hands a batch over at least once: after a crash Spark sends it again. A sink therefore writes the rows
and the number of their batch in one commit, and passes over a batch that its table holds already.
"""

from semistream.errors import SemistreamError


class SinkError(SemistreamError):
    """A batch that a sink must not or cannot write."""


class ForeignCheckpointError(SinkError):
    """The table belongs to another checkpoint of this stream: under the new one every row would be written again."""


class StaleWriterError(SinkError):
    """Another run of the same stream wrote to the table meanwhile."""


class MissingBatchesError(SinkError):
    """Batches that Spark counts as done are not in the table."""


from semistream.sinks.delta import DeltaSink, query_of  # noqa: E402  - it raises the errors above
from semistream.sinks.delta_tables import DeltaWarehouse  # noqa: E402
from semistream.sinks.parquet import ParquetWarehouse  # noqa: E402
from semistream.sinks.postgres import PostgresWarehouse  # noqa: E402
from semistream.sinks.reconcile import Reconciled, reconcile  # noqa: E402
from semistream.sinks.warehouse import BatchWrites, StagedFile, Warehouse, Write, stage  # noqa: E402

__all__ = [
    "BatchWrites",
    "DeltaSink",
    "DeltaWarehouse",
    "ForeignCheckpointError",
    "MissingBatchesError",
    "ParquetWarehouse",
    "PostgresWarehouse",
    "Reconciled",
    "SinkError",
    "StagedFile",
    "StaleWriterError",
    "Warehouse",
    "Write",
    "query_of",
    "reconcile",
    "stage",
]
