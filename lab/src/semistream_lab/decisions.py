"""The measurements behind docs/decisions: ``python -m semistream_lab.decisions WHAT [--rows N]``.

Each prints a small table. They compare designs on this machine, side by side in one process; they are not the
benchmark (see `semistream bench`).
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream import MasterStore, make_join
from semistream.stats import Stats
from semistream_lab.workloads.zipf import ZipfWorkload

_COLUMNS = ["surrogate", "price", "vendor"]
_BATCH = 200_000


def _run(
    stream: list[pa.RecordBatch], store: MasterStore, memory: str, columns: list[str] | None = _COLUMNS
) -> tuple[float, Stats]:
    """Rows/s of the second half of a stream (the first warms up) in one thread, and its counters."""
    asked: dict[str, Any] = {"on": "key", "memory": memory, "columns": columns, "algorithm": "sweep", "threads": 1}
    join = make_join(stream[0].schema, store, **asked)
    half = len(stream) // 2
    _drain(join.join(stream[:half]))
    before, start = join.stats.copy(), time.perf_counter()
    _drain(join.join(stream[half:]))
    seconds = time.perf_counter() - start
    join.check()
    return sum(batch.num_rows for batch in stream[half:]) / seconds, join.stats.since(before)


def page(rows: int, scratch: Path) -> None:
    """Page size: smaller pages read less for a key, larger ones need a smaller index and fewer requests."""
    load = ZipfWorkload(rows)
    print(f"{rows:,} rows of 120 bytes, Zipf 1, shuffled; rows/s in millions, bytes read a stream row")
    stream = [load.stream(number * _BATCH, _BATCH) for number in range(30)]
    heads = ("10 % warm", "10 % O_DIRECT", "1 % warm", "1 % O_DIRECT")
    print(f"{'page':>8} {'index':>9} | " + " | ".join(f"{head:>16}" for head in heads))
    for page_bytes in (4096, 8192, 16384, 65536):
        path = scratch / f"page{page_bytes}"
        built = MasterStore.build(load.master(), path, key="key", page_bytes=page_bytes)
        cells = []
        for memory in ("10%", "1%"):
            for direct in (False, True):
                # Past the kernel's cache a small budget does some 30,000 rows/s: fewer of them tell as much.
                some = stream[: len(stream) // 5] if direct and memory == "1%" else stream
                rate, stats = _run(some, MasterStore.open(path, direct=direct), memory)
                cells.append(f"{rate / 1e6:6.2f} {stats.bytes_read / stats.rows_in:7.0f} B")
        line = " | ".join(f"{cell:>16}" for cell in cells)
        print(f"{page_bytes:>8} {built.facts.index_bytes:>9,} | {line}", flush=True)
        shutil.rmtree(path)


def groups(rows: int, scratch: Path) -> None:
    """Column groups: what a lookup reads, and how fast it is, with and without a group of its columns."""
    load = ZipfWorkload(rows)
    columns = {"narrow": ["surrogate", "price"], "text": [load.master_schema.names[-1]]}
    plain = MasterStore.build(load.master(), scratch / "plain", key="key")
    grouped = MasterStore.build(load.master(), scratch / "grouped", key="key", groups=columns)
    stream = [load.stream(number * _BATCH, _BATCH) for number in range(40)]
    print(f"{rows:,} rows of 120 bytes, Zipf 1, shuffled, batches of {_BATCH:,}, one thread; of the second half:")
    heads = f"{'columns':>8} {'memory':>6} {'read from':>10} {'MB':>8} {'index':>10}"
    print(f"{heads} {'M rows/s':>9} {'pages':>8} {'B/row':>6}")
    for name, wanted in {**columns, "all": None}.items():
        for memory in ("10%", "1%"):
            for store in (plain, grouped) if wanted else (plain,):
                read = store.covering(wanted or store.schema.names)
                # A share of all columns, whatever is read.
                rate, stats = _run(stream, read, str(plain.bytes * int(memory[:-1]) // 100), wanted)
                sizes = f"{read.bytes / 1e6:8,.0f} {read.facts.index_bytes:>10,}"
                counts = f"{stats.pages_read:>8,} {stats.bytes_read / stats.rows_in:>6,.0f}"
                print(
                    f"{name:>8} {memory:>6} {read.group or 'the rows':>10} {sizes} {rate / 1e6:>9.2f} {counts}",
                    flush=True,
                )


def compress(rows: int, scratch: Path) -> None:
    """Pages compressed by LZ4: how much smaller they are, and what unpacking one takes."""
    load = ZipfWorkload(rows)
    store = MasterStore.build(load.master(), scratch / "store", key="key", groups={"narrow": ["surrogate", "price"]})
    codec, size = pa.Codec("lz4_raw"), store.page_bytes
    print(f"{rows:,} rows of 120 bytes, pages of {size:,} bytes")
    for read in (store, store.covering(["price"])):
        count = min(5_000, read.pages)
        pages = np.memmap(read.segments[0].path, np.uint8, "r", size, (count, size))
        packed = [codec.compress(page.tobytes()) for page in pages]
        best = min(_seconds(partial(_unpack, codec, packed, size)) for _ in range(3))
        share, micro = sum(len(one) for one in packed) / count / size, 1e6 * best / count
        print(f"  {read.group or 'all columns':<12} {share:.0%} of its bytes, {micro:.1f} µs to unpack a page")


def _unpack(codec: pa.Codec, packed: list[pa.Buffer], size: int) -> None:
    for one in packed:
        codec.decompress(one, size)


def _timed(name: str, count: int, run: Callable[[], object]) -> None:
    best = min(_seconds(run) for _ in range(3))
    print(f"  {name:<44} {count / best / 1e6:8.1f} M/s")


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def probe(rows: int, scratch: Path) -> None:
    """How fast can a batch of keys find its rows in a table of ``rows`` keys, one core?"""
    import pandas as pd

    from semistream.joins.sweep.cache import TupleCache, key_cell
    from semistream.rows import Projection

    load = ZipfWorkload(rows)
    store = MasterStore.build(load.master(), scratch / "probe", key="key")
    projection = Projection(store.layout, _COLUMNS)
    size, simple = key_cell(store.facts, projection.target)
    cache = TupleCache.private(int(rows * (size + 10) * 1.1) + 4096, projection.target, size, simple=simple)

    for codes, addresses in store.reader().rows():
        packed = projection.apply(addresses)
        cache.offer(codes, packed, np.arange(len(codes)), np.arange(1, len(codes) + 1), 0, 4096)
    keys = load.keys(0, 1_000_000)
    codes, valid = store.codec.encode([pa.array(keys)])
    everything = np.arange(rows)
    index = pd.Index(everything)
    table = dict(zip(range(rows), range(rows), strict=True))
    listed = keys.tolist()
    arrow = pa.array(everything)
    print(f"probes of {rows:,} keys, Zipf 1")
    _timed("tuple cache (numba, buckets of one line)", len(keys), lambda: cache.probe(codes, valid))
    _timed("numpy searchsorted", len(keys), lambda: np.searchsorted(everything, keys))
    _timed("pandas Index.get_indexer", len(keys), lambda: index.get_indexer(keys))
    _timed("pyarrow index_in (builds its table each time)", len(keys), lambda: pc.index_in(pa.array(keys), arrow))
    _timed("Python dict", len(listed), lambda: [table.get(key) for key in listed])


def keys(rows: int, scratch: Path) -> None:
    """Codes: how fast keys are encoded, and how many of ``rows`` distinct strings collide in 64 bits."""
    del scratch
    from semistream.keys import KeyCodec

    numbers = np.arange(rows)
    text = pa.array(np.char.add("customer-", numbers.astype(str)))
    samples: dict[str, list[pa.Array]] = {
        "int64": [pa.array(numbers)],
        "decimal(10,2)": [pc.cast(pc.cast(pa.array(numbers % 10**7), pa.decimal128(21, 2)), pa.decimal128(10, 2))],
        "string of 10 to 16 bytes": [text],
        "string + int64": [text, pa.array(numbers)],
    }
    print(f"encoding {rows:,} keys")
    for name, columns in samples.items():
        codec = KeyCodec([pa.field(f"k{i}", column.type) for i, column in enumerate(columns)])
        codec.encode([column[:10] for column in columns])
        _timed(name, rows, lambda codec=codec, columns=columns: codec.encode(columns))  # type: ignore[misc]
    codec = KeyCodec([pa.field("k", text.type)])
    codes, _ = codec.encode([text])
    expected = rows * rows / 2 / 2**64
    print(f"  {rows - len(np.unique(codes))} collisions among {rows:,} strings (by chance: {expected:.1e})")


def cache(rows: int, scratch: Path) -> None:
    """One cache for all workers of a host, or one a worker: the same memory, the same stream dealt to two workers."""
    load = ZipfWorkload(rows)
    store = MasterStore.build(load.master(), scratch / "cache", key="key")
    stream = [load.stream(number * _BATCH, _BATCH) for number in range(100)]
    print(f"{rows:,} rows, stream of {len(stream) * _BATCH:,} rows dealt to two workers; hit ratio of the second half")
    for percent in (1, 2, 5, 10):
        memory = store.bytes * percent // 100
        whole = make_join(
            stream[0].schema, store, on="key", memory=memory, columns=_COLUMNS, algorithm="sweep", threads=1
        )
        halves = [
            make_join(
                stream[0].schema, store, on="key", memory=memory // 2, columns=_COLUMNS, algorithm="sweep", threads=1
            )
            for _ in range(2)
        ]
        for number in (0, 50):
            before = [join.stats.copy() for join in (whole, *halves)]
            for batch in stream[number : number + 50]:
                _drain(whole.join([batch]))
            for position, batch in enumerate(stream[number : number + 50]):
                _drain(halves[position % 2].join([batch]))
        shared = whole.stats.since(before[0])
        own = halves[0].stats.since(before[1]) + halves[1].stats.since(before[2])
        print(f"  memory {percent:>2} %: shared {shared.hit_ratio:.3f}, one a worker {own.hit_ratio:.3f}", flush=True)


def policy(rows: int, scratch: Path) -> None:
    """How large the sketch and how long its memory: hit ratio against perfect LFU's at the same number of cells."""
    from semistream.joins.costs import Popularity
    from semistream.joins.sweep import cache as _cache
    from semistream.joins.sweep.join import SweepSettings

    load = ZipfWorkload(rows)
    store = MasterStore.build(load.master(), scratch / "policy", key="key")
    stream = [load.stream(number * 50_000, 50_000) for number in range(120)]
    print(f"{rows:,} rows, stream of {len(stream) * 50_000:,} rows; hit ratio of the last third")
    for memory in ("2%", "10%"):
        for sketch in (0.5, 2.0, 3.0, 4.0, 8.0):
            cells = []
            for period in (5, 10, 20, 40, 60):
                _cache._SKETCH_PER_CELL, _cache._PERIOD = sketch, period  # noqa: SLF001 - that is what is compared
                join: Any = make_join(
                    stream[0].schema,
                    store,
                    on="key",
                    memory=memory,
                    columns=_COLUMNS,
                    algorithm="sweep",
                    settings=SweepSettings(adapt=False),
                )
                for number, batch in enumerate(stream):
                    if number == 80:
                        before = join.stats.copy()
                    _drain(join.join([batch]))
                cells.append(f"{period}: {join.stats.since(before).hit_ratio:.3f}")
            bound = Popularity(rows, 1.0).head(join.cache.rows)
            print(
                f"  memory {memory:>3}, {sketch:g} bytes per cell; period {', '.join(cells)}; LFU {bound:.3f}",
                flush=True,
            )


def boundary(rows: int, scratch: Path) -> None:
    """From Spark to Python and back: what crossing costs by itself."""
    from semistream_lab import spark_boundary

    spark_boundary.measure(rows, scratch)


def _drain(batches: Iterator[pa.RecordBatch]) -> None:
    for _ in batches:
        pass


def main() -> None:
    """Run one of the comparisons."""
    comparisons: dict[str, Callable[[int, Path], None]] = {"page": page, "probe": probe, "keys": keys, "cache": cache}
    comparisons |= {"policy": policy, "groups": groups, "compress": compress, "boundary": boundary}
    parser = argparse.ArgumentParser(prog="python -m semistream_lab.decisions", description=__doc__)
    parser.add_argument("what", choices=comparisons)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument(
        "--scratch", type=Path, default=None, help="where the stores are made (default: a temporary one)"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.scratch) as directory:
        comparisons[given.what](given.rows, Path(directory))


if __name__ == "__main__":
    main()
