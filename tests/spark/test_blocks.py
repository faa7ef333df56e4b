"""Answers to blocks, without Spark: whatever the widths, no more is held at once than there is room for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest

from semistream import MasterStore
from semistream.spark import blocks
from semistream.spark.area import remove_files
from semistream.spark.blocks import BlockSize, answers, find_matches
from semistream.spark.lookups import CrossingLookup, _answer, _with_counters
from semistream.spark.operator import Task, run_task
from semistream.spark.prepare import FrameFacts, Prepared, prepare
from semistream.spark.spec import EnrichSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEYS, WIDE, LONG = 20_000, 7, 40_000
MEMORY = 16 << 20


@pytest.fixture
def app() -> Iterator[str]:
    name = f"blocks-{uuid4().hex[:8]}"
    yield name
    remove_files(name)


def prepared_for(path: Path, texts: list[str], ids: Iterable[int], app: str) -> Prepared:
    MasterStore.build(pa.table({"id": pa.array(ids), "text": texts}), path, key="id")
    spec = EnrichSpec(on="id", transport="keys", memory=MEMORY, algorithm="sweep", master_version=1, tasks_per_host=2)
    return prepare(FrameFacts(cast("DataFrame", None), pa.schema([("id", pa.int64())]), {}, True, 2, app), path, spec)


def schema_of(number: str) -> pa.Schema:
    return pa.schema([("id", pa.int64()), (number, pa.int32())])


def test_a_frequent_key_of_long_text_is_answered_in_parts(tmp_path: Path, app: str) -> None:
    """The master has one row a key, and one of them is two thousand times as wide as the mean."""
    texts = ["x" * 20] * KEYS
    texts[WIDE] = "y" * LONG
    operator = prepared_for(tmp_path / "m", texts, range(KEYS), app).operator
    batches = [pa.record_batch({"id": np.r_[np.full(700, WIDE), [3, KEYS + 1]]}) for _ in range(4)]
    with run_task(operator, schema_of("__row"), "inner") as task:
        size = BlockSize([task], many=False)
        assert size() > 4 * 702  # all are taken for one block

        def answer(pieces: Iterable[pa.RecordBatch], most_bytes: int) -> pa.Array:
            columns, missing, _ = find_matches(task, (batch.columns for batch in pieces), most_bytes, many=False)
            return pa.StructArray.from_arrays([*columns, pa.array(missing)], ["text", "missing"])

        made = list(answers(batches, answer, size))
        stats = task.finish()
    found = pa.chunked_array(made).combine_chunks()
    lengths = pa.compute.binary_length(found.field("text")).to_pylist()
    assert lengths == ([LONG] * 700 + [20, None]) * 4
    assert found.field("missing").to_pylist() == ([False] * 701 + [True]) * 4
    assert max(answer.nbytes for answer in made) <= size.most_bytes(0) <= MEMORY
    assert stats.rows_in == stats.matched + stats.unmatched == 4 * 702


def test_a_row_wider_than_the_room_is_answered_alone(tmp_path: Path, app: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_MOST_BYTES", LONG // 2)
    operator = prepared_for(tmp_path / "m", ["y" * LONG, "z"], range(2), app).operator
    with run_task(operator, schema_of("__row"), "inner") as task:
        size = BlockSize([task], many=False)

        def answer(pieces: Iterable[pa.RecordBatch], most_bytes: int) -> pa.Array:
            return find_matches(task, (batch.columns for batch in pieces), most_bytes, many=False)[0][0]

        made = list(answers([pa.record_batch({"id": [0, 1, 0, 0]})], answer, size))
    assert pa.compute.binary_length(pa.chunked_array(made)).to_pylist() == [LONG, 1, LONG, LONG]


def test_long_text_beside_many_matches_is_answered_in_parts(tmp_path: Path, app: str) -> None:
    """What the first lookup found, once a row, is repeated for every match of the second."""
    one = prepared_for(tmp_path / "one", ["y" * LONG] * 10, range(10), app)
    many = prepared_for(tmp_path / "many", ["z"] * 500, np.repeat(np.arange(10), 50), app)
    lookups = [
        CrossingLookup.of(one, ("id",), ("long",), "found_one"),
        CrossingLookup.of(many, ("id",), ("short",), "found_many"),
    ]
    lookups = [replace(each, operator=replace(each.operator, operator_count=2)) for each in lookups]
    assert [lookup.many for lookup in lookups] == [False, True]
    block = pa.record_batch({"id": np.arange(40) % 10})
    with (
        run_task(lookups[0].operator, schema_of("__row"), "inner") as first,
        run_task(lookups[1].operator, schema_of("__row"), "inner") as second,
    ):
        tasks: list[Task] = [first, second]
        size = BlockSize(tasks, many=True)
        size._row = 1.0  # a guess that is far too small

        def answer(pieces: Iterable[pa.RecordBatch], most_bytes: int) -> pa.Array:
            return _answer(lookups, tasks, pieces, most_bytes)

        made = list(answers([block], answer, size))
    assert [len(lists) for lists in pa.chunked_array(made).combine_chunks().to_pylist()] == [50] * 40
    assert max(answer.nbytes for answer in made) <= size.most_bytes(1)
    assert len(made) > 1


def test_an_empty_answer_takes_no_report() -> None:
    answer = pa.StructArray.from_arrays([pa.array([], pa.int64())], ["c0"])
    assert len(_with_counters(answer, "report")) == 0
