"""Times that Python has no value for, such as a day in the year 20000: joined like any other, told by their number."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from semistream import MasterStore, join
from semistream.changes import read_changes, snapshot_differences
from semistream.changes.values import cast_column
from semistream.commands.main import app
from semistream.errors import ArgumentError, FanOutError, SchemaError
from semistream.joins import JOINS
from semistream.rows import readable
from tests.tables import assert_same_rows

Make = Callable[[list[int | None]], pa.Array]


def times(kind: pa.DataType) -> Make:
    width = pa.int32() if kind.bit_width == 32 else pa.int64()
    return lambda values: pa.array(values, width).view(kind)


KINDS = [
    pa.date32(),
    pa.date64(),
    pa.timestamp("s"),
    pa.timestamp("us"),
    pa.timestamp("us", tz="UTC"),
    pa.timestamp("us", tz="Mars/Phobos"),
    pa.timestamp("ns"),
]


def far(kind: pa.DataType) -> int:
    return 2**31 - 1 if kind.bit_width == 32 else (10**11 * 86_400_000 if kind == pa.date64() else 2**62)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("algorithm", [name for name in JOINS if JOINS[name].name != "pcsrj"])
def test_joins(tmp_path: Path, kind: pa.DataType, algorithm: str) -> None:
    made, there = times(kind), far(kind)
    step = 86_400_000 if kind == pa.date64() else 1
    master = pa.table({"t": made([there, step]), "x": [1, 2]})
    store = MasterStore.build(master, tmp_path / "s", key="t")
    stream = pa.table({"t": made([there - step, there, 0, None])})
    found = pa.Table.from_batches(list(join(stream, store, on="t", algorithm=algorithm)))
    numbers = pa.int32() if kind.bit_width == 32 else pa.int64()
    plain = found.set_column(0, "t", found.column("t").combine_chunks().view(numbers))
    x = pa.array([None, 1, None, None], pa.int64())
    expected = {"t": pa.array([there - step, there, 0, None], numbers), "x": x}
    assert_same_rows(plain, pa.table(expected))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_messages(tmp_path: Path, kind: pa.DataType) -> None:
    made, there = times(kind), far(kind)
    several = pa.table({"t": made([there, there]), "x": [1, 2]})
    store = MasterStore.build(several, tmp_path / "s", key="t")
    with pytest.raises(FanOutError, match="with t="):
        list(join(several.select(["t"]), store, on="t", multiple="error"))
    with pytest.raises(ArgumentError, match="both upserted and deleted"):
        store.apply(upserts=several.slice(0, 1), deletes=several.select(["t"]).slice(0, 1))
    other = MasterStore.build(several.slice(0, 1), tmp_path / "o", key="t")
    with pytest.raises(SchemaError, match="several rows for the key"):
        list(snapshot_differences(several, other))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_value_that_does_not_fit_is_a_reject(tmp_path: Path, kind: pa.DataType) -> None:
    schema = pa.schema([("id", pa.int64()), ("t", pa.timestamp("ns"))])
    there = {"date32[day]": 2**31 - 1, "timestamp[s]": 4 * 10**11}.get(str(kind), 2**62)
    if kind == pa.timestamp("ns"):
        schema = schema.set(1, pa.field("t", pa.date32()))
    rows = pa.table({"_op": ["upsert"] * 3, "id": [1, 2, 3], "t": times(kind)([there, 0, None])})
    pq.write_table(rows, tmp_path / "changes.parquet")
    changes = read_changes(tmp_path / "changes.parquet", schema, ["id"], format="plain", op="_op")
    rejected = kind != pa.timestamp("ns")
    assert changes.rows.num_rows == 3 - rejected
    assert [reject.line for reject in changes.rejects] == [1] * rejected


def test_the_others_keep_their_nanoseconds() -> None:
    texts = pa.array(["x", "1969-12-31 23:59:59.999999999", "2262-01-01"])
    found, bad = cast_column(texts, pa.field("t", pa.timestamp("ns")))
    assert found.view(pa.int64()).to_pylist() == [None, -1, 9214646400 * 10**9]
    assert list(bad) == [0]


def test_on_the_command_line(tmp_path: Path) -> None:
    days = times(pa.date32())([2**31 - 1])
    MasterStore.build(pa.table({"id": [1], "day": days}), tmp_path / "s", key="id")
    for shape in ("table", "json"):
        done = CliRunner().invoke(app, ["get", str(tmp_path / "s"), "1", "--format", shape])
        assert done.exit_code == 0, done.output
        assert "2147483647" in done.output


def test_readable() -> None:
    assert readable(pa.array([1, None])) == [1, None]
    nested = pa.StructArray.from_arrays([times(pa.date32())([2**31 - 1, 0])], ["day"])
    first, second = readable(nested)
    assert "date32" in first
    assert str(second["day"]) == "1970-01-01"
    assert readable(pa.chunked_array([times(pa.date32())([2**31 - 1])])) == ["2147483647 (date32[day])"]
