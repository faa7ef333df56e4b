"""One TPC-H table: made by `tpchgen-cli`, part by part, and read by row number."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from semistream.errors import ArgumentError
from semistream_lab.errors import GeneratorError
from semistream_lab.workloads.numbered import check_range

if TYPE_CHECKING:
    from semistream.stores.paged.store import Progress

PROGRAM = "tpchgen-cli"
# Rows at scale factor 1; lineitem has one to seven rows an order, about six million.
ROWS = {"partsupp": 800_000, "lineitem": 6_001_215, "customer": 150_000, "orders": 1_500_000}
_PART_ROWS = 3_000_000  # some hundred megabytes of Parquet a part


def make_table(place: Path, name: str, scale_factor: float, progress: Progress | None = None) -> Path:
    """The directory of a table, which is made when it is not there."""
    target = place / name
    if target.exists():
        return target
    program = find_program()
    place.mkdir(parents=True, exist_ok=True)
    with (place / f".lock-{name}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be at it: wait, and take what it made
        if not target.exists():
            _make_parts(program, place, name, scale_factor, progress)
    return target


def _make_parts(program: str, place: Path, name: str, scale_factor: float, progress: Progress | None) -> None:
    draft = place / f".draft-{name}"  # kept when the run ends early: its parts are complete
    draft.mkdir(exist_ok=True)
    parts = max(1, round(ROWS[name] * scale_factor / _PART_ROWS))
    for part in range(parts):
        if progress is not None:
            progress(f"TPC-H {name}", part, parts)
        file = draft / f"part-{part:05d}-of-{parts:05d}.parquet"
        if not file.exists():
            _make_part(program, file, name, scale_factor, part, parts)
    for file in draft.iterdir():  # of a run that was cut in other parts, or that was killed
        if not file.name.endswith(f"-of-{parts:05d}.parquet"):
            shutil.rmtree(file) if file.is_dir() else file.unlink()
    draft.rename(place / name)
    if progress is not None:
        progress(f"TPC-H {name}", parts, parts)


def find_program() -> str:
    """The generator: beside this Python, or on the path."""
    places = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    found = shutil.which(PROGRAM, path=os.pathsep.join(places))
    if found is None:
        raise GeneratorError(f"TPC-H data needs the program {PROGRAM}: pip install 'semistream-lab[tpch]'")
    return found


def _make_part(program: str, file: Path, name: str, scale_factor: float, part: int, parts: int) -> None:
    with tempfile.TemporaryDirectory(dir=file.parent, prefix="made-") as scratch:
        command = [program, "parquet", "--scale-factor", f"{scale_factor:.15g}", "--tables", name]
        command += ["--parts", str(parts), "--part", str(part + 1), "--output-dir", scratch, "--quiet"]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        made = list(Path(scratch).rglob("*.parquet"))
        if ended.returncode or len(made) != 1:
            said = ended.stderr.strip().splitlines()[-1:] or [f"{len(made)} files instead of one"]
            raise GeneratorError(f"{PROGRAM} could not make part {part + 1} of {parts} of {name}: {said[0]}")
        made[0].rename(file)


class Table:
    """The Parquet files of a directory as one table, read by row number.

    The row group read last stays in memory (7 MiB before compression): a stream asks for its rows in order.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files = [pq.ParquetFile(file) for file in sorted(directory.glob("*.parquet"))]
        if not self._files:
            raise ArgumentError(f"{directory} holds no Parquet file; remove it, and it is made again")
        self._groups = [(file, group) for file in self._files for group in range(file.metadata.num_row_groups)]
        sizes = [file.metadata.row_group(group).num_rows for file, group in self._groups]
        self._ends = np.cumsum(sizes, dtype=np.int64)
        self._held: tuple[int, pa.Table] = (-1, pa.table({}))

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return int(self._ends[-1])

    @cached_property
    def schema(self) -> pa.Schema:
        """Its columns; texts as plain strings, since Arrow cannot take rows from the generator's views."""
        return pa.schema([pa.field(field.name, _plain(field.type)) for field in self._files[0].schema_arrow])

    def read(self, start: int, count: int) -> pa.RecordBatch:
        """Rows ``start`` to ``start + count``."""
        check_range(start, count, self.rows, f"table {self.directory.name}")
        pieces, at, end = [], start, start + count
        while at < end:
            group = int(np.searchsorted(self._ends, at, side="right"))
            table, first = self._group(group), int(self._ends[group - 1]) if group else 0
            pieces.append(table.slice(at - first, end - at))
            at += pieces[-1].num_rows
        if not pieces:
            return pa.RecordBatch.from_pylist([], schema=self.schema)
        whole = pa.concat_tables(pieces).combine_chunks()
        return pa.RecordBatch.from_arrays([column.combine_chunks() for column in whole.columns], schema=self.schema)

    def _group(self, number: int) -> pa.Table:
        if self._held[0] != number:
            file, group = self._groups[number]
            read = file.read_row_group(group, use_threads=False)
            columns = [column.cast(field.type) for column, field in zip(read.columns, self.schema, strict=True)]
            self._held = (number, pa.Table.from_arrays(columns, schema=self.schema))
        return self._held[1]


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_string_view(kind) else kind
