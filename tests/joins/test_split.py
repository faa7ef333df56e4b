"""Where sweep draws the line between cache and window: at the least cost, whatever the stream's skew."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream.budget import Budget
from semistream.joins.contract import Profile
from semistream.joins.sweep.join import SweepJoin, SweepSettings
from semistream.joins.sweep.split import Division, Split, cache_share, elasticity, request_pages, worth_keeping
from semistream.lookup.bind import LookupPlan, bind
from semistream.lookup.spec import LookupSpec
from semistream.stores import MasterStore
from semistream.stores.device import Device
from semistream_lab.workloads.zipf import ZipfWorkload
from tests.devices import steady

ROWS = 100_000
DISKS = {"page cache": Device(1.1e-6, 0.08e-9), "flash": Device(14e-6, 0.17e-9), "spinning": Device(5e-3, 6e-9)}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> MasterStore:
    load = ZipfWorkload(ROWS)
    path: Path = tmp_path_factory.mktemp("split") / "store"
    return steady(MasterStore.build(pa.Table.from_batches(load.master()), path, key="key"))


@pytest.fixture
def question(store: MasterStore) -> LookupPlan:
    schema = ZipfWorkload(ROWS).stream(0, 1).schema
    return bind(LookupSpec(on="key", suffix="_master"), schema, store)


@pytest.fixture(params=DISKS)
def on_disk(request: pytest.FixtureRequest, store: MasterStore) -> MasterStore:
    return steady(store, DISKS[request.param])


@pytest.mark.parametrize("skew", [0.0, 0.5, 0.75, 1.0, 1.25])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.3])
def test_rests_at_the_least_cost(share: float, skew: float, on_disk: MasterStore, question: LookupPlan) -> None:
    parts = Division.of(on_disk.facts, question, int(share * on_disk.bytes), 0.9)
    split = Split(on_disk.facts, question, parts, skew)
    tried = [split.tables, *np.linspace(0.25 * split.room, parts.cache, 60)]
    assert split.seconds(split.rest()) <= 1.01 * min(split.seconds(cache) for cache in tried)


def test_closed_where_hits_are_too_few(on_disk: MasterStore, question: LookupPlan) -> None:
    parts = Division.of(on_disk.facts, question, on_disk.bytes // 50, 0.9)
    split = Split(on_disk.facts, question, parts, 0.0)
    assert split.at(split.rest()).hits == 0
    assert worth_keeping(0.5, 1e-6)
    assert not worth_keeping(0.01, 1e-6)


@pytest.mark.parametrize("skew", [0.25, 0.5, 0.75, 1.0, 1.25])
def test_the_rule_of_the_margin_agrees(skew: float, on_disk: MasterStore, question: LookupPlan) -> None:
    """What the join follows at run time, from counts alone, ends where the model has the least cost."""
    parts = Division.of(on_disk.facts, question, on_disk.bytes // 10, 0.9)
    split = Split(on_disk.facts, question, parts, skew)
    rest = split.rest()
    if not split.at(rest).cached:
        return  # it is closed
    cache, tables = rest, split.tables
    for _ in range(40):
        then, pages = split.at(cache), request_pages(on_disk.facts, parts.buffer)
        elastic = elasticity(then.read.pages / on_disk.pages, then.read_seconds, on_disk.facts, pages)
        share = cache_share(1 - then.hits, elastic, then.cached, ROWS)
        cache += 0.3 * (tables + share * (split.room - tables) - cache)
        cache = min(max(cache, split.room / 16), parts.cache)
    assert split.seconds(cache) <= 1.05 * split.seconds(rest)


def test_a_dear_disk_gets_the_larger_window(store: MasterStore, question: LookupPlan) -> None:
    rests = []
    for disk in DISKS.values():
        facts = steady(store, disk).facts
        rests.append(Split(facts, question, Division.of(facts, question, store.bytes // 10, 0.9)).rest())
    assert rests == sorted(rests, reverse=True)
    assert rests[-1] < 0.8 * rests[0]


def test_a_deadline_leaves_more_to_the_cache(on_disk: MasterStore, question: LookupPlan) -> None:
    """A window that is swept before it is full has no use for more bytes."""
    parts = Division.of(on_disk.facts, question, on_disk.bytes // 10, 0.9)
    patient, hasty = Split(on_disk.facts, question, parts), Split(on_disk.facts, question, parts, wait_seconds=1e-4)
    assert hasty.rest() >= patient.rest()
    assert hasty.at(patient.rest()).window < patient.at(patient.rest()).window / 2
    asked = (on_disk.facts, question, on_disk.bytes // 10, Profile(1.0))
    soon, late = (SweepJoin.predict(*asked, SweepSettings(wait_seconds=wait)) for wait in (1e-4, 60.0))
    assert soon.tuples_per_page < late.tuples_per_page


def test_where_all_is_cached_nobody_waits_for_a_deadline(store: MasterStore, question: LookupPlan) -> None:
    said = SweepJoin.predict(store.facts, question, 4 * store.bytes, Profile(1.0), SweepSettings(wait_seconds=1e-4))
    assert said.hit_ratio == 1
    assert "deadline" not in said.remark
    parts = Division.of(store.facts, question, 4 * store.bytes, 0.9)
    assert Split(store.facts, question, parts).at(parts.cache).filled == 1


def test_elasticity(on_disk: MasterStore) -> None:
    far = elasticity(1e-7, 1.0, on_disk.facts, 64)
    near = elasticity(1 - 1e-7, 1.0, on_disk.facts, 64)
    assert far == pytest.approx(0, abs=0.01)  # single reads: nobody shares
    assert near == pytest.approx(1, abs=0.01)  # a scan, however many wait
    assert elasticity(0.5, 0.0, on_disk.facts, 64) == 0  # reads that cost nothing


def test_share_of_any_hits() -> None:
    for cached in (1, 100, ROWS, 2 * ROWS):
        shares = [cache_share(miss, 0.5, cached, ROWS) for miss in (0.0, 0.01, 0.3, 0.99, 1.0)]
        assert all(0 <= share <= 1 for share in shares), (cached, shares)
    assert cache_share(0.0, 0.5, 10, 0) >= 0  # an empty master


def test_begins_there(store: MasterStore, question: LookupPlan) -> None:
    memory = store.bytes // 10
    wanted = Split(store.facts, question, Division.of(store.facts, question, memory, 0.9)).rest()
    assert SweepJoin(store, question, Budget(memory)).balance.limit == pytest.approx(wanted, rel=0.01)
    fixed = SweepJoin(store, question, Budget(memory), SweepSettings(cache_share=0.6, adapt=False))
    assert fixed.balance.limit == fixed.parts.cache


@pytest.mark.parametrize("request_us, byte_ns", [(0.5, 0.04), (0.9, 0.06), (1.1, 0.08), (2.0, 0.1)])
def test_a_useless_cache_is_closed_and_tried_again(
    request_us: float, byte_ns: float, store: MasterStore, question: LookupPlan
) -> None:
    # What is useless depends on what a read costs, and with it how many sweeps there are: none of these page caches
    # may keep a cache closed that would be useful again.
    store = steady(store, Device(request_us * 1e-6, byte_ns * 1e-9))
    join = SweepJoin(store, question, Budget(store.bytes // 20), SweepSettings(wait_seconds=1e9))
    rows = 200_000

    def feed(skew: float, start: int) -> float:
        load, before = ZipfWorkload(ROWS, skew=skew), join.stats.copy()
        batches = (load.stream(at, 5_000) for at in range(start, start + rows, 5_000))
        assert sum(out.num_rows for out in join.join(batches)) == rows
        join.check()
        return join.stats.since(before).hit_ratio

    assert feed(0.0, 0) < 0.05
    assert join.balance.closed_for
    hits = [feed(1.0, number * rows) for number in range(1, 5)]
    assert hits[-1] > 0.5, hits
    assert not join.balance.closed_for


def test_a_window_that_is_never_full_gives_its_room_to_the_cache(store: MasterStore, question: LookupPlan) -> None:
    seconds = itertools.count(0.0, 10.0)  # every batch finds the deadline passed
    join = SweepJoin(store, question, Budget(store.bytes // 10), clock=lambda: next(seconds))
    began = join.balance.limit
    load = ZipfWorkload(ROWS)
    assert sum(out.num_rows for out in join.join(load.stream(at, 500) for at in range(0, 400_000, 500))) == 400_000
    join.check()
    assert began < 0.9 * join.parts.cache
    assert join.balance.limit > 0.97 * join.parts.cache


def test_a_cache_that_is_opened_again_leaves_room_for_filter_and_window(
    store: MasterStore, question: LookupPlan
) -> None:
    memory = store.bytes // 5
    join = SweepJoin(store, question, Budget(memory), SweepSettings(wait_seconds=1e9))
    load = ZipfWorkload(ROWS, absent=0.5, skew=0.0)
    batches = (load.stream(at, 5_000) for at in range(0, 3_000_000, 5_000))
    rows = 0
    for out in join.join(batches):
        rows += out.num_rows
        assert join.window_limit > 0
    assert rows == 3_000_000
    join.check()
    assert join.absent.filter is not None


def test_lanes_are_those_there_is_room_for_however_many_are_asked_for(store: MasterStore, question: LookupPlan) -> None:
    most = {lanes: Division.of(store.facts, question, 8_000_000, 0.9, lanes=lanes) for lanes in (64, 2000, 10**15)}
    assert most[64] == most[2000] == most[10**15]
    assert 1 < most[64].lanes < 64
    assert Division.of(store.facts, question, 8_000_000, 0.9, lanes=most[64].lanes) == most[64]
    plan = replace(question, threads=10**15)
    assert Division.of(store.facts, plan, 8_000_000, 0.9) == most[64]
    assert Division.of(store.facts, plan, 8_000_000, 0.9, tasks=4).lanes == 1
    assert SweepJoin(store, plan, Budget(8_000_000)).parts.lanes == most[64].lanes
