"""The embedded engine: join any iterable of Arrow batches with a store, without Spark.

>>> import pyarrow as pa, tempfile
>>> from semistream import MasterStore, join
>>> products = pa.table({"id": [1, 2, 3], "price": [1.5, 4.0, 9.5]})
>>> store = MasterStore.build(products, tempfile.mkdtemp() + "/products", key="id")
>>> sales = pa.record_batch({"product": [2, 9], "quantity": [5, 1]})
>>> joined = join([sales], store, on={"product": "id"}, memory="1MB")
>>> pa.Table.from_batches(joined).sort_by("product").to_pydict()
{'product': [2, 9], 'quantity': [5, 1], 'price': [4.0, None]}
"""

import itertools
import math
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace

import pyarrow as pa

from semistream.budget import Budget, parse_bytes
from semistream.errors import ArgumentError, EmptyMasterError, SchemaError
from semistream.joins.contract import Join
from semistream.lookup.bind import bind
from semistream.lookup.choose import choose_algorithm
from semistream.lookup.pacing import WAIT_SECONDS, ThreadReader, paced
from semistream.lookup.spec import JoinSpec, asks
from semistream.shedding.settings import checked
from semistream.shedding.shedder import in_front, memory_of
from semistream.stores import MasterStore
from semistream.stores.contract import Store


def open_store(store: MasterStore | str | os.PathLike[str], *, allow_empty: bool = False) -> MasterStore:
    """A store on disk from itself or its path; an empty master is refused, since nothing could ever match it."""
    opened = _open(store, allow_empty=allow_empty)
    if not isinstance(opened, MasterStore):
        raise ArgumentError(
            f"store={store!r} is not on disk, where others could read it; give a MasterStore or its path"
        )
    return opened


def _open(store: Store | str | os.PathLike[str], *, allow_empty: bool) -> Store:
    if isinstance(store, str | os.PathLike):
        store = MasterStore.open(store)
    if not hasattr(store, "facts") or not hasattr(store, "reader"):
        raise ArgumentError(f"store={store!r} is not a store; give a MasterStore or the path of one")
    if store.facts.rows == 0 and not allow_empty:
        raise EmptyMasterError(
            f"the master at {getattr(store, 'path', store)} (version {store.version}) is empty, so nothing can match; "
            "load it first, or give allow_empty=True if that is meant"
        )
    return store


@asks(JoinSpec)
def make_join(schema: pa.Schema, store: Store | str | os.PathLike[str], spec: JoinSpec) -> Join:
    """The join itself, for those who want its counters or call it for several streams in turn. It reads its streams
    without a thread. A batch without rows tells it that nothing came for a while: rows that wait leave then; with
    ``algorithm="sweep"`` those that have waited for ``wait_seconds``.
    """
    return _make(schema, store, spec)


def _make(schema: pa.Schema, store: Store | str | os.PathLike[str], spec: JoinSpec) -> Join:
    opened = _open(store, allow_empty=spec.allow_empty)
    memory_bytes = parse_bytes(spec.memory, whole=opened.facts.bytes)
    shed, beside = spec.shed, 0
    if shed is not None:
        checked(shed).check_how(spec.how)
        if not isinstance(opened, MasterStore):
            raise ArgumentError(f"shed= needs a store on disk, where rows are joined later; {opened!r} is in memory")
        schema = shed.widened(schema)
        beside = memory_of(shed, memory_bytes)[0]
    plan = bind(replace(spec, settings=None, shed=None), schema, opened)  # nodes of a join get it without them
    budget = Budget(memory_bytes - beside, given=memory_bytes)
    read = plan.reads(opened)
    kind = choose_algorithm(spec.algorithm, read, plan, budget.total, given=memory_bytes).join
    settings, suited = spec.settings, kind.settings_type
    named = {"wait_seconds": spec.wait_seconds, "hot_keys": spec.hot_keys}  # settings that are arguments too
    given = {name: value for name, value in named.items() if value is not None and hasattr(suited, name)}
    if given:
        settings = replace(kind.settings_of(settings), **given)  # it has them
    made = kind(read, plan, budget, settings)
    if shed is not None:
        assert isinstance(opened, MasterStore)
        made.front = in_front(shed, plan, opened, memory_bytes)
    return made


