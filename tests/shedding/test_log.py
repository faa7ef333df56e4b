"""Files of shed rows: a replay finds its own again, anything else is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semistream.errors import ArgumentError, SheddingError
from semistream.lookup.spec import LookupSpec
from semistream.shedding.log import PartWriter, ShedPart, batches_in, read_part, read_rows
from semistream.warehouse import reconcile

QUERY, OTHER = "0b7f61f3-d9f5-4942-945a-e7a65429d651", "5c0d3a53-6f8e-4b1c-9a5e-1f0c36e9c1aa"
ABOUT = ShedPart(QUERY, 4, 0, "enrich", "keep_w", "/store", 1, LookupSpec(on="id", columns=["price"]))
ROWS: dict[str, list[Any]] = {
    "id": [3, None, 1],
    "x": [math.nan, -0.0, 2.5],
    "list": [[1, 2], None, []],
    "text": ["ü", "", None],
}


def write(root: Path, rows: dict[str, list[Any]] | None = None, rows_in: int = 9, **about: Any) -> Path:
    batch = pa.record_batch(ROWS if rows is None else rows)
    writer = PartWriter(root, dataclasses.replace(ABOUT, **about), batch.schema)
    with contextlib.closing(writer):
        writer.add(batch, rows_in)
        writer.publish()
    return writer.path


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_written_and_read(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert files(tmp_path) == ["batch=4/part-0.parquet"]
    assert batches_in(tmp_path) == {4: [path]}
    assert read_part(path) == dataclasses.replace(ABOUT, rows_in=9, rows=3)
    assert read_part(path, whole=False) == read_part(path)
    [batch] = read_rows(path)
    assert str(batch.to_pydict()) == str(ROWS)


def test_a_replay_writes_the_same_again(tmp_path: Path) -> None:
    path = write(tmp_path)
    before = path.read_bytes()
    write(tmp_path)
    assert path.read_bytes() == before
    assert files(tmp_path) == ["batch=4/part-0.parquet"]


@pytest.mark.parametrize(
    "other",
    [
        {"rows": ROWS | {"x": [math.nan, -0.0, 2.75]}},
        {"rows": {name: values[:2] for name, values in ROWS.items()}},
        {"rows": {name: values[::-1] for name, values in ROWS.items()}},
        {"rows_in": 10},
        {"query": OTHER},
    ],
    ids=["a value", "fewer rows", "another order", "more rows in", "another query"],
)
def test_other_rows_are_refused_and_the_file_stays(tmp_path: Path, other: dict[str, Any]) -> None:
    path = write(tmp_path)
    before = path.read_bytes()
    with pytest.raises(SheddingError, match=rf"{path} is there already and holds other rows.*3 shed of 9"):
        write(tmp_path, **other)
    assert path.read_bytes() == before
    assert files(tmp_path) == ["batch=4/part-0.parquet"]


def test_what_is_not_published_leaves_nothing(tmp_path: Path) -> None:
    batch = pa.record_batch(ROWS)
    with contextlib.closing(PartWriter(tmp_path, ABOUT, batch.schema)) as writer:
        writer.add(batch, 3)
    assert files(tmp_path) == []


def test_foreign_files_are_named(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = write(tmp_path)
    for name in ("notes.txt", ".part-0.parquet.0123", "_keep.json", "part-x.parquet"):
        (path.parent / name).write_text("?")
    (tmp_path / "batch=x").mkdir()
    assert batches_in(tmp_path) == {4: [path]}
    pq.write_table(pa.table(ROWS), path)
    with pytest.raises(SheddingError, match=f"{path} .*semistream did not write it"):
        read_part(path)


def test_the_newest_batch_waits_for_spark(tmp_path: Path) -> None:
    def checkpoint(name: str, query: str) -> Path:
        (tmp_path / name / "commits").mkdir(parents=True)
        (tmp_path / name / "metadata").write_text(json.dumps({"id": query}))
        return tmp_path / name

    empty = {name: values[:0] for name, values in ROWS.items()}
    write(tmp_path / "shed", empty, batch=0)
    write(tmp_path / "shed", empty)
    assert reconcile(tmp_path / "shed", tmp_path / "table").waiting == (4,)
    own = checkpoint("own", QUERY)
    assert reconcile(tmp_path / "shed", tmp_path / "table", checkpoint=own).waiting == (4,)
    (own / "commits" / "4").touch()
    assert reconcile(tmp_path / "shed", tmp_path / "table", checkpoint=own).waiting == ()
    with pytest.raises(ArgumentError, match=rf"checkpoint=.* is of query {OTHER}, the shed rows are of {QUERY}"):
        reconcile(tmp_path / "shed", tmp_path / "table", checkpoint=checkpoint("other", OTHER))
    write(tmp_path / "shed", empty, batch=5, part=1, query=OTHER)
    write(tmp_path / "shed", ROWS, batch=5, part=2, query=OTHER)
    write(tmp_path / "shed", ROWS, batch=5, part=3)
    write(tmp_path / "shed", ROWS, batch=6)
    with pytest.raises(SheddingError, match="batch=5 holds rows of several queries"):
        reconcile(tmp_path / "shed", tmp_path / "table")
