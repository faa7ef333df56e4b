"""Workloads as Spark sources: the rows of the workload, replayed exactly, at the rate asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from semistream import MasterStore
from semistream.errors import ArgumentError
from semistream.spark import enrich
from semistream_lab.spark.sources import register_sources
from semistream_lab.workloads import WORKLOADS, make_workload
from tests.spark.streams import fails, gather, run, to_memory, wait_until
from tests.tables import assert_same_rows, model_join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SMALL: dict[str, dict[str, Any]] = {
    "zipf": {"rows": 500, "absent": 0.1, "distinct": 100, "masterSkew": 0.5},
    "retail": {"rows": 500},
    "tpch": {"scaleFactor": 0.001},
    "weather": {"rows": 500, "stations": 50, "edition": "C"},
}


@pytest.fixture(scope="module")
def sources(spark: SparkSession) -> SparkSession:
    assert register_sources(spark) == [f"semistream-{name}" for name in WORKLOADS]
    return spark


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tpch")


def options(name: str, place: Path) -> dict[str, Any]:
    return SMALL[name] | ({"directory": str(place)} if name == "tpch" else {})


def stream(spark: SparkSession, name: str = "zipf", **given: Any) -> DataFrame:
    return spark.readStream.format(f"semistream-{name}").options(**given).load()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name == "zipf" else [pytest.mark.long]) for name in sorted(WORKLOADS)],
)
def test_tables_are_the_workload(sources: SparkSession, name: str, place: Path) -> None:
    load = make_workload(name, **options(name, place))
    reader = sources.read.format(f"semistream-{name}").options(**options(name, place), partitions=3)
    master = reader.option("table", "master").load()
    assert master.rdd.getNumPartitions() == 3
    assert_same_rows(_without_zones(master.toArrow()), _without_zones(pa.Table.from_batches(load.master())))
    rows = reader.option("table", "stream").option("total", 300).load()
    assert_same_rows(_without_zones(rows.toArrow()), _without_zones(pa.Table.from_batches([load.stream(0, 300)])))


@pytest.mark.parametrize(
    "name", ["zipf", *(pytest.param(name, marks=pytest.mark.long) for name in ("retail", "tpch", "weather"))]
)
def test_streams_are_the_workload(sources: SparkSession, name: str, place: Path, tmp_path: Path) -> None:
    load = make_workload(name, **options(name, place))
    found = gather(stream(sources, name, **options(name, place), total=250, rowsPerBatch=100), tmp_path / "checkpoint")
    assert [batch.num_rows for batch in found.values()] == [100, 100, 50]
    for number, batch in found.items():
        start = number * 100
        made = pa.Table.from_batches([load.stream(start, min(100, 250 - start))])
        assert_same_rows(_without_zones(batch), _without_zones(made))


def test_a_restart_goes_on_with_the_next_row_of_the_same_options(sources: SparkSession, tmp_path: Path) -> None:
    given: dict[str, Any] = {"rows": 1000, "rowsPerBatch": 70}
    first = gather(stream(sources, **given, total=100), tmp_path / "checkpoint")
    again = gather(stream(sources, **given, total=230, partitions=5), tmp_path / "checkpoint")
    assert (list(first), list(again)) == ([0, 1], [2, 3])
    seen = pa.concat_tables([*first.values(), *again.values()])
    assert_same_rows(seen, pa.Table.from_batches([make_workload("zipf", rows=1000).stream(0, 230)]))
    with fails("checkpoint was written with other options of semistream-zipf.*give the options of the first run"):
        gather(stream(sources, **given, skew=0.5, total=300), tmp_path / "checkpoint")


def test_a_batch_that_failed_comes_again_with_the_same_rows(sources: SparkSession, tmp_path: Path) -> None:
    seen: list[tuple[int, list[int]]] = []
    given: dict[str, Any] = {"rows": 1000, "rowsPerBatch": 50, "total": 150}

    def attempt(fail_at: int | None, partitions: int) -> None:
        def each(batch: DataFrame, number: int) -> None:
            seen.append((number, sorted(batch.toArrow().column("key").to_pylist())))
            if number == fail_at:
                raise RuntimeError("this batch is lost")

        run(stream(sources, **given, partitions=partitions), tmp_path / "checkpoint", each)

    with fails("this batch is lost"):
        attempt(1, 2)
    attempt(None, 3)
    assert [number for number, _ in seen] == [0, 1, 1, 2]
    assert seen[1] == seen[2]
    offsets = (tmp_path / "checkpoint" / "offsets" / "1").read_text().splitlines()[-1]
    assert json.loads(offsets)["row"] == 100


def test_rows_come_at_their_rate(sources: SparkSession) -> None:
    """Against a clock of the test: what Spark asks for, and when."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

    from semistream_lab.errors import OffsetError
    from semistream_lab.spark.generated import Generated
    from semistream_lab.spark.generated_sources import ZipfSource
    from semistream_lab.spark.generated_stream import StreamReader

    def reader(**given: Any) -> StreamReader:
        made = {key: str(value) for key, value in given.items()}
        return StreamReader(Generated.parse("zipf", made), ZipfSource(made).schema(), lambda: now[0])

    now = [1000.0]
    steady = reader(rows=10, rowsPerSecond=100, rowsPerBatch=150, total=420)
    assert steady.getDefaultReadLimit() == ReadMaxRows(150)
    zero = steady.initialOffset()
    assert steady.latestOffset(zero, ReadAllAvailable()) == zero
    now[0] += 2.0
    assert steady.latestOffset(zero, ReadAllAvailable())["row"] == 200
    first = steady.latestOffset(zero, ReadMaxRows(150))
    assert first["row"] == 150
    assert steady.latestOffset(first, ReadMaxRows(150))["row"] == 200
    assert [piece.value for piece in steady.partitions(zero, first)] == [(0, 75), (75, 75)]
    assert steady.partitions(first, first) == []
    now[0] += 100.0
    assert steady.latestOffset(first, ReadAllAvailable())["row"] == 420
    restarted = reader(rows=10, rowsPerSecond=100, total=420)
    assert restarted.latestOffset(first, ReadAllAvailable()) == first  # the clock starts anew, the rows go on
    now[0] += 0.5
    assert restarted.latestOffset(first, ReadAllAvailable())["row"] == 200
    bursts = reader(rows=10, rowsPerSecond=100, onSeconds=1, offSeconds=3)
    bursts.latestOffset(zero, ReadAllAvailable())
    now[0] += 1.0
    assert bursts.latestOffset(zero, ReadAllAvailable())["row"] == 400
    now[0] += 2.9
    assert bursts.latestOffset(zero, ReadAllAvailable())["row"] == 400
    endless = reader(rows=10, rowsPerBatch=7)
    assert endless.latestOffset(zero, ReadAllAvailable())["row"] == 7
    with pytest.raises(ArgumentError, match="give the option total"):
        endless.prepareForTriggerAvailableNow()
    with pytest.raises(OffsetError, match="zipf stream"):
        reader(rows=11).latestOffset(zero, ReadAllAvailable())


