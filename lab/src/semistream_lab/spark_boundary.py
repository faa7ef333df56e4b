"""What crossing from Spark to Python costs by itself: the same rows through operators that do next to nothing.

    source    the rows read from Parquet and dropped
    jvm       two columns computed from the key in the JVM: the least that an operator of Spark's own could cost
    map       all columns to Python and back by `mapInArrow`, unchanged
    map_two   the same, with two columns more
    key       only the key to Python and back, by an Arrow function above a filter, as `enrich` asks it
    struct    the same; a struct of two columns and a truth value comes back, and its fields are taken out

Processor time is that of the JVM's task threads and of Python's workers, as the kernel counts it, so that it means
something on a busy machine too; compilers, planning and garbage collection are left out.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from semistream_lab.arms_spark import session
from semistream_lab.spark_joins import unchanged
from semistream_lab.workloads.zipf import ZipfWorkload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WARM, _TIMED = 2, 5
_TICKS = os.sysconf("SC_CLK_TCK")


def measure(rows: int, scratch: Path) -> None:
    """Print seconds and processor seconds per million rows, medians of runs in turns."""
    arms = {"source": _source, "jvm": _jvm, "map": _map, "map_two": _map_two, "key": _key, "struct": _struct}
    spark = session(scratch)
    print(f"{rows:,} rows in two tasks, seconds per million rows: {'elapsed':>29} {'JVM tasks':>9} {'Python':>9}")
    for width in ("narrow", "wide"):
        place = scratch / width
        place.mkdir()
        for part in range(2):
            batch = ZipfWorkload(1_000_000).stream(part * rows // 2, rows // 2, wide=width == "wide")
            pq.write_table(pa.Table.from_batches([batch]), place / f"{part}.parquet")
        frame = spark.read.parquet(str(place))
        found: dict[str, list[tuple[float, ...]]] = {name: [] for name in arms}
        for _ in range(_WARM + _TIMED):
            for name, arm in arms.items():
                before, start = _processor_seconds(), time.perf_counter()
                arm(frame).write.format("noop").mode("overwrite").save()
                seconds, after = time.perf_counter() - start, _processor_seconds()
                found[name].append((seconds, *(b - a for a, b in zip(before, after, strict=True))))
        for name, runs in found.items():
            medians = [statistics.median(one) * 1e6 / rows for one in zip(*runs[_WARM:], strict=True)]
            print(f"{width:>50} {name:<9} " + " ".join(f"{one:9.3f}" for one in medians), flush=True)
    spark.stop()


def _source(frame: DataFrame) -> DataFrame:
    return frame


def _jvm(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("*", "xxhash64(key) AS a", "key * 0.5D AS b")


def _map(frame: DataFrame) -> DataFrame:
    return frame.mapInArrow(unchanged, frame.schema)


def _map_two(frame: DataFrame) -> DataFrame:
    from pyspark.sql.types import LongType, StructField, StructType

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            key = batch.column("key")
            yield pa.RecordBatch.from_arrays([*batch.columns, key, key], [*batch.schema.names, "a", "b"])

    return frame.mapInArrow(
        run, StructType([*frame.schema, StructField("a", LongType()), StructField("b", LongType())])
    )


def _key(frame: DataFrame) -> DataFrame:
    return _asked(frame, lambda key: key, "long").withColumnRenamed("found", "a")


def _struct(frame: DataFrame) -> DataFrame:
    def answer(key: pa.Array) -> pa.Array:
        return pa.StructArray.from_arrays([key, key, key.is_valid()], ["c0", "c1", "c2"])

    found = _asked(frame, answer, "c0 long, c1 long, c2 boolean")
    return found.selectExpr(*frame.columns, "found.c0 AS a", "found.c1 AS b")


def _asked(frame: DataFrame, answer: Callable[[pa.Array], pa.Array], kind: str) -> DataFrame:
    from pyspark.sql.pandas.functions import arrow_udf

    from semistream.spark.frames import force_rows

    def run(keys: Iterator[pa.Array]) -> Iterator[pa.Array]:
        yield from map(answer, keys)

    run.__annotations__ = {"keys": Iterator[pa.Array], "return": Iterator[pa.Array]}
    function = arrow_udf(run, kind).asNondeterministic()  # type: ignore[call-overload] # its stubs know no structs
    return force_rows(frame, "key").withColumn("found", function("key"))


def _processor_seconds() -> tuple[float, float]:
    """Of the JVM's task threads and of Python's workers: of all that descends from this process."""
    java, python = 0.0, 0.0
    family = {os.getpid()}
    for directory in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            name, parent, seconds = _stat(directory)
            if parent not in family:
                continue
            family.add(int(directory.name))
            if name == "java":
                threads = map(_stat, (directory / "task").iterdir())
                java += sum(spent for thread, _, spent in threads if thread.startswith("Executor task"))
            else:
                python += seconds
        except OSError:  # it has ended
            continue
    return java, python


def _stat(directory: Path) -> tuple[str, int, float]:
    """A process's or thread's name, its parent, and the processor seconds that it has taken."""
    text = (directory / "stat").read_text(encoding="utf-8", errors="replace")
    fields = text.rpartition(")")[2].split()
    return text.partition("(")[2].rpartition(")")[0], int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICKS
