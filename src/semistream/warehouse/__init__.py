"""Where enriched rows go, each batch exactly once.

`foreachBatch` hands a batch over at least once: after a crash Spark sends it again. A sink therefore writes the rows
and the number of their batch in one commit, and passes over a batch that its table holds already.
"""

from semistream.errors import ForeignCheckpointError, MissingBatchesError, SinkError, StaleWriterError
from semistream.warehouse import delta_tables, postgres
from semistream.warehouse.contract import BatchWrites, StagedFile, Warehouse, Write, stage
from semistream.warehouse.delta import DeltaSink, query_of
from semistream.warehouse.delta_tables import DeltaWarehouse
from semistream.warehouse.postgres import PostgresWarehouse
from semistream.warehouse.reconcile import Reconciled, reconcile

_ALL = (delta_tables.FORM, postgres.FORM)
WAREHOUSES = {form.word: form for form in _ALL}  # their forms in a pipeline's file, by their words

__all__ = [
    "WAREHOUSES",
    "BatchWrites",
    "DeltaSink",
    "DeltaWarehouse",
    "ForeignCheckpointError",
    "MissingBatchesError",
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