@asks(JoinSpec)
def join(
    batches: Iterable[pa.RecordBatch] | pa.Table | pa.RecordBatchReader,
    store: Store | str | os.PathLike[str],
    spec: JoinSpec,
) -> Iterator[pa.RecordBatch]:
    """Join a stream of batches with a store; output batches come as soon as their rows are known.

    ``memory`` is what the join keeps in total: index, buffers, cache and waiting rows. ``on`` is a column name,
    several, or {stream column: master column}; or the join is on a ``condition`` (`semistream.joins.conditions`), by
    an algorithm that scans the master. ``ordered`` keeps the stream's order, where the algorithm can. ``columns`` are
    the master's columns to add (default: all but the key). ``as_of`` is the stream's column with a moment: of a key's
    rows only those match with ``valid_from`` <= moment < ``valid_to`` (NULL is no bound). ``multiple`` is for stream
    rows with several matches: "all" of them, the "first" in the store's order of the key's rows, or an "error".
    ``status`` names a last column that says "matched" or "unmatched" in a left join. ``shed`` relieves a join whose
    stream is too fast.

    ``wait_seconds`` is how long a row may wait for others to share a read with when nothing else comes: one second, or
    what the settings say. So that this holds for a source that blocks, every source but a list, a tuple or a table is
    read in a thread, one batch each time the join asks for one. With ``math.inf`` it is read in the caller's thread,
    and rows wait until it goes on.

    ``hot_keys`` is a file in which "sweep" keeps its hot keys between runs: a join that finds one begins with their
    rows in its cache. It is made when it is not there; without it, and with a damaged one, the cache begins empty.

    ``threads`` is how many may work at once in "sweep" and "whole": one for each core that this process may use. They
    share the memory, so that a small one makes fewer. Rows then leave in any order.
    """
    wait = getattr(spec.settings, "wait_seconds", WAIT_SECONDS) if spec.wait_seconds is None else spec.wait_seconds
    if isinstance(batches, str | bytes | Mapping | pa.RecordBatch) or not isinstance(batches, Iterable | pa.Table):
        raise ArgumentError(
            f"batches must be Arrow record batches, one after the other, not a {type(batches).__name__}"
        )
    stream = _of_one_schema(batches.to_batches() if isinstance(batches, pa.Table) else batches)
    if wait == math.inf or isinstance(batches, list | tuple | pa.Table):
        first = next(stream, None)
        return iter(()) if first is None else _make(first.schema, store, spec).join(itertools.chain([first], stream))
    reader = ThreadReader(stream)
    try:
        first = reader.get(None)
        if first is None:
            return iter(())
        made = _make(first.schema, store, spec)
    except BaseException:
        reader.close()
        raise
    joined = _joined(made, paced(first, reader.get, wait, made.due), reader)
    weakref.finalize(joined, reader.close)  # a generator that nobody has begun ends nothing itself
    return joined


def _joined(made: Join, batches: Iterator[pa.RecordBatch], reader: ThreadReader) -> Iterator[pa.RecordBatch]:
    """Join what the thread reads; it ends with the stream, or when the caller leaves."""
    with closing(made.join(batches)) as joined, closing(reader):
        for batch in joined:  # noqa: UP028 - with "yield from", the join would be closed before the reader
            yield batch


def _of_one_schema(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema: pa.Schema | None = None
    for number, batch in enumerate(batches):
        if not isinstance(batch, pa.RecordBatch):
            which = "the first" if number == 0 else f"number {number}"
            raise ArgumentError(f"batches must be Arrow record batches, {which} is a {type(batch).__name__}")
        schema = batch.schema if schema is None else schema
        if not batch.schema.equals(schema):
            raise SchemaError(f"batch {number} of the stream has schema\n{batch.schema}\nbut the first had\n{schema}")
        yield batch
