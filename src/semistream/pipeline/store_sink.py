"""``StoreSink``: a stream of changes keeps a store or a dimension current, each batch once, as one new version.

>>> sink = StoreSink("/data/products", app="prices", format="debezium")  # doctest: +SKIP
>>> changes.writeStream.foreachBatch(sink).option("checkpointLocation", "/data/prices").start()  # doctest: +SKIP
"""

import os
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from semistream.changes import Applied, Changes, apply_changes
from semistream.changes.debezium import debezium_changes
from semistream.changes.reading import plain_changes
from semistream.changes.rows import OP, TIME, write_rejects
from semistream.dimensions import Dimension
from semistream.errors import ArgumentError, choose, local_path
from semistream.stores import MasterStore
from semistream.warehouse.delta import running_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMATS = ("plain", "debezium")


class StoreSink:
    """For ``foreachBatch``: applies each batch of changes to the store at ``store``, exactly once.

    ``format="plain"``: rows with the store's columns and an operation in column ``op`` (insert, update, upsert,
    delete), ordered by column ``order``. ``format="debezium"``: envelopes as JSON in column ``value``. ``app`` names
    the stream of changes and stays the same for as long as the store lives. Bad records are written to the directory
    ``rejects``, a file a batch; more of them than ``max_bad_rate`` stop the stream before anything is applied.
    ``effective`` is for dimensions with history: the column that says since when a row holds.
    """

    def __init__(
        self,
        store: str | os.PathLike[str],
        app: str,
        *,
        format: str = "plain",  # noqa: A002 - Spark's word
        op: str = OP,
        order: str | None = None,
        value: str = "value",
        effective: str | None = None,
        rejects: str | os.PathLike[str] | None = None,
        max_bad_rate: float = 0.0,
    ) -> None:
        self.path = local_path("store", store).absolute()
        self.app = app
        self.format = choose("format", format, FORMATS)
        self.op = op
        self.order = order
        self.value = value
        self.effective = effective
        self.rejects = None if rejects is None else local_path("rejects", rejects).absolute()
        self.max_bad_rate = max_bad_rate
        self.last: Applied | None = None
        self.seconds_behind: float | None = None  # of the newest change, when it became visible
        if not isinstance(app, str) or not app:
            raise ArgumentError(f"app={app!r} is no name; give the stream of changes one that stays, such as 'prices'")
        if self.rejects is None and max_bad_rate:
            raise ArgumentError(f"max_bad_rate={max_bad_rate} lets bad records pass; say by rejects= where they go")
        opened = MasterStore.open(store)
        self._dimension = "dimension" in opened.manifest.properties
        if effective is not None and not self._dimension:
            raise ArgumentError(f"effective={effective!r} is for dimensions with history, which {store} is not")

    def __call__(self, batch: "DataFrame", batch_id: int) -> None:
        """Apply one batch, or pass over it when the store has it already."""
        self.apply(batch.toArrow(), batch_id, running_query(batch))

    def apply(self, rows: pa.Table, batch_id: int, query: str = "") -> None:
        """The same for rows that are there.

        Batches are counted for each query: under a new checkpoint they begin at 0 and are applied, again or for the
        first time. Changes that are applied again in their order end with the same rows; none is ever passed over.
        """
        store = MasterStore.open(self.path)
        token = (f"{self.app}@{query}" if query else self.app, batch_id)
        if self._dimension:
            dimension = Dimension(store)
            changes = self._changes(rows, *dimension.with_time(self.effective), batch_id)
            done = dimension.apply(changes, effective=self.effective, token=token, max_bad_rate=self.max_bad_rate)
            self.last = Applied(dimension.store, rejects=changes.rejects, applied=done.applied)
        else:
            changes = self._changes(rows, store.schema, store.key, batch_id)
            self.last = apply_changes(store, changes, token=token, max_bad_rate=self.max_bad_rate)
        if self.rejects is not None and changes.rejects:
            self.rejects.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_rejects(changes.rejects, self.rejects / f"{self.app}-{batch_id:09d}.jsonl")
        newest = pc.max(changes.rows.column(TIME))
        self.seconds_behind = time.time() - newest.cast(pa.int64()).as_py() / 1e6 if newest.is_valid else None

    def _changes(self, rows: pa.Table, schema: pa.Schema, key: Any, batch_id: int) -> Changes:
        name = f"{self.app}, batch {batch_id}"
        if self.format == "plain":
            return plain_changes(rows, schema, key, op=self.op, order=self.order, name=name)
        if self.value not in rows.column_names:
            raise ArgumentError(f"value={self.value!r} is no column of the changes; they have {rows.column_names}")
        texts = enumerate(rows.column(self.value).to_pylist(), 1)
        # A tombstone, None, follows a delete in Kafka, and says nothing more.
        return debezium_changes(((name, number, text) for number, text in texts if text is not None), schema, key)
