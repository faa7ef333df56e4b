"""Apache Flink: a lookup join by its JDBC connector on PostgreSQL, with the connector's cache of rows.

One job, parallelism 1, in a process of its own. The stream is a CSV file in order. Every joined row goes to a sink that
drops it, and some go with the time to files: from these the rate after the warm-up follows, and the rows that are
compared. The cache has the same share of the master's rows as the budget has of the store. Memory is that of Flink's
Java and of the server together; PostgreSQL's own buffers are as it comes, 128 MB.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc

from semistream.budget import parse_bytes
from semistream.spark.session import find_java
from semistream.stores import MasterStore
from semistream_lab.arms_core import checksum_of
from semistream_lab.busy import below, process_ticks
from semistream_lab.cells import Cell
from semistream_lab.data import BenchData
from semistream_lab.errors import BenchmarkError
from semistream_lab.memory import pss_bytes
from semistream_lab.peers import postgres
from semistream_lab.peers.contract import Peer, added_schema, rows_of
from semistream_lab.peers.flink_fetch import jars

_HEAP = "1g"
_POINTS = 40  # rows with the time, in the timed part
_PACKAGES = ("lang", "lang.reflect", "net", "io", "nio", "text", "time", "util")
_CONCURRENT = ("util.concurrent", "util.concurrent.atomic", "util.concurrent.locks")
_TYPES = {
    pa.int64(): ("BIGINT", "bigint"),
    pa.int32(): ("INT", "integer"),
    pa.float64(): ("DOUBLE", "double precision"),
    pa.timestamp("us"): ("TIMESTAMP(6)", "timestamp"),
    pa.bool_(): ("BOOLEAN", "boolean"),
    pa.string(): ("STRING", "text"),
}


def missing() -> str | None:
    """What is not there."""
    if not jars().exists():
        return "not installed: python -m semistream_lab.peers.flink_fetch (needs Maven; 200 MB)"
    if find_java() is None:
        return "not installed: Java 17 or 21"
    if postgres.programs() is None:
        return "not installed: PostgreSQL 15 or newer (`make postgres` fetches Debian's)"
    return None if find_spec("psycopg") else "not installed: pip install 'semistream[postgres]'"


def prepare(data: BenchData, columns: str) -> Path:
    """Nothing beyond the store: the server is loaded anew in every run."""
    del columns
    return data.store()


def run(cell: Cell, data: BenchData) -> dict[str, Any]:
    """Run one cell: a server, its table, the job."""
    params, size = cell.params, cell.params["batch_rows"]
    first, last = params["warmup"], params["warmup"] + params["batches"]
    added, stream = added_schema(data, params["columns"]), data.load.stream(0, 1).schema
    store = MasterStore.open(data.store())
    share = parse_bytes(params["memory"], whole=store.bytes) / store.bytes
    with tempfile.TemporaryDirectory(prefix="semistream-flink-") as name, postgres.serving() as server:
        place = Path(name)
        _load(server, data, params["columns"], added)
        with pc.CSVWriter(place / "stream.csv", stream, write_options=_plain()) as writer:
            for number in range(last + 1):
                writer.write_batch(data.load.stream(number * size, size))
        every = max(1, params["batches"] * size // _POINTS)
        text = script(
            place, stream, added, server, max(1, int(share * data.rows)), every, [(0, size), (last * size, size)]
        )
        (place / "job.sql").write_text(text, encoding="utf-8")
        (place / "config.yaml").write_text("parallelism:\n  default: 1\n", encoding="utf-8")
        with _peak(server.pid) as memory:
            _run_job(place)
        kept = _read(place / "kept", stream, added)
    rate = rate_of(kept, first * size, last * size)
    return {
        "rows_per_second": rate,
        "batch_seconds": size / rate,
        "rows": (last - first) * size,
        "checksum": {
            str(number): checksum_of(_part(kept, number * size, size).drop(["seen"]).combine_chunks().to_batches())
            for number in (0, last)
        },
        "rss_growth_bytes": memory[0],
        "budget_bytes": int(share * store.bytes),
        "workers": 1,
    }


def script(
    place: Path,
    stream: pa.Schema,
    added: pa.Schema,
    server: postgres.Server,
    cached: int,
    every: int,
    whole: list[tuple[int, int]],
) -> str:
    """The job as SQL: the row of every so many, and some stretches whole, go to files with the time."""
    given, more = ([f"`{f.name}` {_TYPES[f.type][0]}" for f in schema] for schema in (stream, added))
    names = ", ".join([*(f"s.`{n}`" for n in stream.names), *(f"m.`{n}`" for n in added.names)])
    wanted = " OR ".join(f"`at` BETWEEN {start} AND {start + count - 1}" for start, count in whole)
    jdbc = {
        "connector": "jdbc",
        "url": f"jdbc:postgresql://127.0.0.1:{server.port}/postgres",
        "username": postgres.USER,
        "password": server.password,
        "table-name": "master",
        "lookup.cache": "PARTIAL",
        "lookup.partial-cache.max-rows": str(cached),
    }

    def table(name: str, columns: list[str], options: dict[str, str]) -> str:
        said = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
        return f"CREATE TABLE {name} ({', '.join(columns)}) WITH ({said});"

    view = f"CREATE TEMPORARY VIEW joined AS SELECT {names} FROM given AS s LEFT JOIN master "  # noqa: S608
    view += "FOR SYSTEM_TIME AS OF s.proc AS m ON s.`key` = m.`key`;"
    job = "EXECUTE STATEMENT SET BEGIN INSERT INTO dropped SELECT * FROM joined; "
    job += f"INSERT INTO kept SELECT *, CURRENT_TIMESTAMP FROM joined WHERE MOD(`at`, {every}) = 0 OR {wanted}; END;"  # noqa: S608
    files = {"connector": "filesystem", "format": "csv"}
    return "\n".join(
        [
            "SET 'execution.target' = 'local';",
            "SET 'table.dml-sync' = 'true';",
            "SET 'execution.checkpointing.interval' = '10s';",
            table("given", [*given, "proc AS PROCTIME()"], {**files, "path": (place / "stream.csv").as_uri()}),
            table("master", ["`key` BIGINT", *more, "PRIMARY KEY (`key`) NOT ENFORCED"], jdbc),
            table("dropped", [*given, *more], {"connector": "blackhole"}),
            table("kept", [*given, *more, "seen TIMESTAMP_LTZ(3)"], {**files, "path": (place / "kept").as_uri()}),
            view,
            job,
        ]
    )


def rate_of(kept: pa.Table, first: int, end: int) -> float:
    """Rows a second between two rows, by the times of those that are nearest."""
    rows = _part(kept, first, end - first + 1)
    at, seen = rows.column("at").to_pylist(), rows.column("seen").to_pylist()
    seconds = (datetime.fromisoformat(seen[-1]) - datetime.fromisoformat(seen[0])).total_seconds() if seen else 0.0
    if seconds <= 0:
        raise BenchmarkError("the timed part took no time that Flink's clock can tell; give more --batches")
    return float((at[-1] - at[0]) / seconds)


def _part(kept: pa.Table, start: int, count: int) -> pa.Table:
    at = kept.column("at").to_numpy()
    low, high = at.searchsorted(start), at.searchsorted(start + count)
    return kept.slice(low, high - low)


def _read(directory: Path, stream: pa.Schema, added: pa.Schema) -> pa.Table:
    files = sorted(file for file in directory.rglob("part-*") if file.is_file())
    schema = pa.schema([*stream, *added, ("seen", pa.string())])
    read = pc.ReadOptions(column_names=schema.names)
    convert = pc.ConvertOptions(column_types={field.name: field.type for field in schema})
    tables = [pc.read_csv(file, read_options=read, convert_options=convert) for file in files if file.stat().st_size]
    if not tables:
        raise BenchmarkError("Flink wrote no rows")
    return pa.concat_tables(tables).sort_by("at").combine_chunks()


def _load(server: postgres.Server, data: BenchData, columns: str, added: pa.Schema) -> None:
    import psycopg

    declared = ", ".join(f"{field.name} {_TYPES[field.type][1]}" for field in added)
    with psycopg.connect(server.address, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE master (key bigint PRIMARY KEY, {declared})".encode())
        with connection.cursor().copy("COPY master FROM STDIN (FORMAT csv)") as copy:
            for batch in rows_of(data, columns):
                sink = pa.BufferOutputStream()
                pc.write_csv(batch, sink, pc.WriteOptions(include_header=False))
                copy.write(sink.getvalue().to_pybytes())
        connection.execute("VACUUM ANALYZE master")


def _plain() -> pc.WriteOptions:
    return pc.WriteOptions(include_header=False, quoting_style="none")


def _run_job(place: Path) -> None:
    home = find_java()
    assert home is not None
    opens = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in (*_PACKAGES, *_CONCURRENT)]
    opens.append("--add-opens=java.base/sun.nio.ch=ALL-UNNAMED")
    command = [str(home / "bin" / "java"), *opens, f"-Xmx{_HEAP}", "-cp", f"{jars()}/*"]
    done = subprocess.run(
        [*command, "org.apache.flink.table.client.SqlClient", "-f", str(place / "job.sql")],
        env={**os.environ, "FLINK_CONF_DIR": str(place)},
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or "[ERROR]" in done.stdout:
        said = done.stdout[done.stdout.find("[ERROR]") :] if "[ERROR]" in done.stdout else done.stderr
        raise BenchmarkError(f"Flink failed: {said.strip()[-600:]}")


@contextmanager
def _peak(server: int) -> Iterator[list[int]]:
    """The largest memory of what runs below this process: Flink's Java and the server with all of its processes."""
    found, ended = [0], threading.Event()

    def look() -> None:
        while not ended.wait(1.0):
            parents = {}
            for stat in Path("/proc").glob("[0-9]*/stat"):
                try:
                    parents[int(stat.parent.name)] = process_ticks(stat.read_text(errors="replace"))[0]
                except OSError:
                    continue
            ours = (below(os.getpid(), parents) | below(server, parents)) - {os.getpid()}
            found[0] = max(found[0], sum(pss_bytes(pid) or 0 for pid in ours))

    thread = threading.Thread(target=look, name="memory", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


PEER = Peer(
    "Apache Flink's lookup join, JDBC on PostgreSQL, partial cache; memory is that of Flink's Java and the server",
    prepare,
    run,
    missing,
)
