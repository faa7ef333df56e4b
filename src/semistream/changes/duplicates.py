"""Business keys that the warehouse has already, so that a row which comes twice is loaded once.

The keys lie in a store, not in memory: what is kept in memory is bounded, however long the stream runs.

>>> import pyarrow as pa, tempfile
>>> seen = SeenKeys(tempfile.mkdtemp() + "/seen", pa.schema([("sale", pa.int64())]))
>>> batch = pa.table({"sale": [7, 8, 7], "amount": [1, 2, 3]})
>>> seen.new(batch).tolist()
[True, True, False]
>>> seen.add(batch, token=("sales", 0))
2
>>> seen.new(pa.table({"sale": [8, 9]})).tolist()
[False, True]
"""

import os
from collections.abc import Iterable
from contextlib import suppress

import numpy as np
import pyarrow as pa

from semistream.budget import Budget, parse_bytes
from semistream.changes.applying import Token, check_token, present, publish, token_property, was_applied
from semistream.changes.rows import Numbers, distinct, last_rows
from semistream.errors import ArgumentError, ConcurrentWriteError, SchemaError, local_path
from semistream.keys import Mask
from semistream.lookup.run import join
from semistream.stores import MasterStore
from semistream.stores.fetching import key_columns
from semistream.stores.paged.manifest import Manifest

_ROW = "_row"
_COPIES = 4  # of new keys that are made on their way into the store
_KEPT_VERSIONS = 20  # for readers that have opened an older one


class SeenKeys:
    """A store of keys; made when it is not there."""

    def __init__(self, path: str | os.PathLike[str], key: pa.Schema, memory: int | str = "64MB") -> None:
        """``key`` are the columns of the business key, ``memory`` what a lookup keeps."""
        if not isinstance(key, pa.Schema) or not len(key):
            raise ArgumentError(f"key={key!r} must be a pyarrow.Schema of at least one column")
        self.memory_bytes = parse_bytes(memory)
        if not Manifest.versions(local_path("path", path)):
            with suppress(ConcurrentWriteError):  # another made it at the same moment
                MasterStore.build(key.empty_table(), path, key=key.names)
        self.store = MasterStore.open(path)
        if [(item.name, item.type) for item in self.store.schema] != [(item.name, item.type) for item in key]:
            raise SchemaError(f"{path} holds the keys {self.store.schema}, not {key}; choose another path")

    @property
    def listed_bytes(self) -> int:
        """What the lists of keys take that updates have changed, and that an open store keeps in memory."""
        return sum(level.changed.nbytes for level in self.store.delta_levels())

    def new(self, batch: pa.Table | pa.RecordBatch, order: str | None = None) -> Mask:
        """Which rows are neither in the warehouse nor a repetition within the batch.

        Of the rows of one key the first counts, or the first by column ``order`` (NULL last). A row with a NULL in its
        key is nobody's duplicate.
        """
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        self.store = self.store.latest()
        columns = key_columns(table, self.store.schema, self.store.key)
        valid = self.store.codec.encode(columns)[1]
        result = ~valid
        firsts = pa.array(self._firsts(table, columns, valid, order))
        asked = pa.table([*(column.take(firsts) for column in columns), firsts], names=[*self.store.key, _ROW])
        memory = self.memory_bytes
        for found in join(asked, self.store, on=list(self.store.key), how="anti", memory=memory, allow_empty=True):
            result[found.column(_ROW).to_numpy()] = True
        return result

    def _firsts(self, table: pa.Table, columns: list[pa.Array], valid: Mask, order: str | None) -> Numbers:
        """The first row of each key."""
        rows = np.arange(table.num_rows)
        if order is not None:
            if order not in table.column_names:
                raise ArgumentError(f"order={order!r} is no column of the rows; they have {table.column_names}")
            by_value = pa.table({"value": table.column(order), "row": rows})
            rows = by_value.sort_by([("value", "ascending"), ("row", "ascending")])["row"].to_numpy()
        rows = rows[valid[rows]]
        return last_rows(self.store.codec.groups(columns), rows[::-1])

    def add(self, keys: pa.Table | pa.RecordBatch, token: Token | None = None, *, budget: Budget | None = None) -> int:
        """Remember the keys of rows that were loaded; how many were new. The same ``token`` again adds nothing. The
        ``budget`` grants what it takes beside ``keys``; by default it is the ``memory`` of this object.
        """
        check_token(token)
        asked = distinct(self.store, key_columns(keys, self.store.schema, self.store.key))

        def change(newest: MasterStore) -> tuple[MasterStore, int]:
            new = asked.filter(pa.array(~present(newest, asked)))
            if token is None and not new.num_rows:
                return newest, 0
            return _updated(newest, new, token, granted), new.num_rows

        granted = Budget(self.memory_bytes) if budget is None else budget
        self.store, added = publish(self.store, change, token)
        if self.listed_bytes > granted.total // 4:
            with suppress(ConcurrentWriteError):  # another writer will
                self.store = _compacted(self.store, granted)
        return added or 0

    def add_pieces(self, pieces: Iterable[pa.Table], token: Token, budget: Budget | None = None) -> int:
        """As `add`, in pieces with a version each; the last has the ``token``: done again after a half, it goes on."""
        if was_applied(self.store.latest(), token):
            return 0
        added, last = 0, None
        for piece in pieces:
            added += 0 if last is None else self.add(last, budget=budget)
            last = piece
        return added + (0 if last is None else self.add(last, token, budget=budget))


def _updated(store: MasterStore, new: pa.Table, token: Token | None, budget: Budget) -> MasterStore:
    """With these keys too; there is memory for it: an update that folds others sorts all that came since the base."""
    part, size = "an update of keys seen", _COPIES * new.nbytes
    updates = sum(entry.bytes for entry in store.manifest.deltas)
    if not budget.grant(part, updates + size):  # a new base is made in what memory there is
        store = _compacted(store, budget)
        budget.grant(part, size)  # whoever gives more keys at once has the memory for them
    try:
        return store.apply(new, properties=token_property(token))
    finally:
        budget.release(part)


def _compacted(store: MasterStore, budget: Budget) -> MasterStore:
    part, size = "a new base of keys seen", max(1, budget.free // 2)
    budget.require(part, size)
    try:
        compacted = store.compact(size)
    finally:
        budget.release(part)
    compacted.vacuum(_KEPT_VERSIONS)
    return compacted
