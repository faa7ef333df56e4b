"""What the arms read: made once for a number of rows, found again by its name, never half made.

All of it comes from `ZipfWorkload`: keys follow Zipf's law with exponent 1, shuffled, so that hot rows share no pages.

    unsorted/    the master as Parquet in random order: what a store is built from
    store/       the master store
    store-with-…/  the same files under second names, and a column group of the columns asked for
    master/      the master as Parquet in key order, in row groups of 122,880 rows: for Spark and DuckDB
    duckdb-…/    DuckDB's own table with a primary key
    bucketed/    Spark's table, bucketed and sorted by the key
    narrow-…/    the stream, a micro-batch in two files, so that both cores have work in every arm
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from semistream.stores import MasterStore
from semistream_lab.abilities import build_takes
from semistream_lab.cells import enriched
from semistream_lab.workloads.zipf import ZipfWorkload

ROW_GROUP = 122_880  # DuckDB's own size; Spark splits files at any of them
FILES = 4  # of the master
FILES_A_BATCH = 2
_REPEATING = ["price", "vendor"]  # columns worth a dictionary; trying it for all takes half of the time to write
BUCKETS = 16


def default_directory() -> Path:
    """Where data goes when the user names no place."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "semistream" / "bench"


@dataclass(frozen=True)
class BenchData:
    """The data of one number of master rows, below ``root``; a part is made when it is first asked for."""

    root: Path
    rows: int

    @property
    def load(self) -> ZipfWorkload:
        """The generator that all parts come from."""
        return ZipfWorkload(self.rows, skew=1.0, shuffled=True)

    @property
    def key(self) -> list[str]:
        """The master's key columns."""
        return ["key"]

    @property
    def directory(self) -> Path:
        """Where it lies."""
        return self.root / f"zipf1-shuffled-{self.rows}"

    def unsorted(self) -> Path:
        """The master as Parquet, in random order."""
        with self.part("unsorted") as draft:
            if draft is not None:
                ours = isinstance(self.load, ZipfWorkload)
                _write_files(draft, self.load.master(), self.rows, _REPEATING if ours else True)
        return self.directory / "unsorted"

    def store(self, group: str = "") -> Path:
        """The master store; with ``group`` the one beside it that also has a column group of these columns.

        There is no group of all columns: that is the store itself.
        """
        if not group or group == "all" or not build_takes("groups"):
            if not (self.directory / "store").exists():
                source = self.unsorted()
                with self.part("store") as draft:
                    if draft is not None:
                        MasterStore.build(source, draft, key=self.key)
            return self.directory / "store"
        plain, name = self.store(), f"store-with-{group}"
        with self.part(name) as draft:
            if draft is not None:
                shutil.copytree(plain, draft, copy_function=linked, dirs_exist_ok=True)
                MasterStore.open(draft).project(group, enriched(group))
        return self.directory / name

    def master(self) -> Path:
        """The master as Parquet, in key order."""
        store = MasterStore.open(self.store())
        with self.part("master") as draft:
            if draft is not None:
                _write_files(draft, store.scan(), self.rows)
        return self.directory / "master"

    def duckdb_table(self) -> Path:
        """A DuckDB database with the table ``master`` and a primary key."""
        import duckdb

        store, name = MasterStore.open(self.store()), f"duckdb-{duckdb.__version__}"
        with self.part(name) as draft:
            if draft is not None:
                with duckdb.connect(str(draft / "master.duckdb")) as connection:
                    connection.execute("SET enable_progress_bar = false")
                    scan = iter(store.scan())
                    first = next(scan)
                    reader = pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], scan))
                    connection.register("given", pa.Table.from_batches([first.slice(0, 0)]))
                    columns = connection.sql("DESCRIBE SELECT * FROM given").fetchall()
                    declared = ", ".join(f"{column[0]} {column[1]}" for column in columns)
                    connection.execute(f"CREATE TABLE master ({declared}, PRIMARY KEY (key))")
                    connection.register("scanned", reader)
                    connection.execute("INSERT INTO master SELECT * FROM scanned")
                    connection.execute("CHECKPOINT")
        return self.directory / name / "master.duckdb"

    def bucketed(self) -> Path:
        """Where Spark's bucketed table lies, or will lie: `arms_spark.make_bucketed` writes it."""
        return self.directory / f"bucketed-{BUCKETS}"

    def stream(self, plan: Stream) -> Path:
        """The stream as Parquet, `FILES_A_BATCH` files a micro-batch."""
        with self.part(plan.name) as draft:
            if draft is not None:
                start = 0
                for number, size in enumerate(plan.sizes):
                    for part, (low, high) in enumerate(_halves(size)):
                        batch = self.load.stream(start + low, high - low, wide=plan.wide)
                        file = draft / f"batch-{number:05d}-{part}.parquet"
                        pq.write_table(pa.Table.from_batches([batch]), file)
                        # Spark takes files in the order of their times.
                        os.utime(file, (1_600_000_000 + 60 * number + part,) * 2)
                    start += size
        return self.directory / plan.name

    @contextmanager
    def part(self, name: str) -> Iterator[Path | None]:
        """A directory to fill, moved to its name when it is complete; None when it is there already."""
        if (self.directory / name).exists():
            yield None
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=self.directory, prefix=f".draft-{name}-"))
        try:
            yield draft
            draft.rename(self.directory / name)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def linked(source: str, target: str) -> str:
    """A second name for a file where that works, else a copy with the same time."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


@dataclass(frozen=True)
class Stream:
    """A stream of micro-batches: first ``large`` ones that fill caches, then those of the size that is measured."""

    wide: bool
    batch_rows: int
    count: int
    large_rows: int
    large: int

    @property
    def sizes(self) -> list[int]:
        """Rows of each micro-batch."""
        return [self.large_rows] * self.large + [self.batch_rows] * self.count

    @property
    def name(self) -> str:
        """The directory's name."""
        kind = "wide" if self.wide else "narrow"
        return f"{kind}-{self.large}x{self.large_rows}-{self.count}x{self.batch_rows}"


