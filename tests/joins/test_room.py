"""What a join really holds: rows that wait, and output of wide text, within what the budget was told."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from semistream.joins import JOINS, whole, window
from semistream.joins.output import pieces
from semistream.joins.sweep.join import SweepJoin
from semistream.joins.whole import WholeJoin
from semistream.lookup.run import make_join
from semistream.lookup.spec import How
from semistream.stores import MasterStore

KEYS = 20_000
MEMORY = 8 << 20
WIDE = 7  # the key of the long text
CASES = [(name, 1, 500) for name in sorted(JOINS)] + [("sweep", 2, 4_000)]


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> MasterStore:
    path = tmp_path_factory.mktemp("room") / "narrow"
    return MasterStore.build(pa.table({"id": np.arange(KEYS), "price": np.arange(KEYS) * 0.5}), path, key="id")


# -- rows that wait ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, threads, rows", CASES)
def test_rows_that_wait_keep_no_larger_batch_alive(narrow: MasterStore, name: str, threads: int, rows: int) -> None:
    """Every batch is a slice of a table that its owner lets go of; all its rows miss."""
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    wide = pa.array(["z" * 200] * KEYS)
    table_bytes = wide.nbytes + 8 * KEYS
    alive = []

    def stream() -> Iterator[pa.RecordBatch]:
        for number in range(20):
            text = wide.take(pa.array(np.arange(KEYS)))  # its own memory, which goes with the last slice of it
            keys = pa.array((np.arange(KEYS) * 7 + number * rows) % KEYS)
            batch = pa.RecordBatch.from_arrays([keys, text], schema=schema).slice(0, rows)
            del text, keys
            yield batch
            del batch
            alive.append(pa.total_allocated_bytes() - before)

    join = make_join(schema, narrow, on="id", memory=MEMORY, algorithm=name, threads=threads)
    before = pa.total_allocated_bytes()
    assert sum(batch.num_rows for batch in join.join(stream())) == 20 * rows
    assert max(alive) <= MEMORY + 2 * table_bytes  # the table at work, and the one before it


def test_a_column_of_text_that_is_full_is_swept(narrow: MasterStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets of 32 bits end long before the memory of a large window does."""
    most = 1 << 16
    monkeypatch.setattr(window, "MOST_TEXT", most)
    texts = ["x" * 1000] * 30
    schema = pa.schema([("id", pa.int64()), ("text", pa.string()), ("tags", pa.list_(pa.string())), ("n", pa.int8())])
    columns = [texts, [[text] for text in texts], [1] * 30]
    batches = [pa.record_batch([np.arange(30) + 30 * n, *columns], schema=schema) for n in range(20)]
    join = make_join(schema, narrow, on="id", memory="64MB", algorithm="sweep", threads=1)
    assert isinstance(join, SweepJoin)
    taken = []
    take = join.window.take

    def watched() -> tuple[pa.RecordBatch, np.ndarray]:
        taken.append(take())
        return taken[-1]

    monkeypatch.setattr(join.window, "take", watched)
    rows = pa.Table.from_batches(join.join(batches))
    assert rows.num_rows == 20 * 30
    assert rows.column("text").unique().to_pylist() == texts[:1]
    assert len(taken) == 10
    assert max(column.nbytes for stream, _ in taken for column in stream.columns) <= most


# -- wide text ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[1, 3])
def uneven(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MasterStore:
    """Short texts, and in one key long ones: some that fit a page, or (the last of three) one that does not."""
    each = int(request.param)
    texts = ["x" * 20] * KEYS * each
    texts[WIDE * each : (WIDE + 1) * each] = ["y" * 3_000, "z" * 10, "y" * 30_000][:each]
    table = pa.table({"id": np.repeat(np.arange(KEYS), each), "text": texts})
    return MasterStore.build(table, tmp_path_factory.mktemp("room") / "uneven", key="id")


@pytest.mark.parametrize(
    "name, ordered",
    [(name, False) for name in sorted(JOINS)] + [(name, True) for name in sorted(JOINS) if JOINS[name].keeps_order],
)
def test_a_frequent_key_of_long_text_comes_out_in_bounded_batches(
    uneven: MasterStore, name: str, ordered: bool
) -> None:
    """Pieces are of so many rows as suit the mean; a stream of one key of far wider rows must not fill them."""
    rows, longest = 4_000, 33_010
    stream = pa.record_batch({"id": np.full(rows, WIDE), "row": np.arange(rows)})
    join = make_join(stream.schema, uneven, on="id", memory="4MB", algorithm=name, threads=1, ordered=ordered)
    each = uneven.facts.rows // KEYS
    for _ in range(3):  # the key is cached, where it can be
        assert sum(batch.num_rows for batch in join.join([stream.slice(0, 50)])) == 50 * each
    before, held, largest, made = pa.total_allocated_bytes(), 0, 0, 0
    seen = np.zeros(rows, np.int64)
    for batch in join.join([stream]):
        held = max(held, pa.total_allocated_bytes() - before)
        largest = max(largest, batch.nbytes)
        made += pa.compute.sum(pa.compute.binary_length(batch.column("text"))).as_py()
        np.add.at(seen, batch.column("row").to_numpy(), 1)
        del batch
    assert (seen == each).all()
    assert made == rows * (3_000 if each == 1 else longest)
    assert largest <= 1 << 20
    assert held <= (4 << 20)


@pytest.mark.parametrize("how", ["left", "anti"])
@pytest.mark.parametrize("name", ["sweep", "whole", "hybrid", "inl"])
def test_wide_rows_of_the_stream_come_out_in_bounded_batches(narrow: MasterStore, name: str, how: How) -> None:
    """Rows without a match are copied too."""
    texts = ["x"] * 3_000 + ["y" * 20_000] * 500
    batch = pa.record_batch({"id": pa.array([KEYS + 5] * 3_500), "text": texts})
    join = make_join(batch.schema, narrow, on="id", memory="4MB", algorithm=name, how=how, threads=1)
    largest = rows = 0
    for _ in range(2):
        for made in join.join([batch]):
            largest, rows = max(largest, made.nbytes), rows + made.num_rows
    assert rows == 2 * 3_500
    assert largest <= 1 << 20


def test_whole_holds_more_text_than_one_array_of_small_offsets(
    uneven: MasterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = pa.record_batch({"id": [WIDE, 3, KEYS + 1]})
    before = pa.Table.from_batches(make_join(stream.schema, uneven, on="id", algorithm="whole").join([stream]))
    monkeypatch.setattr(whole, "MOST_TEXT", 1)
    join = make_join(stream.schema, uneven, on="id", algorithm="whole")
    assert isinstance(join, WholeJoin)
    assert join.table.schema.field("text").type == pa.large_string()
    assert pa.Table.from_batches(join.join([stream])).equals(before)


def test_a_dictionary_that_all_rows_share_makes_no_tiny_pieces() -> None:
    categories = pa.array([f"category {number:030}" for number in range(20_000)])
    places = pa.array(np.arange(1_000, dtype=np.int32))
    flat = pa.DictionaryArray.from_arrays(places, categories)
    for column in (flat, pa.StructArray.from_arrays([flat, places], ["a", "b"])):
        batch = pa.record_batch({"id": np.arange(1_000), "c": column})
        sizes = [piece.num_rows for piece in pieces(batch, 400, batch.schema, most_bytes=1 << 14)]
        assert sizes == [400, 400, 200]
