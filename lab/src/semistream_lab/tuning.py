"""Tuning the papers' joins: by their models, and by measurement where that is asked for.

MESHJOIN has two objectives: most rate from a given memory, least memory for a given rate; both are a search over its
buffer b. Tuned X-HYBRIDJOIN has two sizes, pinned and swappable; SSCJ the cache's share and the threshold. AMESHJOIN is
tuned while it runs: `FollowRate` gives it the packet size that the arrival rate asks for.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.budget import Budget
from semistream.errors import ArgumentError, MemoryBudgetError
from semistream.joins import JOINS
from semistream.joins.contract import JoinSettings, Profile
from semistream.joins.papers.mesh import MeshJoin, MeshSettings
from semistream.joins.papers.sscj import SscjSettings
from semistream.joins.papers.tuned_xhybrid import TunedXHybridSettings
from semistream.lookup.bind import LookupPlan
from semistream.planner.rates import Costs, current_costs
from semistream.stores.contract import Store
from semistream_lab.measuring import measure

_BUFFERS = tuple(float(share) for share in np.geomspace(0.0005, 0.5, 25))
_SIZES = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.5)
_CACHES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7)
_THRESHOLDS = (None, 1, 2, 3, 5, 8, 13)


@dataclass(frozen=True)
class Trial:
    """One setting: what the model expects of it, and what was measured."""

    settings: Any  # of the join that is tuned
    tuples_per_page: float
    rows_per_second: float
    measured_tuples_per_page: float | None = None
    measured_rows_per_second: float | None = None


def trials(name: str) -> Sequence[JoinSettings]:
    """The settings that are tried for a join."""
    choices: dict[str, Callable[[], Sequence[JoinSettings]]] = {
        "mesh": lambda: [MeshSettings(share) for share in _BUFFERS],
        "tuned_xhybrid": lambda: [
            TunedXHybridSettings(pinned, swappable)
            for pinned, swappable in itertools.product(_SIZES, _SIZES)
            if pinned + swappable < 0.9
        ],
        "sscj": lambda: [SscjSettings(cache_share=share) for share in _CACHES],
    }
    if name not in choices:
        raise ArgumentError(f"join={name!r} has nothing to tune; choose one of {', '.join(map(repr, choices))}")
    return choices[name]()


def thresholds(share: float) -> list[SscjSettings]:
    """SSCJ with fixed thresholds, and with the one that adapts; only a measurement tells them apart."""
    return [SscjSettings(cache_share=share, threshold=threshold) for threshold in _THRESHOLDS]


def tune(
    name: str,
    store: Store,
    plan: LookupPlan,
    memory_bytes: int,
    profile: Profile,
    *,
    settings: Iterable[JoinSettings] | None = None,
    stream: Callable[[], Iterator[pa.RecordBatch]] | None = None,
    seconds: float = 1.0,
    costs: Costs | None = None,
    report: Callable[[int, int], None] = lambda *_: None,
) -> list[Trial]:
    """All trials, the best first: by measurement on a ``stream`` if one is given, else by the model's rate."""
    costs, kind = costs or current_costs(), JOINS[name]
    tried = list(trials(name) if settings is None else settings)
    result = []
    for number, one in enumerate(tried):
        report(number, len(tried))
        said = kind.predict(store.facts, plan, memory_bytes, profile, one)
        trial = Trial(one, said.tuples_per_page, costs.rate(name, said, store.facts))
        if stream is not None:
            made = kind(store, plan, Budget(memory_bytes), one)
            seen = measure(made, stream(), warm_rows=3 * store.facts.rows, warm_seconds=3 * seconds, seconds=seconds)
            trial = Trial(one, trial.tuples_per_page, trial.rows_per_second, seen.tuples_per_page, seen.rows_per_second)
        result.append(trial)
    return sorted(result, key=lambda t: -(t.measured_rows_per_second or t.rows_per_second))


def least_memory_for_mesh(
    store: Store, plan: LookupPlan, rate: float, costs: Costs | None = None
) -> tuple[int, MeshSettings]:
    """MESHJOIN's second objective: the least memory, and its buffer, with which it reaches a rate."""
    costs = costs or current_costs()

    def best(memory: int) -> Trial:
        return tune("mesh", store, plan, memory, Profile(), costs=costs)[0]

    low = MeshJoin.least_bytes(store.facts, plan)
    high = 4 * store.facts.bytes + low
    if best(high).rows_per_second < rate:
        raise MemoryBudgetError(f"rate={rate:,.0f} rows/s is more than mesh reaches on a core, whatever its memory")
    while high - low > max(4096, high // 200):
        middle = (low + high) // 2
        low, high = (low, middle) if best(middle).rows_per_second >= rate else (middle, high)
    return high, MeshSettings.of(best(high).settings)


class FollowRate:
    """AMESHJOIN's online tuning: w as large as the arrivals of a step, b as small as that allows.

    Let it `watch` the stream, and give the join ``AmeshSettings(schedule=follower)``. A step reads b pages and takes
    c_loop(b) seconds, in which λ·c_loop(b) tuples arrive: that many it has to take, w, to keep up. Of the b with
    which all live packets, w·N_R/b tuples, fit the slots, the one with the fewest is chosen: least memory at this rate.
    """

    def __init__(
        self,
        store: Store,
        slots: int,
        buffer_pages: int,
        costs: Costs | None = None,
        clock: Callable[[], float] = time.monotonic,
        memory_seconds: float = 1.0,
    ) -> None:
        self._facts, self._slots, self._clock, self._memory = store.facts, slots, clock, memory_seconds
        self._terms = (costs or current_costs()).joins["amesh"]
        self._sizes = [b for b in (1, 2, 4, 8, 16, 32, 64, 128, 256) if b <= max(1, buffer_pages)]
        self._last: float | None = None
        self.rate = 0.0  # arrivals a second, lately

    def watch(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same stream, its rate followed."""
        for batch in batches:
            now = self._clock()
            if self._last is not None and now > self._last:
                passed = now - self._last
                weight = min(1.0, passed / self._memory) if self.rate else 1.0
                self.rate += weight * (batch.num_rows / passed - self.rate)
            self._last = now
            yield batch

    def packet(self, pages: int) -> int:
        """Tuples that a step over so many pages must take to keep up with the stream."""
        terms, device = self._terms, self._facts.device
        step = device.seconds(1, pages * self._facts.page_bytes) + terms.read + pages * terms.page
        busy = self.rate * terms.miss  # each of them takes time itself
        return max(1, int(np.ceil(self.rate * step / (1 - busy)))) if busy < 0.95 else self._slots

    def __call__(self, iteration: int) -> tuple[int, int]:
        """The schedule: (w, b) of the next step."""
        del iteration
        live = {b: self.packet(b) * -(-self._facts.pages // b) for b in self._sizes}
        b = min(live, key=lambda size: (live[size] > self._slots, live[size], size))
        return max(1, min(self.packet(b), self._slots * b // max(1, self._facts.pages) or 1)), b
