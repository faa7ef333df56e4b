"""A store from everything that holds a table: files, Arrow, pandas, Polars; and what cannot be one."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from semistream.errors import ArgumentError, SchemaError
from semistream.stores import MasterStore
from tests.tables import assert_same_rows, table_of

TABLE = pa.table(
    {"id": [5, 3, 9, 1, 7], "price": [5.5, None, 9.5, 1.5, 7.5], "name": ["five", "three", None, "", "süven"]}
)
CSV = TABLE.drop_columns("name")  # CSV does not tell an empty text from none


def _parquet_file(folder: Path) -> Path:
    pq.write_table(TABLE, folder / "master.parquet")
    return folder / "master.parquet"


def _parquet_directory(folder: Path) -> Path:
    (folder / "parts" / "deeper").mkdir(parents=True)
    pq.write_table(TABLE.slice(0, 2), folder / "parts" / "a.parquet")
    pq.write_table(TABLE.slice(2), folder / "parts" / "deeper" / "b.parquet", row_group_size=1)
    (folder / "parts" / "_SUCCESS").write_text("")
    return folder / "parts"


def _ipc(folder: Path) -> Path:
    pyarrow.feather.write_feather(TABLE, str(folder / "master.arrow"), compression="uncompressed")
    return folder / "master.arrow"


def _csv(folder: Path) -> Path:
    pyarrow.csv.write_csv(CSV, folder / "master.csv")
    return folder / "master.csv"


def _packed_csv(folder: Path) -> Path:
    packed = folder / "master.csv.gz"
    packed.write_bytes(gzip.compress(_csv(folder).read_bytes()))
    return packed


FILES: dict[str, Callable[[Path], Path]] = {
    "parquet": _parquet_file,
    "parquet directory": _parquet_directory,
    "arrow": _ipc,
    "csv": _csv,
    "csv.gz": _packed_csv,
}
IN_MEMORY: dict[str, Callable[[], Any]] = {
    "table": lambda: TABLE,
    "chunked table": lambda: pa.concat_tables([TABLE.slice(0, 2), TABLE.slice(2)]),
    "batch": lambda: TABLE.to_batches()[0],
    "batches": lambda: TABLE.to_batches(max_chunksize=2),
    "generator": lambda: iter(TABLE.to_batches(max_chunksize=2)),
    "reader": lambda: TABLE.to_reader(max_chunksize=2),
    "polars": lambda: pl.from_arrow(TABLE),
    "pandas": lambda: TABLE.to_pandas(types_mapper=pd.ArrowDtype),
    "pandas with an index": lambda: TABLE.to_pandas(types_mapper=pd.ArrowDtype).set_index(pd.Index([9, 8, 7, 6, 5])),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("text", [True, False])
def test_from_files(tmp_path: Path, kind: str, text: bool) -> None:
    source = FILES[kind](tmp_path)
    store = MasterStore.build(str(source) if text else source, tmp_path / "store", key="id")
    expected = CSV if kind.startswith("csv") else TABLE
    assert store.rows == 5
    assert_same_rows(table_of(store.scan(), store.schema), expected)
    assert [row["id"] for row in table_of(store.scan(), store.schema).to_pylist()] == [1, 3, 5, 7, 9]


@pytest.mark.parametrize("kind", IN_MEMORY)
def test_from_memory(tmp_path: Path, kind: str) -> None:
    store = MasterStore.build(IN_MEMORY[kind](), tmp_path / "store", key="id")
    made = table_of(store.scan(), store.schema)
    assert_same_rows(made.cast(TABLE.schema), TABLE)
    assert store.get([9, 1]).num_rows == 2


def test_pandas_and_polars_without_arrow_types(tmp_path: Path) -> None:
    rows = {"id": [2, 1], "at": pd.to_datetime(["2024-05-01", "2024-05-02"]), "kind": ["a", "b"]}
    frame = pd.DataFrame(rows).astype({"kind": "category"})
    store = MasterStore.build(frame, tmp_path / "pandas", key="id")
    assert store.get(1, ["kind"]).to_pylist() == [{"kind": "b"}]
    polars = pl.DataFrame({"id": [2, 1], "kind": ["a", "b"]}, schema={"id": pl.Int32, "kind": pl.Categorical})
    store = MasterStore.build(polars, tmp_path / "polars", key="kind")
    assert store.get("a").to_pylist() == [{"id": 2, "kind": "a"}]


@pytest.mark.parametrize("kind", ["parquet", "parquet directory", "arrow", "csv"])
def test_columns_are_chosen_and_the_key_always_among_them(tmp_path: Path, kind: str) -> None:
    store = MasterStore.build(FILES[kind](tmp_path), tmp_path / "store", key="id", columns=["price"])
    assert store.schema.names == ["id", "price"]
    store = MasterStore.build(TABLE, tmp_path / "other", key="id", columns=["name", "id"])
    assert store.schema.names == ["name", "id"]
    assert store.get(5).to_pylist() == [{"name": "five", "id": 5}]


@pytest.mark.parametrize(
    "source, words",
    [
        ("nowhere.parquet", "nowhere.parquet does not exist"),
        (5, "source of type int"),
        (None, "source of type NoneType"),
        ([], "an iterable source must give Arrow record batches, this one gave nothing"),
        ([{"id": 1}], "this one gave dict"),
        ({"id": [1]}, "this one gave str"),
        (pa.table([[1], [2]], names=["id", "id"]), "several columns named 'id'"),
        (pa.table({"other": [1]}), "no column 'id'"),
    ],
    ids=str,
)
def test_sources_that_are_none(tmp_path: Path, source: object, words: str) -> None:
    with pytest.raises((ArgumentError, SchemaError), match=words):
        MasterStore.build(source, tmp_path / "store", key="id")
    assert not (tmp_path / "store").exists()


def test_directories_of_nothing_or_of_everything(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    with pytest.raises(ArgumentError, match=r"expected files of one kind .* found: none"):
        MasterStore.build(tmp_path / "source", tmp_path / "store", key="id")
    _csv(tmp_path / "source")
    _parquet_file(tmp_path / "source")
    with pytest.raises(ArgumentError, match="found: csv, parquet"):
        MasterStore.build(tmp_path / "source", tmp_path / "store", key="id")


@pytest.mark.parametrize(
    "name, content",
    [
        ("broken.parquet", b"PAR1 but not really"),
        ("broken.csv", b"id,price\n1,2\n3\n"),
        ("broken.arrow", b"ARROW1\0\0"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SchemaError, match=name):
        MasterStore.build(tmp_path / name, tmp_path / "store", key="id")
    MasterStore.build(TABLE, tmp_path / "store", key="id")


def test_a_value_that_breaks_a_csv_late_is_named_and_nothing_published(tmp_path: Path) -> None:
    lines = ["id,price", *(f"{n},1.5" for n in range(300_000)), "x,y"]
    (tmp_path / "late.csv").write_text("\n".join(lines))
    with pytest.raises(SchemaError, match=r"late\.csv"):
        MasterStore.build(tmp_path / "late.csv", tmp_path / "store", key="id")
    assert MasterStore.build(TABLE, tmp_path / "store", key="id").version == 1


@pytest.mark.parametrize(
    "second",
    [
        pa.record_batch({"id": [1]}),
        pa.record_batch({"id": ["text"], "price": [1.0]}),
        pa.record_batch({"id": [1], "price": ["dear"]}),
    ],
    ids=["column missing", "key of another type", "column of another type"],
)
def test_batches_that_do_not_fit_together(tmp_path: Path, second: pa.RecordBatch) -> None:
    first = pa.record_batch({"id": [1], "price": [1.0]})
    with pytest.raises(SchemaError, match=r"id|price"):
        MasterStore.build([first, second], tmp_path / "store", key="id")
    assert MasterStore.build([first], tmp_path / "store", key="id").rows == 1
