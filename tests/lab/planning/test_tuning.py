"""Tuning: the settings found are better than others, and AMESHJOIN follows a rate that changes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from semistream.budget import Budget
from semistream.errors import ArgumentError, MemoryBudgetError
from semistream.joins import JOINS
from semistream.joins.contract import Profile
from semistream.joins.papers.amesh import AmeshSettings
from semistream.joins.papers.mesh import MeshSettings
from semistream.lookup.bind import LookupPlan
from semistream.planner.rates import default_costs
from semistream.stores import MasterStore
from semistream_lab.tuning import FollowRate, least_memory_for_mesh, tune
from semistream_lab.workloads.zipf import ZipfWorkload
from tests.planner.conftest import ROWS


def test_mesh_has_a_best_buffer(store: MasterStore, question: LookupPlan) -> None:
    """Neither the smallest buffer, which pays for every request, nor the largest, which leaves no slots."""
    memory = store.bytes // 10
    tried = tune("mesh", store, question, memory, Profile())
    rates = {trial.settings.buffer_share: trial.rows_per_second for trial in tried}
    best = tried[0].settings.buffer_share
    assert rates[best] == max(rates.values())
    assert rates[best] > 1.05 * rates[max(rates)]
    used: Any = JOINS["mesh"](store, question, Budget(memory), tried[0].settings)
    default: Any = JOINS["mesh"](store, question, Budget(memory))
    assert used.chunks < default.chunks  # of a larger buffer


def test_least_memory_for_mesh(store: MasterStore, question: LookupPlan) -> None:
    sizes = []
    for rate in (20_000, 100_000, 200_000):
        memory, settings = least_memory_for_mesh(store, question, rate)
        said = JOINS["mesh"].predict(store.facts, question, memory, Profile(), settings)
        assert default_costs().rate("mesh", said, store.facts) >= rate
        sizes.append(memory)
    assert sizes == sorted(sizes)
    with pytest.raises(MemoryBudgetError, match="more than mesh reaches"):
        least_memory_for_mesh(store, question, 1e10)


def test_tuned_by_measurement(store: MasterStore, question: LookupPlan) -> None:
    load = ZipfWorkload(ROWS)

    def stream() -> Iterator[pa.RecordBatch]:
        return (load.stream(start, 5000) for start in range(0, ROWS // 2, 5000))

    tried = tune("sscj", store, question, store.bytes // 10, Profile(), stream=stream, seconds=math.inf)
    seen = {trial.settings.cache_share: trial.measured_tuples_per_page for trial in tried}
    assert all(value is not None for value in seen.values())
    assert (seen[0.2] or 0) > (seen[0.0] or 0)


@pytest.mark.parametrize("share", [-0.1, 0.95])
def test_bad_buffer_share(share: float) -> None:
    with pytest.raises(ArgumentError, match=r"buffer_share=.* must be between 0 and 0.9"):
        MeshSettings(share)


class Clock:
    """Time that passes as the test says."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_amesh_follows_the_rate(store: MasterStore, question: LookupPlan) -> None:
    """Arrivals become four times as many: so do the tuples of a step; the result stays exact."""
    kind: Any = JOINS["amesh"]
    probe = kind(store, question, Budget(store.bytes // 5))
    clock, load = Clock(), ZipfWorkload(ROWS)
    follower = FollowRate(store, probe.table.capacity, probe.partitions.buffer_pages, clock=clock, memory_seconds=0.1)
    join = kind(store, question, Budget(store.bytes // 5), AmeshSettings(schedule=follower))
    asked: list[tuple[float, int, int]] = []

    def arrivals() -> Iterator[pa.RecordBatch]:
        start = 0
        for number in range(200):
            clock.now += 0.02 if number < 100 else 0.005
            yield load.stream(start, 500)
            start += 500
            asked.append((follower.rate, *follower(0)))

    rows = sum(batch.num_rows for batch in join.join(follower.watch(arrivals())))
    assert rows == 100_000
    join.check()
    slow, fast = asked[95], asked[195]
    assert slow[0] == pytest.approx(25_000, rel=0.05)
    assert fast[0] == pytest.approx(100_000, rel=0.15)
    live = [w * -(-store.pages // b) for _, w, b in (slow, fast)]
    assert live[1] > 2 * live[0]  # more waits, but only now that more arrives
    assert join.stats.peak_bytes <= store.bytes // 5
