"""A dimension of the warehouse: business keys, their surrogate keys, their attributes, and if wanted their history.

It is a `MasterStore` whose key is the business key (with the source system in front when there are several), so
every join can look it up. The next surrogate key travels in the version's properties: a version is published as a
whole and by one writer only, so no number is given twice and a replay finds the numbers it gave before.

>>> import pyarrow as pa, tempfile
>>> products = Dimension.create(
...     tempfile.mkdtemp() + "/d",
...     key=pa.schema([("product", pa.string())]),
...     attributes=pa.schema([("name", pa.string())]),
...     surrogate="product_sk",
... )
>>> products.assign(pa.table({"product": ["b", None, "a"]})).to_pydict()
{'product': ['b', None, 'a'], 'product_sk': [2, -1, 1]}
>>> done = products.apply(pa.table({"_op": ["upsert"], "product": ["a"], "name": ["apple"]}))
>>> done.completed, products.assign(pa.table({"product": ["a"]}))["product_sk"].to_pylist()
(1, [1])
"""

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from semistream.changes.applying import Token, check_token, publish, token_property
from semistream.changes.reading import plain_changes
from semistream.changes.rows import TIME, Changes, distinct
from semistream.dimensions.members import infer, merge_history, overwrite, surrogates
from semistream.dimensions.shape import DIMENSION, NEXT, OBSERVED, VALID_FROM, Counts, DimensionChange, Shape, Work
from semistream.errors import ArgumentError, StoreError
from semistream.stores import MasterStore
from semistream.stores.fetching import key_columns, to_batch