@pytest.mark.long
def test_an_endless_stream_with_a_rate(sources: SparkSession, tmp_path: Path) -> None:
    """A real query by the real clock: rows come, and each once."""
    df = stream(sources, "retail", rows=100, rowsPerSecond=2000, poisson=True)
    writer = df.writeStream.format("memory").queryName("arriving").option("checkpointLocation", str(tmp_path))
    query = writer.trigger(processingTime="200 milliseconds").start()
    try:
        wait_until(lambda: sources.table("arriving").count() > 500)
    finally:
        query.stop()
    numbers = sorted(row.sale_id for row in sources.table("arriving").select("sale_id").collect())
    assert numbers == list(range(len(numbers)))


def test_a_stream_enriched(sources: SparkSession, tmp_path: Path) -> None:
    load = make_workload("retail", rows=200, absent=0.1)
    store = MasterStore.build(load.master(), tmp_path / "store", key=load.key)
    rows = stream(sources, "retail", rows=200, absent=0.1, total=150)
    joined = enrich(rows, store, on=load.on, columns=["product_key"])
    made = model_join(
        pa.Table.from_batches([load.stream(0, 150)]),
        pa.Table.from_batches(load.master()),
        load.on,
        "left",
        ["product_key"],
    )
    found = to_memory(joined, "enriched", tmp_path / "checkpoint")
    assert_same_rows(_without_zones(found), _without_zones(made))


@pytest.mark.parametrize(
    "given, message",
    [
        ({"row": 5}, "semistream-zipf has no option 'row'; its options are rows, skew.*rows_per_second"),
        ({"rows": "x"}, "rows='x' must be a whole number"),
        ({"rows": 0}, "rows=0 must be at least 1"),
        ({"partitions": 0}, "partitions=0 must be at least 1"),
        ({"rowsPerSecond": 0}, "rows_per_second=0.0 must be above 0"),
        ({"poisson": "true"}, "need the option rowsPerSecond"),
        ({"table": "both"}, "choose one of 'stream', 'master'"),
        ({"table": "master", "rows": 5, "total": 6}, "the master has 5 rows"),
    ],
)
def test_bad_options(given: dict[str, Any], message: str) -> None:
    from semistream_lab.spark.generated import Generated

    with pytest.raises(ArgumentError, match=message):
        Generated.parse("zipf", {name: str(value) for name, value in given.items()})


def test_mistakes_reach_the_user(sources: SparkSession) -> None:
    with fails("semistream-zipf has no option 'row'; its options are rows"):
        sources.read.format("semistream-zipf").option("row", 5).load()
    with fails("semistream-zipf has no end; give the option total"):
        sources.read.format("semistream-zipf").load().count()
    assert sources.read.format("semistream-zipf").option("total", 0).load().count() == 0


def _without_zones(table: pa.Table) -> pa.Table:
    """Times as numbers: Spark gives instants in the zone of the session."""
    columns = [
        column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        if pa.types.is_timestamp(column.type)
        else column
        for column in table.columns
    ]
    return pa.table(columns, names=table.column_names)
