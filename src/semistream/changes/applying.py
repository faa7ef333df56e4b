"""Changes of a master table, in order, and how they become one new version of its store, exactly once.

A change is a row with an operation: insert, update and upsert give a key its row, delete takes it away; the last change
of each key counts. A token (application, batch number) is kept in the store's properties, in the same version as the
rows: whoever runs a batch again finds that it was applied. A version is made anew when another writer was first.

>>> import pyarrow as pa, tempfile
>>> from semistream import MasterStore
>>> products = pa.table({"id": [1, 2], "price": [1.5, 4.0]})
>>> store = MasterStore.build(products, tempfile.mkdtemp() + "/products", key="id")
>>> changes = pa.table({"_op": ["update", "insert", "delete"], "id": [1, 3, 2], "price": [1.75, 9.5, None]})
>>> done = apply_changes(store, changes, token=("prices", 1))
>>> done.store.version, done.inserted, done.updated, done.deleted
(2, 1, 1, 1)
>>> apply_changes(done.store, changes, token=("prices", 1)).applied  # a replay
False
"""

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from semistream.changes.reading import plain_changes
from semistream.changes.rows import OP, Changes, Reject, columns_of, last_of_each
from semistream.errors import ArgumentError, ConcurrentWriteError
from semistream.keys import Mask
from semistream.stores import MasterStore

Token = tuple[str, int]
Result = TypeVar("Result")
ATTEMPTS = 50


@dataclass(frozen=True)
class Applied:
    """What `apply_changes` did; ``applied`` is False when the token's batch was there already."""

    store: MasterStore
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    rejects: list[Reject] = field(default_factory=list)
    applied: bool = True


def apply_changes(
    store: MasterStore | str | os.PathLike[str],
    changes: Any,
    *,
    op: str = OP,
    order: str | None = None,
    token: Token | None = None,
    max_bad_rate: float | None = None,
) -> Applied:
    """Apply the last change of each key as one new version, once for each ``token``.

    ``changes`` are `Changes`, or rows (anything that a store can be built from) with an operation in column ``op``;
    they count in the order given, or by column ``order``. Records that cannot be applied are in ``rejects``; more of
    them than ``max_bad_rate`` (a share of all) stop it before anything is changed.
    """
    check_token(token)
    opened = MasterStore.open(store) if isinstance(store, str | os.PathLike) else store
    if "dimension" in opened.manifest.properties:
        raise ArgumentError(
            f"{opened.path} is a dimension, whose rows have surrogate keys; use Dimension.open(path).apply(changes)"
        )
    if was_applied(opened.latest(), token):
        return Applied(opened.latest(), applied=False)
    if not isinstance(changes, Changes):
        changes = plain_changes(changes, opened.schema, opened.key, op=op, order=order)
    changes.check(max_bad_rate)
    rows = last_of_each(opened.codec, changes.rows)
    deleted = pc.equal(rows.column(OP), "delete")
    upserts = rows.filter(pc.invert(deleted)).select(opened.schema.names)
    deletes = rows.filter(deleted).select(list(opened.key))

    def change(newest: MasterStore) -> tuple[MasterStore, Applied]:
        going = _all_but(newest, upserts) if changes.truncated else deletes
        there, gone = int(present(newest, upserts).sum()), int(present(newest, going).sum())
        made = newest.apply(
            upserts if upserts.num_rows else None, going if going.num_rows else None, properties=token_property(token)
        )
        return made, Applied(made, upserts.num_rows - there, there, gone, changes.rejects)

    published, done = publish(opened, change, token)
    return done or Applied(published, rejects=changes.rejects, applied=False)


def present(store: MasterStore, keys: pa.Table) -> Mask:
    """Which of these keys have a row in the store."""
    found = store.get(keys.select(list(store.key)), columns=list(store.key))
    return store.codec.among(columns_of(keys, store.key), columns_of(found, store.key))


def _all_but(store: MasterStore, kept: pa.Table) -> pa.Table:
    key = list(store.key)
    everything = pa.Table.from_batches(list(store.scan(key)), pa.schema([store.schema.field(name) for name in key]))
    others = ~store.codec.among(columns_of(everything, store.key), columns_of(kept, store.key))
    return last_of_each(store.codec, everything.filter(pa.array(others)))


def check_token(token: Token | None) -> None:
    if token is None:
        return
    good = isinstance(token, tuple) and len(token) == 2 and isinstance(token[0], str) and token[0]
    if not good or isinstance(token[1], bool) or not isinstance(token[1], int) or token[1] < 0:
        raise ArgumentError(f"token={token!r} is not usable; give (application, batch number), such as ('sales', 7)")


def was_applied(store: MasterStore, token: Token | None) -> bool:
    """Does this version hold the batch already?"""
    return token is not None and int(store.manifest.properties.get(f"applied.{token[0]}", "-1")) >= token[1]


def token_property(token: Token | None) -> dict[str, str]:
    return {} if token is None else {f"applied.{token[0]}": str(token[1])}


def publish(
    store: MasterStore,
    change: Callable[[MasterStore], tuple[MasterStore, Result]],
    token: Token | None = None,
    attempts: int = ATTEMPTS,
) -> tuple[MasterStore, Result | None]:
    """Change the newest version; again from the start, a moment later, when another writer was first. The version, and
    what ``change`` says of it; None when the token's batch is there already.
    """
    for attempt in range(attempts):
        try:
            newest = store.latest()
            return (newest, None) if was_applied(newest, token) else change(newest)
        except ConcurrentWriteError:
            if attempt == attempts - 1:
                raise
            time.sleep(random.uniform(0, 0.002 * min(attempt + 1, 25)))  # so that two writers fall out of step
    raise ArgumentError(f"attempts={attempts} must be at least 1")