class Dimension:
    """A dimension on disk; `store` is the newest version that this object has seen."""

    def __init__(self, store: MasterStore) -> None:
        if DIMENSION not in store.manifest.properties:
            raise StoreError(f"{store.path} is a store but no dimension; make one with Dimension.create(path, ...)")
        self.store = store
        self.shape = Shape.load(store.manifest.properties[DIMENSION])

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        key: pa.Schema,
        attributes: pa.Schema,
        surrogate: str,
        history: bool = False,
        source: str | None = None,
        first_key: int = 1,
        unknown_key: int = -1,
        unknown_member: Mapping[str, Any] | None = None,
        time: pa.DataType | None = None,
    ) -> Self:
        """An empty dimension.

        ``key`` are the business key's columns, ``source`` the name of one more in front of them that says which system
        a key is from. ``history`` keeps the versions of each member (type 2), whose validity has type ``time`` (by
        default timestamps in UTC). ``unknown_key`` is given to rows without a key; with ``unknown_member``
        ({attribute: value}, values as JSON has them) the dimension has a row for it.
        """
        for name, given in (("key", key), ("attributes", attributes)):
            if not isinstance(given, pa.Schema):
                raise ArgumentError(f"{name}={given!r} must be a pyarrow.Schema: names and types")
        keys = pa.schema([*([pa.field(source, pa.string())] if source else []), *key])
        if not len(keys):
            raise ArgumentError("key names no column; a dimension needs a business key")
        if first_key <= unknown_key:
            raise ArgumentError(f"first_key={first_key} must be above unknown_key={unknown_key}")
        kind = pa.timestamp("us", "UTC") if time is None else time
        if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_int64(kind)):
            raise ArgumentError(f"time={kind} cannot say when a version is valid; use a timestamp, a date or int64")
        schema = Shape.store_schema(keys, surrogate, attributes, kind if history else None)
        shape = Shape(
            tuple(keys.names), tuple(attributes.names), surrogate, history, source, unknown_key, unknown_member
        )
        shape.unknown_row(schema)  # fails now rather than later
        properties = {DIMENSION: shape.dump(), NEXT: str(first_key)}
        return cls(MasterStore.build(schema.empty_table(), path, key=keys.names, properties=properties))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """A dimension that is there; all about it is in its store."""
        return cls(MasterStore.open(path))

    @property
    def path(self) -> Path:
        return self.store.path

    @property
    def key(self) -> tuple[str, ...]:
        return self.shape.key

    @property
    def next_key(self) -> int:
        """The next surrogate key that will be given."""
        return int(self.store.manifest.properties[NEXT])

    @property
    def change_schema(self) -> pa.Schema:
        """The columns that a change of a member has: business key and attributes."""
        return pa.schema([self.store.schema.field(name) for name in (*self.key, *self.shape.attributes)])

    def assign(self, keys: pa.Table | pa.RecordBatch, as_of: str | None = None) -> pa.Table:
        """The rows with their surrogate keys; members that are not known yet are inferred.

        New members get the next numbers in the order of their keys. A NULL in the key gives the unknown key. With a
        history it is the newest version's key or, with ``as_of``, that of the version which holds at the row's time;
        where none does, that of the last one before, else of the first.
        """
        table = pa.Table.from_batches([keys]) if isinstance(keys, pa.RecordBatch) else keys
        if self.shape.surrogate in table.column_names:
            raise ArgumentError(f"the rows have a column {self.shape.surrogate!r} already; rename it")
        if as_of is not None and (not self.shape.history or as_of not in table.column_names):
            raise ArgumentError(f"as_of={as_of!r} needs a dimension with history=True, and rows with that column")
        columns = key_columns(table, self.store.schema, self.key)
        asked = distinct(self.store, columns)

        def change(newest: MasterStore) -> tuple[MasterStore, pa.Table]:
            members, work = infer(newest, self.shape, asked)
            return _written(newest, work, None), members

        self.store, members = publish(self.store, change)
        times = None if as_of is None else table.column(as_of).combine_chunks()
        found = surrogates(self.store, self.shape, columns, members, times)
        return table.append_column(self.shape.surrogate, found)

    def apply(
        self,
        changes: Any,
        *,
        effective: str | None = None,
        token: Token | None = None,
        max_bad_rate: float | None = None,
    ) -> DimensionChange:
        """Apply changes of members as one new version, once for each ``token``.

        ``changes`` are `Changes` for `change_schema`, or rows with an operation in ``_op``. With a history
        ``effective`` names the column that says since when a row holds; by default it is the time that the source gave.
        """
        check_token(token)
        found = changes if isinstance(changes, Changes) else plain_changes(changes, *self.with_time(effective))
        found.check(max_bad_rate)
        if found.truncated:
            raise ArgumentError("a dimension is not emptied, since facts refer to its members; delete them by key")
        time = TIME if effective is None else effective
        if time not in found.rows.column_names:
            raise ArgumentError(f"effective={time!r}: the changes have the columns {found.rows.column_names}")

        def change(newest: MasterStore) -> tuple[MasterStore, Counts]:
            if self.shape.history:
                work = merge_history(newest, self.shape, found.rows, time)
            else:
                work = overwrite(newest, self.shape, found.rows)
            return _written(newest, work, token), work.counts

        self.store, counts = publish(self.store, change, token)
        done = {} if counts is None else asdict(counts)
        return DimensionChange(**done, version=self.store.version, applied=counts is not None, rejects=found.rejects)

    def with_time(self, effective: str | None) -> tuple[pa.Schema, tuple[str, ...]]:
        """The columns that a change must have, its time if it has one; those without which it is none."""
        schema = self.change_schema
        if effective is None:
            return schema, self.key
        if effective not in schema.names and self.shape.history:
            schema = schema.append(pa.field(effective, self.store.schema.field(VALID_FROM).type))
        return schema, (*self.key, effective)

    def rows(self, since: int | None = None, version: int | None = None) -> tuple[pa.Table, bool]:
        """The dimension's rows for the warehouse: those of members that changed since a version, or all of them.

        They are those of ``version``, by default of the newest, which `store` is then. Says too whether these are all
        rows. A row is never taken away, and its surrogate key is its identity.
        """
        self.store = self.store.latest()
        store = self.store if version is None else MasterStore.open(self.path, version)
        codes = None if since is None else store.changed_since(since)
        schema = pa.schema([item for item in store.schema if item.name != OBSERVED])
        if codes is None:
            batches = [*self.shape.unknown_row(schema).to_batches(), *store.scan(schema.names)]
        else:
            batches = [to_batch(store, codes[at], rows, schema.names) for at, rows in store.reader().match(codes)]
        table = pa.Table.from_batches(batches, schema)
        return table.filter(pc.is_valid(table.column(self.shape.surrogate))), codes is None


def _written(store: MasterStore, work: Work, token: Token | None) -> MasterStore:
    """One version: the rows, the counter and the token."""
    return store.apply(work.rows, properties={NEXT: str(work.next_key), **token_property(token)})
