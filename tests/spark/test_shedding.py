"""Shedding under real Spark queries: the same rows on replay, durable before the commit, reconciled to the model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from semistream import MasterStore, Shed
from semistream.durable import create_once, read_once
from semistream.errors import ArgumentError, CorruptStoreError, SchemaError, SheddingError
from semistream.lookup.spec import LookupSpec
from semistream.shedding.log import PartWriter, ShedPart, batches_in, read_part
from semistream.spark import Metrics, enrich, explain
from semistream.spark.shedding import pinned_share
from semistream.warehouse import DeltaSink, query_of, reconcile
from tests.spark.streams import add_file, build, fails, frame, gather, keys, master_table, run, stream, wait_until
from tests.tables import assert_same_rows, model_join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[2]
ROWS = 1000


def sales(number: int, rows: int = ROWS) -> pa.Table:
    """One file of the stream: keys of `master_table`, some of which it lacks."""
    start = number * rows
    return pa.table({"id": [(n * 7) % 120 for n in range(start, start + rows)], "n": range(start, start + rows)})


def pin(root: Path, query: str, batch: int, share: float) -> None:
    """What the first task would do, with a share that the test wants."""
    (root / f"batch={batch}").mkdir(parents=True, exist_ok=True)
    create_once(
        root / f"batch={batch}" / "_keep.json", {"share": share, "at": float(batch), "query": query, "batch": batch}
    )


def begun(spark: SparkSession, place: Path, store: MasterStore, shares: list[float], **options: Any) -> DataFrame:
    """A query whose batch 0 is done, kept whole; batches 1, 2, … are there to come, with these shares."""
    shed = Shed(options.pop("strategy", "keep_w"), max_rows_per_second=1e9, to=place / "shed", seed=5)
    df = stream(spark, place / "in", [sales(0)])
    result = enrich(df, store, on="id", shed=shed, **options)
    gather(result, place / "checkpoint")
    for number, share in enumerate(shares, 1):
        pin(place / "shed", query_of(place / "checkpoint"), number, share)
        add_file(place / "in", sales(number))
    return result


def shed_numbers(root: Path, batch: int) -> list[int]:
    return sorted(n for path in batches_in(root).get(batch, []) for n in pq.read_table(path).column("n").to_pylist())


class TestBatches:
    def test_kept_and_shed_rows_are_the_batch(self, spark: SparkSession, tmp_path: Path) -> None:
        store = build(tmp_path / "s")
        metrics = Metrics(spark)
        result = begun(spark, tmp_path, store, [0.25, 1.0, 0.5], metrics=metrics)
        found = gather(result, tmp_path / "checkpoint")
        wait_until(lambda: metrics.batches == 4)
        metrics.close()
        assert metrics.problem is None
        assert {n: table.num_rows for n, table in found.items()} == {1: 250, 2: ROWS, 3: 500}
        assert (metrics.total.rows_in, metrics.total.shed) == (4 * ROWS, 750 + 500)
        assert metrics.total.rows_in == metrics.total.matched + metrics.total.unmatched + metrics.total.shed
        for number, table in found.items():
            shed = shed_numbers(tmp_path / "shed", number)
            whole = sales(number)
            assert sorted(shed + table.column("n").to_pylist()) == whole.column("n").to_pylist()
            kept = whole.filter(pa.compute.invert(pa.compute.is_in(whole.column("n"), pa.array(shed, pa.int64()))))
            assert_same_rows(table, model_join(kept, master_table(), "id"))
        [path] = batches_in(tmp_path / "shed")[1]
        about = read_part(path)
        assert (about.source, about.rows, about.rows_in, about.master_version) == ("enrich", 750, ROWS, 1)
        assert about.query == query_of(tmp_path / "checkpoint")
        assert path.stat().st_mode & 0o777 == 0o600

    def test_weights(self, spark: SparkSession, tmp_path: Path) -> None:
        store = build(tmp_path / "s")
        result = begun(spark, tmp_path, store, [0.2, 0.2], strategy="cluster_sample")
        assert [(f.name, f.dataType.simpleString()) for f in result.schema.fields] == [
            ("id", "bigint"),
            ("n", "bigint"),
            ("_weight", "double"),
            ("price", "double"),
            ("name", "string"),
        ]
        found = gather(result, tmp_path / "checkpoint")
        for table in found.values():
            assert table.num_rows == 200
            assert pa.compute.sum(table.column("_weight")).as_py() == pytest.approx(ROWS)
        # Chance is another in every batch.
        one, two = ({n % ROWS for n in found[number].column("n").to_pylist()} for number in (1, 2))
        assert one != two

    def test_topw_goes_by_the_rows_of_the_store(self, spark: SparkSession, tmp_path: Path) -> None:
        rows = [key for key in range(100) for _ in range(1 + key % 4)]
        store = build(tmp_path / "s", pa.table({"id": rows, "price": [float(n) for n in range(len(rows))]}))
        result = begun(spark, tmp_path, store, [0.4], strategy="topw", how="inner", memory="4MB")
        table = gather(result, tmp_path / "checkpoint")[1]
        frequency = Counter(rows)
        by_count = sorted((frequency[key] for key in sales(1).column("id").to_pylist()), reverse=True)
        assert table.num_rows == sum(by_count[:400])

    @pytest.mark.long
    def test_in_foreach_batch(self, spark: SparkSession, tmp_path: Path) -> None:
        store = build(tmp_path / "s")
        df = stream(spark, tmp_path / "in", [sales(0), sales(1)])
        shed = Shed("keep_w", max_rows_per_second=1, to=tmp_path / "shed")
        found: dict[int, list[int]] = {}

        def each(batch: DataFrame, number: int) -> None:
            result = enrich(batch, store, on="id", shed=shed)
            twice = [sorted(result.toArrow().column("n").to_pylist()) for _ in range(2)]
            assert twice[0] == twice[1]
            found[number] = twice[0]

        run(df, tmp_path / "checkpoint", each)
        assert len(found[0]) == ROWS
        assert len(found[1]) < ROWS
        assert sorted(found[1] + shed_numbers(tmp_path / "shed", 1)) == sales(1).column("n").to_pylist()


class TestReplay:
    @pytest.mark.parametrize("strategy", ["sample_w", "topw"])
    def test_the_same_rows_are_shed(self, spark: SparkSession, tmp_path: Path, strategy: str) -> None:
        store = build(tmp_path / "s")
        result = begun(spark, tmp_path, store, [0.3], strategy=strategy)
        kept: list[list[int]] = []

        def each(batch: DataFrame, number: int) -> None:
            kept.append(sorted(batch.toArrow().column("n").to_pylist()))
            if len(kept) == 1:
                raise OSError("the warehouse is down")

        with fails("the warehouse is down"):
            run(result, tmp_path / "checkpoint", each)
        shed = shed_numbers(tmp_path / "shed", 1)
        assert len(shed) == 700  # durable although the batch has not committed
        # Other Arrow batches, and an attempt that comes later: still the same.
        before = str(spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch"))
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "130")
        try:
            run(result, tmp_path / "checkpoint", each)
        finally:
            spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", before)
        assert kept[0] == kept[1]
        assert shed_numbers(tmp_path / "shed", 1) == shed
        assert len(batches_in(tmp_path / "shed")[1]) == 1

    def test_other_partitions_than_before_are_refused(self, spark: SparkSession, tmp_path: Path) -> None:
        store = build(tmp_path / "s")
        begun(spark, tmp_path, store, [0.3])
        add_file(tmp_path / "in", sales(2))
        schema = spark.read.parquet(str(tmp_path / "in")).schema
        both = spark.readStream.schema(schema).option("maxFilesPerTrigger", 2).parquet(str(tmp_path / "in"))
        shed = Shed("sample_w", max_rows_per_second=1, to=tmp_path / "shed")
        result = enrich(both, store, on="id", shed=shed)
        seen: list[int] = []

        def down(batch: DataFrame, number: int) -> None:
            seen.append(batch.toArrow().num_rows)
            raise OSError("the warehouse is down")

        with fails("the warehouse is down"):
            run(result, tmp_path / "checkpoint", down)
        assert seen == [600]
        assert len(batches_in(tmp_path / "shed")[1]) == 2
        assert shed_numbers(tmp_path / "shed", 1) != []
        name = "spark.sql.files.minPartitionNum"  # files now share a partition, as with fewer cores
        spark.conf.set(name, "1")
        try:
            with fails("SheddingError: .*other partitions"):
                run(result, tmp_path / "checkpoint", down)
        finally:
            spark.conf.unset(name)
        with fails("the warehouse is down"):  # as before
            run(result, tmp_path / "checkpoint", down)
        assert seen == [600, 600]


class TestReconcile:
    def test_killed_in_between_it_becomes_the_whole_stream(self, spark: SparkSession, tmp_path: Path) -> None:
        store = build(tmp_path / "s")
        batches = 6
        result = begun_with_sink(spark, tmp_path, store, [0.3] * (batches - 1))
        run(result, tmp_path / "checkpoint", DeltaSink(tmp_path / "table", "sales"))
        table = tmp_path / "table"
        kept = DeltaTable(table).to_pyarrow_table().num_rows
        assert kept == ROWS + (batches - 1) * 300
        # The master moves on; each batch is joined with what it read.
        store.upsert(master_table(3, 0.5))
        arguments = ["reconcile", tmp_path / "shed", "--master", store.path, "--to", table]
        version = DeltaTable(table).version()
        with (tmp_path / "said").open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-c", "from semistream.commands.main import main; main()", *map(str, arguments)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
                stdout=said,
                stderr=said,
            )
            try:
                wait_until(lambda: DeltaTable(table).version() > version or process.poll() is not None)
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()
        assert process.returncode in (-signal.SIGKILL, 0), (tmp_path / "said").read_text()
        assert DeltaTable(table).version() > version
        first = reconcile(tmp_path / "shed", table)
        assert first.waiting == (batches - 1,)  # the newest batch might still run
        last = reconcile(tmp_path / "shed", table, checkpoint=tmp_path / "checkpoint")
        assert (last.batches, last.rows, last.waiting) == (1, 700, ())
        whole = pa.concat_tables([sales(number) for number in range(batches)])
        assert_same_rows(DeltaTable(table).to_pyarrow_table(), model_join(whole, master_table(), "id"))

    @pytest.mark.long
    def test_while_the_stream_runs_on(self, spark: SparkSession, tmp_path: Path) -> None:
        store = build(tmp_path / "s")
        result = begun_with_sink(spark, tmp_path, store, [0.5, 0.5, 0.5])
        sink = DeltaSink(tmp_path / "table", "sales")

        def each(batch: DataFrame, number: int) -> None:
            sink(batch, number)
            reconcile(tmp_path / "shed", tmp_path / "table")

        run(result, tmp_path / "checkpoint", each)
        reconcile(tmp_path / "shed", tmp_path / "table", checkpoint=tmp_path / "checkpoint")
        whole = pa.concat_tables([sales(number) for number in range(4)])
        assert_same_rows(DeltaTable(tmp_path / "table").to_pyarrow_table(), model_join(whole, master_table(), "id"))


def begun_with_sink(spark: SparkSession, place: Path, store: MasterStore, shares: list[float]) -> DataFrame:
    """As `begun`, with batch 0 in the table too."""
    shed = Shed("keep_w", max_rows_per_second=1e9, to=place / "shed")
    result = enrich(stream(spark, place / "in", [sales(0)]), store, on="id", shed=shed)
    run(result, place / "checkpoint", DeltaSink(place / "table", "sales"))
    for number, share in enumerate(shares, 1):
        pin(place / "shed", query_of(place / "checkpoint"), number, share)
        add_file(place / "in", sales(number))
    return result


class TestShare:
    """What share of a batch is kept, by times that the test gives."""

    def batch(
        self, root: Path, number: int, rows: int, now: float, rate: float | None = 100.0, shed: int = 0, took: float = 1
    ) -> float:
        share = pinned_share(root, "q", number, rate, now)
        about = ShedPart("q", number, 0, "enrich", "keep_w", "s", 1, LookupSpec(on="id", columns=[]))
        writer = PartWriter(root, about, pa.schema({"id": pa.int64()}))
        writer.add(pa.record_batch({"id": pa.array(range(shed), pa.int64())}), rows)
        writer.publish()
        os.utime(writer.path, (now + took, now + took))
        return share

    def test_the_measured_rate(self, tmp_path: Path) -> None:
        def batch(number: int, rows: int, now: float, took: float, shed: int = 0) -> float:
            return self.batch(tmp_path, number, rows, now, None, shed, took)

        assert batch(0, 1000, now=10.0, took=10.0) == 1.0  # so 100 rows/s are managed
        assert batch(1, 2000, now=20.0, took=10.0, shed=1000) == 1.0  # 1000 rows came in 10 s
        assert batch(2, 1500, now=30.0, took=5.0, shed=750) == 100 * 10 / 2000  # 2000 came; 100 a second are managed
        assert batch(3, 100, now=40.0, took=-1.0) == 1.0  # 1500 came in 10 s, 150 a second were managed
        assert batch(4, 100, now=50.0, took=1.0) == 1.0  # a clock that was set back: as before

    def test_follows_the_rate_of_the_batch_before(self, tmp_path: Path) -> None:
        assert self.batch(tmp_path, 0, 4000, now=10.0) == 1.0  # nothing is known yet
        assert self.batch(tmp_path, 1, 1000, now=20.0) == 100 * 10 / 4000
        assert self.batch(tmp_path, 2, 500, now=25.0) == 100 * 10 / 1000  # 1000 rows came in the 10 s before it
        assert self.batch(tmp_path, 3, 100, now=30.0) == 1.0  # 500 rows in 5 s is what the rate allows
        assert self.batch(tmp_path, 5, 100, now=31.0) == 1.0

    def test_is_decided_once(self, tmp_path: Path) -> None:
        self.batch(tmp_path, 0, 4000, now=10.0)
        first = pinned_share(tmp_path, "q", 1, 100.0, 20.0)
        assert [pinned_share(tmp_path, "q", 1, 100.0, 99.0), pinned_share(tmp_path, "q", 1, 1e9, 20.0)] == [first] * 2

    def test_an_empty_batch_or_a_clock_set_back(self, tmp_path: Path) -> None:
        self.batch(tmp_path, 0, 4000, now=10.0)
        share = self.batch(tmp_path, 1, 0, now=20.0)
        assert self.batch(tmp_path, 2, 1000, now=15.0) == share
        assert self.batch(tmp_path, 3, 1000, now=16.0) == share

    def test_damage(self, tmp_path: Path) -> None:
        self.batch(tmp_path, 0, 4000, now=10.0)
        path = tmp_path / "batch=0" / "_keep.json"
        path.write_text(path.read_text().replace("1.0", "0.1"))
        with pytest.raises(CorruptStoreError, match=str(path)):
            pinned_share(tmp_path, "q", 0, 100.0)

    def test_another_query(self, tmp_path: Path) -> None:
        self.batch(tmp_path, 0, 4000, now=10.0)
        with pytest.raises(SheddingError, match="holds batch 0 of query q, this is query other"):
            pinned_share(tmp_path, "other", 0, 100.0)


class TestArguments:
    @pytest.fixture
    def shed(self, tmp_path: Path) -> Shed:
        return Shed("sample_w", max_rows_per_second=100, to=tmp_path / "shed")

    def test_named_before_the_stream_runs(self, spark: SparkSession, tmp_path: Path, shed: Shed) -> None:
        store = build(tmp_path / "s")
        df = stream(spark, tmp_path / "in", [sales(0, 10)])
        cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
            (ArgumentError, "transport='keys' does not go with shed=.*'rows' or 'auto'", {"transport": "keys"}),
            (ArgumentError, "algorithm='pcsrj' shuffles", {"algorithm": "pcsrj"}),
            (ArgumentError, "shed='topw' must be a semistream.Shed", {"shed": "topw"}),
            (ArgumentError, "'topw'.*how='anti'", {"shed": Shed("topw", 5, tmp_path), "how": "anti"}),
            (
                SchemaError,
                "has a column 'N' already",
                {"shed": Shed("sample_w", 5, tmp_path, weight_column="N")},
            ),
        ]
        for kind, words, options in cases:
            with pytest.raises(kind, match=words):
                enrich(df, store, on="id", **({"shed": shed} | options))

    def test_batch_jobs(self, spark: SparkSession, tmp_path: Path, shed: Shed) -> None:
        store = build(tmp_path / "s")
        with pytest.raises(ArgumentError, match="a batch job is never late"):
            enrich(frame(spark, keys(1, 2)), store, on="id", shed=shed)

    def test_explain(self, spark: SparkSession, tmp_path: Path, shed: Shed) -> None:
        store = build(tmp_path / "s")
        df = stream(spark, tmp_path / "in", [sales(0, 10)])
        said = explain(df, store, on="id", shed=shed)
        assert "transport   rows: rows are shed in Python" in said
        assert "shedding    sample_w" in said
        assert "above 100 rows/s" in said
        assert "above the rate of the batch before" in explain(df, store, on="id", shed=Shed("topw", to=tmp_path))


def test_more_rows_than_are_managed(spark: SparkSession, tmp_path: Path) -> None:
    """Without a rate, a burst of files is shed by what the batch before managed, and nothing is lost."""
    store = build(tmp_path / "s")
    df = stream(spark, tmp_path / "in", [sales(0)])
    result = enrich(df, store, on="id", shed=Shed("sample_w", to=tmp_path / "shed"))
    found = gather(result, tmp_path / "checkpoint")
    query = query_of(tmp_path / "checkpoint")
    # Batch 1 came in a second after batch 0 began, and was 20 times what batch 0 managed in that time.
    [part] = batches_in(tmp_path / "shed")[0]
    begun = read_once(tmp_path / "shed" / "batch=0" / "_keep.json", ("at",), "")
    assert begun is not None
    os.utime(part, (begun["at"] + 20, begun["at"] + 20))
    for number in (1, 2):
        add_file(tmp_path / "in", sales(number))
    assert pinned_share(tmp_path / "shed", query, 1, None, begun["at"] + 1) == pytest.approx(1 / 20)
    found |= gather(result, tmp_path / "checkpoint")
    assert found[1].num_rows == ROWS // 20
    kept = [n for table in found.values() for n in table.column("n").to_pylist()]
    shed = [n for number in range(3) for n in shed_numbers(tmp_path / "shed", number)]
    assert sorted(kept + shed) == list(range(3 * ROWS))


def test_an_empty_partition_says_so(spark: SparkSession, tmp_path: Path) -> None:
    store = build(tmp_path / "s")
    df = stream(spark, tmp_path / "in", [sales(0, 10)])
    shed = Shed("sample_w", max_rows_per_second=1, to=tmp_path / "shed")
    gather(enrich(df.where("n < 0"), store, on="id", shed=shed), tmp_path / "checkpoint")
    [path] = batches_in(tmp_path / "shed")[0]
    assert (read_part(path).rows_in, read_part(path).rows) == (0, 0)
