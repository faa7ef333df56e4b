"""The papers' joins beside each other: their invariants while they run, and the order they are known for.

Counts only: stream tuples a read of R, evictions, waits in iterations. None of them depends on the machine's mood.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semistream import MasterStore, make_join
from semistream.errors import ArgumentError, CorruptStoreError, MemoryBudgetError, SemistreamError
from semistream.joins import JOINS
from semistream.joins.papers.amesh import AmeshSettings
from semistream.joins.papers.moij import MoijSettings
from semistream.joins.papers.pcsrj import PcsrjSettings
from semistream.joins.papers.rmesh import RmeshSettings
from semistream.joins.papers.sscj import SscjSettings
from semistream.joins.papers.tuned_xhybrid import TunedXHybridSettings
from semistream_lab.workloads.zipf import ZipfWorkload
from tests.advice import advised_bytes
from tests.tables import assert_same_rows, table_of

ROWS = 30_000
QUEUE_JOINS = ("hybrid", "xhybrid", "tuned_xhybrid", "optimised_xhybrid", "sscj", "moij")
SCAN_JOINS = ("mesh", "rmesh", "ssbj")


@pytest.fixture(scope="module")
def load() -> ZipfWorkload:
    return ZipfWorkload(ROWS)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, load: ZipfWorkload) -> MasterStore:
    return MasterStore.build(load.master(), tmp_path_factory.mktemp("papers") / "s", key="key")


def stream_of(load: ZipfWorkload, rows: int, step: int = 3_000) -> Iterator[pa.RecordBatch]:
    return (load.stream(start, step) for start in range(0, rows, step))


def made(store: MasterStore, load: ZipfWorkload, name: str, memory: str = "5%", settings: Any = None) -> Any:
    options: dict[str, Any] = {"memory": memory, "algorithm": name, "columns": ["price"], "settings": settings}
    return make_join(load.stream(0, 1).schema, store, on="key", **options)


@pytest.mark.parametrize("name", QUEUE_JOINS)
def test_slots_add_up_all_the_time(store: MasterStore, load: ZipfWorkload, name: str) -> None:
    join = made(store, load, name)
    for number, _ in enumerate(join.join(stream_of(load, 12_000))):
        assert join.table.free + join.table.tuples == join.table.capacity
        assert join.room >= 0
        if number % 20 == 0:
            join.table.check(name)
        if name in ("sscj", "moij", "optimised_xhybrid"):
            assert not (join.table.lookup(join.cache.codes_held()) >= 0).any(), "a key is cached and waits"
    join.check()
    assert join.meeting.waits.longest <= len(join.partitions) + join.fruitless


@pytest.mark.parametrize("name", SCAN_JOINS)
def test_a_packet_meets_every_chunk_once(store: MasterStore, load: ZipfWorkload, name: str) -> None:
    join = made(store, load, name)
    table = table_of(list(join.join(stream_of(load, 9_000))), join.plan.output)
    assert table.num_rows == 9_000
    join.check()
    waits = join.meeting.waits
    assert waits.longest == len(join.partitions)
    if name == "mesh":
        assert waits.mean == len(join.partitions)


def test_rmesh_of_one_segment_is_mesh(store: MasterStore, load: ZipfWorkload) -> None:
    """Step by step: the same batches in the same order, the same reads."""
    mesh = made(store, load, "mesh")
    rmesh = made(store, load, "rmesh", settings=RmeshSettings(segments=1))
    for ours, theirs in zip(mesh.join(stream_of(load, 6_000)), rmesh.join(stream_of(load, 6_000)), strict=True):
        assert ours.equals(theirs)
        assert (mesh.iteration, mesh.at, mesh.table.tuples) == (rmesh.iteration, rmesh.at, rmesh.table.tuples)
    assert mesh.stats == rmesh.stats


def test_rmesh_reads_less_often(store: MasterStore, load: ZipfWorkload) -> None:
    joins = [made(store, load, "rmesh", "50%", settings=RmeshSettings(segments=n)) for n in (1, 4)]
    for join in joins:
        assert sum(batch.num_rows for batch in join.join(stream_of(load, 6_000))) == 6_000
        join.check()
    assert len(joins[1].partitions) > 3 * len(joins[0].partitions)
    assert joins[1].stats.sweeps <= 1.3 * joins[0].stats.sweeps


@pytest.mark.parametrize("seed", range(2))
def test_any_schedule_meets_every_page_once(store: MasterStore, load: ZipfWorkload, seed: int) -> None:
    """AMESHJOIN: whatever w and b do meanwhile, the rows are the same."""
    chooser = np.random.default_rng(seed)
    plan = [(int(w), int(b)) for w, b in zip(chooser.integers(0, 4000, 997), chooser.integers(1, 40, 997), strict=True)]
    join = made(store, load, "amesh", settings=AmeshSettings(schedule=lambda step: plan[step % 997]))
    rows = table_of(list(join.join(stream_of(load, 3_000))), join.plan.output)
    join.check()
    right = made(store, load, "whole", "400%")
    assert_same_rows(rows, table_of(list(right.join(stream_of(load, 3_000))), right.plan.output))


def test_the_example_of_ameshjoin(tmp_path: Path) -> None:
    """Example 3.1: three pages; w = 1, b = 1, 1, 2. Which packets wait after each loop, and how much they have met."""
    rows = [f"{n:01200d}" for n in range(9)]  # three rows a page
    store = MasterStore.build(pa.table({"id": range(9), "text": rows}), tmp_path / "s", key="id")
    assert store.pages == 3
    stream = pa.record_batch({"id": [0, 3, 6]})
    steps = {1: (1, 1), 2: (1, 1), 3: (1, 2)}
    join: Any = make_join(
        stream.schema,
        store,
        on="id",
        memory="1MB",
        algorithm="amesh",
        settings=AmeshSettings(schedule=lambda step: steps.get(step, (1, 1))),
    )
    seen: list[tuple[int, list[int]]] = []
    done = join._scan

    def watched(count: int) -> Iterator[pa.RecordBatch]:
        yield from done(count)
        seen.append((join.at, [join.chunks_done - came for _, came in join.packets]))

    join._scan = watched
    assert sum(batch.num_rows for batch in join.join([stream])) == 3
    # After loop 1: s0 has met p0. After 2: s0 p0 p1, s1 p1. After 3: s0 and s1 are gone, s2 has met p2 and p0.
    assert seen[:3] == [(1, [1]), (2, [2, 1]), (1, [2])]
    join.check()


@pytest.mark.long
def test_the_printed_eviction_thrashes(store: MasterStore, load: ZipfWorkload) -> None:
    """MOIJ as printed throws out what it has just admitted; the corrected rule keeps it and needs fewer reads."""
    found = {}
    for rule in ("printed", "corrected"):
        join = made(store, load, "moij", settings=MoijSettings(eviction=rule))
        for _ in join.join(stream_of(load, 60_000)):
            pass
        join.check()
        found[rule] = (join.evictions, join.stats.rows_in / join.stats.sweeps, join.cache.keys)
    print(found)
    assert found["printed"][0] > 1.5 * found["corrected"][0]
    assert found["corrected"][1] > 1.2 * found["printed"][1]
    assert found["printed"][2] < 10 < 100 < found["corrected"][2], "keys that are cached in the end"


def test_moij_caches_next_to_nothing_of_a_uniform_stream(store: MasterStore) -> None:
    load = ZipfWorkload(ROWS, skew=0.0)
    join = made(store, load, "moij")
    for _ in join.join(stream_of(load, 30_000)):
        pass
    assert join.cache.rows < 0.02 * ROWS


def test_tuples_a_read_at_skew_one(store: MasterStore, load: ZipfWorkload) -> None:
    """The order that the papers report."""
    found = {}
    for name in ("mesh", "hybrid", "sscj", "moij"):
        join = made(store, load, name)
        for _ in join.join(stream_of(load, 30_000)):
            pass
        found[name] = join.stats.rows_in / join.stats.sweeps
    print(found)
    assert found["mesh"] < found["hybrid"] < found["sscj"]
    assert found["hybrid"] < found["moij"]


def test_a_pinned_part_smaller_than_a_partition(store: MasterStore, load: ZipfWorkload) -> None:
    """Pages are pinned, not whole partitions, so a small pinned part serves its keys, too."""
    settings = TunedXHybridSettings(pinned=0.05, swappable=0.3)
    join: Any = made(store, load, "tuned_xhybrid", settings=settings)
    for _ in join.join(stream_of(load, 5_000)):
        pass
    join.check()
    assert 0 < join._pinned_pages < join.partitions.pages
    assert len(join._pinned.codes) > 0


def test_settings_are_checked(store: MasterStore, load: ZipfWorkload) -> None:
    with pytest.raises(ArgumentError, match="eviction='never' is not known; choose one of 'corrected', 'printed'"):
        MoijSettings(eviction="never")
    with pytest.raises(ArgumentError, match="segments=0 must be at least 1"):
        RmeshSettings(segments=0)
    with pytest.raises(ArgumentError, match="do not suit algorithm 'hybrid', which takes none"):
        made(store, load, "hybrid", settings=MoijSettings())


def test_every_join_says_what_it_is() -> None:
    for name, join in JOINS.items():
        assert join.name == name
        assert join.idea
        module = __import__(join.__module__, fromlist=["__doc__"]).__doc__ or ""
        assert "Budget:" in module, f"{name}: its file does not say how it divides the budget"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if at % 3 else []) for at, name in enumerate(sorted(JOINS))]
)
def test_an_abandoned_stream_leaves_nothing_behind(store: MasterStore, load: ZipfWorkload, name: str) -> None:
    """A caller stops in the middle; the same join then answers the next stream as if nothing had happened."""
    join = made(store, load, name, "200%" if name == "whole" else "5%")
    for turn in range(3):
        begun: Any = join.join(stream_of(load, 8_000, 1_000))
        for _ in range(1 + 2 * turn):
            next(begun)
        begun.close()
        batch = load.stream(7_000 * turn, 1_500)
        rows = table_of(list(join.join([batch])), join.plan.output)
        assert sorted(rows["at"].to_pylist()) == batch.column("at").to_pylist()
        join.check()


@pytest.mark.parametrize("name", ["mesh", "amesh", "ssbj", "hybrid", "sscj", "ssij"])
def test_long_text_stays_within_the_budget(store: MasterStore, name: str) -> None:
    """Rows far longer than planned: fewer of them wait; a row longer than the budget is refused by name."""
    chooser = np.random.default_rng(1)
    stream = pa.record_batch(
        {"key": chooser.integers(0, ROWS, 600), "note": ["x" * int(n) for n in chooser.integers(100, 2_000, 600)]}
    )
    join: Any = make_join(stream.schema, store, on="key", memory="400KB", algorithm=name, columns=["price"])
    most = rows = 0
    for batch in join.join([stream]):
        most, rows = max(most, join.table.text_bytes), rows + batch.num_rows
    assert rows == 600
    assert most <= 1.3 * 24 * join.table.capacity, "the mean of a block stands for the rows that are left of it"
    join.check()
    huge = pa.record_batch({"key": [1], "note": ["x" * 500_000]}, schema=stream.schema)
    with pytest.raises(MemoryBudgetError, match=r"500,\d+ bytes while it waits") as refused:
        list(join.join([huge]))
    enough = make_join(stream.schema, store, on="key", memory=advised_bytes(refused.value), algorithm=name)
    assert sum(batch.num_rows for batch in enough.join([huge])) == 1


PROCESSES = PcsrjSettings(nodes=2, workers="processes")


@pytest.mark.parametrize("settings", [PcsrjSettings(nodes=2), PROCESSES])
def test_a_node_s_error_speaks_of_the_memory_of_all(store: MasterStore, settings: PcsrjSettings) -> None:
    options: dict[str, Any] = {"on": "key", "algorithm": "pcsrj", "settings": settings}
    huge = pa.record_batch({"key": [1], "note": ["x" * 500_000]})
    with pytest.raises(MemoryBudgetError, match="memory=600,000 bytes") as refused:
        list(make_join(huge.schema, store, memory=600_000, **options).join([huge]))
    enough = make_join(huge.schema, store, memory=advised_bytes(refused.value), **options)
    assert sum(batch.num_rows for batch in enough.join([huge])) == 1


def test_nodes_as_processes_give_what_one_join_gives(store: MasterStore, load: ZipfWorkload) -> None:
    """Twice with the same processes, and once more after a stream was abandoned."""
    join = made(store, load, "pcsrj", settings=PROCESSES)
    right = made(store, load, "whole", "400%")
    for turn in range(3):
        if turn == 2:
            begun: Any = join.join(stream_of(load, 60_000))
            next(begun)
            begun.close()
        rows = table_of(list(join.join(stream_of(load, 9_000))), join.plan.output)
        assert_same_rows(rows, table_of(list(right.join(stream_of(load, 9_000))), right.plan.output))
        join.check()
    assert join.stats.matched >= 27_000
    assert join.stats.peak_bytes <= join.budget.total
    assert join.stats.cached_rows > 0


def test_a_node_that_dies_is_an_error_and_the_next_stream_gets_another(store: MasterStore, load: ZipfWorkload) -> None:
    join = made(store, load, "pcsrj", settings=PROCESSES)
    begun: Any = join.join(stream_of(load, 300_000))
    next(begun)
    join.nodes[1]._process.kill()
    with pytest.raises(SemistreamError, match="a node of the parallel join ended"):
        list(begun)
    assert sum(batch.num_rows for batch in join.join(stream_of(load, 6_000))) == 6_000
    join.check()


def test_errors_in_a_node_come_back(tmp_path: Path) -> None:
    """A damaged page is found by a process, and named by the one who asked."""
    store = MasterStore.build(pa.table({"id": range(2_000), "v": range(2_000)}), tmp_path / "s", key="id")
    file = store.segments[0].path
    data = bytearray(Path(file).read_bytes())
    data[len(data) // 3] ^= 0xFF
    Path(file).write_bytes(bytes(data))
    stream = pa.record_batch({"id": range(2_000)})
    join = make_join(stream.schema, store, on="id", memory="1MB", algorithm="pcsrj", settings=PROCESSES)
    with pytest.raises(CorruptStoreError, match="damaged"):
        list(join.join([stream]))


@pytest.mark.parametrize("wrong", [{"nodes": 0}, {"nodes": 65}, {"workers": "fibres"}], ids=str)
def test_settings_of_pcsrj_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        PcsrjSettings(**wrong)


@pytest.mark.parametrize("wrong", [{"cache_share": 1.0}, {"buffer_share": 0.6}, {"cache_share": -0.1}], ids=str)
def test_settings_of_sscj_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        SscjSettings(**wrong)


def test_derakhshan_forgets_what_was_not_used_for_longest(tmp_path: Path) -> None:
    """LRU, key by key: a cache of few rows, and a stream that shows which of them are still there."""
    store = MasterStore.build(pa.table({"id": range(3_000), "v": range(3_000)}), tmp_path / "s", key="id")
    schema = pa.schema([("id", pa.int64())])
    join: Any = make_join(schema, store, on="id", memory="40KB", algorithm="derakhshan")
    room = join.cache.capacity
    kept: dict[int, None] = {}
    chooser = np.random.default_rng(3)
    for _ in range(60):
        keys = np.unique(chooser.zipf(1.3, 30) % 3_000)[: join.block_rows]
        list(join.join([pa.record_batch({"id": keys})]))
        known = [key for key in keys.tolist() if key in kept]
        for key in [*known, *(key for key in keys.tolist() if key not in known)]:
            kept.pop(key, None)
            kept[key] = None
        while len(kept) > room:
            kept.pop(next(iter(kept)))
    held = np.array(list(kept)) if room < 3_000 else keys
    assert (join.cache.lookup(join.plan.codec.encode([pa.array(held)])[0]) >= 0).all()
    assert join.cache.rows == len(kept)
    join.check()