def warm_page_cache(path: Path) -> None:
    """Read every file once, so that a warm run finds it in the system's page cache."""
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        if file.is_file():
            with file.open("rb", buffering=0) as opened:
                buffer = bytearray(1 << 20)
                while opened.readinto(buffer):
                    pass


def _write_files(
    directory: Path, batches: Iterable[pa.RecordBatch], rows: int, repeating: list[str] | bool = True
) -> None:
    """Parquet in a few files, a whole number of row groups in each; columns with ``repeating`` values get dictionaries.

    The next batch is made while the one before is written.
    """
    most = -(-rows // FILES // ROW_GROUP) * ROW_GROUP
    written: list[Any] = []
    waiting: list[pa.RecordBatch] = []
    count = held = 0
    with ThreadPoolExecutor(1, thread_name_prefix="making") as pool:
        made = iter(batches)
        coming = pool.submit(next, made, None)
        while (batch := coming.result()) is not None:
            coming = pool.submit(next, made, None)
            waiting.append(batch)
            held += batch.num_rows
            while held >= ROW_GROUP:
                table = pa.Table.from_batches(waiting)
                count += _write_group(directory, written, table.slice(0, ROW_GROUP), count, most, repeating)
                waiting = table.slice(ROW_GROUP).to_batches()
                held -= ROW_GROUP
    if held:
        _write_group(directory, written, pa.Table.from_batches(waiting), count, most, repeating)
    for writer in written:
        writer.close()


def _write_group(
    directory: Path, written: list[Any], table: pa.Table, count: int, most: int, repeating: list[str] | bool
) -> int:
    if count // most == len(written):
        path = directory / f"part-{len(written):05d}.parquet"
        written.append(pq.ParquetWriter(path, table.schema, use_dictionary=repeating))
    written[-1].write_table(table, row_group_size=ROW_GROUP)
    return int(table.num_rows)


def _halves(rows: int) -> list[tuple[int, int]]:
    edges = [rows * i // FILES_A_BATCH for i in range(FILES_A_BATCH + 1)]
    return list(itertools.pairwise(edges))
