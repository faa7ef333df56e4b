"""The retail example: unique and reproducible rows, the skew asked for, files that are whole when they appear."""

import doctest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from semistream.errors import ArgumentError
from semistream_lab.workloads import retail
from semistream_lab.workloads.retail import RetailWorkload, write_files, write_master
from tests.lab.workloads.digests import digest
from tests.tables import assert_same_rows

SHOP = RetailWorkload(products=5_000, unknown=0.05, seed=3)


def table(batches: list[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(batches)


def test_the_examples_run() -> None:
    assert doctest.testmod(retail).failed == 0


def test_rows_stay_what_they_are() -> None:
    """Measurements that were stored were made with these rows."""
    assert digest(SHOP.sales(77, 3000)) == "a68f1349e0f6bd67"
    assert digest(next(SHOP.master(3000))) == "4c4781cf142a791e"


def test_every_product_is_there_once() -> None:
    master = table(list(SHOP.master(batch_rows=999)))
    assert master.schema.equals(retail.PRODUCT_SCHEMA)
    assert master.num_rows == 5_000
    for key in ("product_id", "product_key"):
        assert pc.count_distinct(master[key]).as_py() == 5_000
    assert master.column("product_id").to_pylist() != sorted(master.column("product_id").to_pylist())
    for column in master.columns:
        assert column.null_count == 0
        column.validate(full=True)
    assert 0 < pc.min(master["price"]).as_py() < 1 < 150 < pc.max(master["price"]).as_py() < 201


@pytest.mark.parametrize("rows", [1, 7, 1_000, 5_000])
def test_the_batch_size_changes_nothing(rows: int) -> None:
    starts = range(0, 2_000, rows)
    sales = table([SHOP.sales(start, min(rows, 2_000 - start)) for start in starts])
    assert sales.combine_chunks().equals(table([SHOP.sales(0, 2_000)]))
    assert_same_rows(table(list(SHOP.master(rows * 10))), table(list(SHOP.master())))


def test_the_seed_decides() -> None:
    assert SHOP.sales(0, 100).equals(RetailWorkload(products=5_000, unknown=0.05, seed=3).sales(0, 100))
    other = RetailWorkload(products=5_000, unknown=0.05, seed=4).sales(0, 100)
    assert not SHOP.sales(0, 100)["product"].equals(other["product"])
    assert not SHOP.sales(0, 100)["store"].equals(other["store"])


def test_a_sale_is_unique_and_later_than_the_one_before() -> None:
    sales = SHOP.sales(500, 1_000)
    assert sales.schema.equals(retail.SALES_SCHEMA)
    assert sales["sale_id"].to_pylist() == list(range(500, 1_500))
    assert (np.diff(sales["sold_at"].cast("int64").to_numpy()) > 0).all()
    assert set(sales["quantity"].to_pylist()) == {1, 2, 3, 4, 5}
    assert 1 <= pc.min(sales["store"]).as_py() <= pc.max(sales["store"]).as_py() <= retail.STORES


def test_the_share_of_unknown_products() -> None:
    known = table(list(SHOP.master()))["product_id"]
    for share in (0.0, 0.05, 1.0):
        sales = RetailWorkload(products=5_000, unknown=share, seed=3).sales(0, 40_000)
        missing = 1 - pc.mean(pc.is_in(sales["product"], known).cast("float64")).as_py()
        assert missing == pytest.approx(share, abs=4 * (share * (1 - share) / 40_000) ** 0.5)


def test_sales_follow_zipf() -> None:
    sales = RetailWorkload(products=5_000, unknown=0).sales(0, 100_000)
    counts = np.sort(pc.value_counts(sales["product"]).field("counts").to_numpy())[::-1]
    harmonic = (1 / np.arange(1, 5_001)).sum()
    for rank in (1, 2, 5, 20):
        assert counts[rank - 1] == pytest.approx(100_000 / harmonic / rank, rel=0.1)


def test_files_are_whole_when_they_appear(tmp_path: Path) -> None:
    batches = [SHOP.sales(start, 100) for start in (0, 100, 200)]
    writing = write_files(batches, tmp_path / "in")
    for number, path in enumerate(writing):
        assert sorted(file.name for file in path.parent.iterdir()) == [
            f"sales-{n:06}.parquet" for n in range(number + 1)
        ]
        assert pq.read_table(path).equals(table([batches[number]]))


def test_a_file_that_is_being_written_is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: pa.Table, draft: Path) -> None:
        draft.write_bytes(b"PAR1")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(OSError, match="No space"):
        next(write_files([SHOP.sales(0, 10)], tmp_path))
    assert all(file.name.startswith(".") for file in tmp_path.iterdir())


def test_the_master_as_a_file(tmp_path: Path) -> None:
    assert_same_rows(pq.read_table(write_master(tmp_path / "products.parquet", SHOP)), table(list(SHOP.master())))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"products": 0}, "products=0"),
        ({"products": 10**8}, "50,000,000"),
        ({"skew": -1}, "skew=-1"),
        ({"unknown": 1.5}, "unknown=1.5"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        RetailWorkload(**arguments)


def test_sales_before_the_first() -> None:
    with pytest.raises(ArgumentError, match="start=-1"):
        SHOP.sales(-1, 5)
