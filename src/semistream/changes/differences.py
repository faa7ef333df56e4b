"""What is new, changed or gone in a snapshot of a table, against its store: the differences S − R and R − S.

The snapshot comes in any order and may be larger than memory. Each of its batches is joined with the store: rows
without a match are inserts, rows whose values differ are updates, and both leave at once. Its keys go to a file on the
way; at the end they become a store of their own, and the keys of R that are not in it are the deletions.

>>> import pyarrow as pa, tempfile
>>> from semistream import MasterStore
>>> products = pa.table({"id": [1, 2, 3], "price": [1.5, 4.0, 9.5]})
>>> store = MasterStore.build(products, tempfile.mkdtemp() + "/products", key="id")
>>> snapshot = pa.table({"id": [4, 3, 1], "price": [7.0, 9.5, 1.75]})
>>> changes = pa.Table.from_batches(snapshot_differences(snapshot, store)).to_pylist()
>>> sorted((row["id"], row["_op"], row["price"]) for row in changes)
[(1, 'update', 1.75), (2, 'delete', None), (4, 'insert', 7.0)]
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.budget import parse_bytes
from semistream.changes.rows import OP, change_schema, columns_of, store_rows
from semistream.errors import ArgumentError, SchemaError, local_path
from semistream.keys import Mask
from semistream.lookup.run import make_join
from semistream.rows import normalise, readable_rows
from semistream.stores import MasterStore
from semistream.stores.paged.store import Progress
from semistream.stores.sources import TableInput, open_source, reported

_OLD = "__in_store"  # after a column's name: its value in the store
_BATCH_ROWS = 32_768


def snapshot_differences(
    snapshot: Any,
    store: MasterStore | str | os.PathLike[str],
    *,
    memory: int | str = "256MB",
    scratch: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Iterator[pa.RecordBatch]:
    """Change rows that turn the store into the snapshot, as `apply_changes` takes them.

    ``snapshot`` is anything that a store can be built from, with the store's columns; its keys must be distinct.
    ``memory`` is what the joins keep; files go to ``scratch``, by default next to the store.
    """
    room = None if scratch is None else local_path("scratch", scratch)
    opened = MasterStore.open(store) if isinstance(store, str | os.PathLike) else store
    if not opened.unique:
        raise ArgumentError(f"{opened.path} has keys with several rows; differences are told by a key that has one")
    source = open_source(snapshot, None)
    missing = [name for name in opened.schema.names if name not in source.schema.names]
    if missing:
        raise SchemaError(f"the snapshot has no column {missing[0]!r}; the store has {opened.schema.names}")
    return _differences(source, opened, parse_bytes(memory, whole=opened.bytes), room or opened.path.parent, progress)


def _differences(
    source: TableInput, store: MasterStore, memory_bytes: int, scratch: Path, progress: Progress | None
) -> Iterator[pa.RecordBatch]:
    key = list(store.key)
    key_schema = pa.schema([store.schema.field(name) for name in key])
    with tempfile.TemporaryDirectory(prefix="semistream-", dir=scratch) as folder:
        keys = Path(folder) / "keys.arrow"
        with pa.OSFile(str(keys), "wb") as file, pa.ipc.new_file(file, key_schema) as writer:

            def arriving() -> Iterator[pa.RecordBatch]:
                for whole in source.batches():
                    for start in range(0, whole.num_rows, _BATCH_ROWS):
                        batch = normalise(whole.slice(start, _BATCH_ROWS), store.schema)
                        for name in key:
                            if count := batch.column(name).null_count:
                                raise SchemaError(
                                    f"the snapshot has {count} rows whose key column {name!r} is NULL; leave them out"
                                )
                        writer.write_batch(batch.select(key))
                        yield batch

            names = store.schema.names
            settings: dict[str, Any] = {"memory": memory_bytes, "allow_empty": True}
            both = make_join(store.schema, store, on=key, how="left", columns=names, suffix=_OLD, **settings)
            for joined in both.join(reported(arriving(), "compare", source.rows, progress)):
                yield from _changed(joined, store)
        # The file is read as a stream: its keys need not fit into memory.
        snapshot_keys = MasterStore.build(keys, Path(folder) / "keys", key=key, memory=memory_bytes)
        _check_distinct(snapshot_keys)
        missing = make_join(key_schema, snapshot_keys, on=key, how="anti", **settings)
        for gone in missing.join(reported(store.scan(key), "find deletions", store.rows, progress)):
            if gone.num_rows:
                yield _change_rows("delete", gone, store.schema)


def _changed(joined: pa.RecordBatch, store: MasterStore) -> Iterator[pa.RecordBatch]:
    new = pc.is_null(joined.column(store.key[0] + _OLD)).to_numpy(zero_copy_only=False)
    differs = np.zeros(joined.num_rows, np.bool_)
    for name in store.schema.names:
        if name not in store.key:
            differs |= ~same_values(joined.column(name), joined.column(name + _OLD))
    rows = joined.select(store.schema.names)
    for op, some in (("insert", new), ("update", differs & ~new)):
        if some.any():
            yield _change_rows(op, rows.filter(pa.array(some)), store.schema)


def same_values(left: pa.Array, right: pa.Array) -> Mask:
    """Row by row, are they equal? NULL = NULL, NaN = NaN."""
    equal = pc.coalesce(pc.equal(left, right), pc.and_(pc.is_null(left), pc.is_null(right)))
    if pa.types.is_floating(left.type):
        both = pc.and_(pc.is_nan(left), pc.is_nan(right))
        equal = pc.or_(equal, pc.fill_null(both, fill_value=False))
    return np.asarray(equal.to_numpy(zero_copy_only=False), np.bool_)


def _change_rows(op: str, rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = {OP: pa.repeat(pa.scalar(op), rows.num_rows), **dict(zip(rows.schema.names, rows.columns, strict=True))}
    return store_rows(change_schema(schema), rows.num_rows, columns).to_batches()[0]


def _check_distinct(keys: MasterStore) -> None:
    """Raise, naming one, when the snapshot has a key twice."""
    if keys.unique:
        return
    last = keys.schema.empty_table()
    for batch in keys.scan():  # in order: equal keys follow each other
        rows = pa.concat_tables([last, pa.Table.from_batches([batch])])
        groups = keys.codec.groups(columns_of(rows, keys.key))
        repeated = np.setdiff1d(np.arange(len(groups)), np.unique(groups, return_index=True)[1])
        if len(repeated):
            raise SchemaError(
                f"the snapshot has several rows for the key {readable_rows(rows.slice(int(repeated[0]), 1))[0]}; "
                "a snapshot has one row per key"
            )
        last = rows.slice(max(0, rows.num_rows - 16))  # a code that keys share has few of them
