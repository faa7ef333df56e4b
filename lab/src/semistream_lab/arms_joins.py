"""The arms of `bench joins` and of the lab: every join of the registry on one stream, measured while it flows.

A run is one stream (see `streams`). Then a short stream is joined and checked: its rows must be the same for all arms.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from semistream.budget import Budget
from semistream.joins import JOINS
from semistream.joins.contract import Join, JoinSettings
from semistream.joins.papers.moij import MoijSettings
from semistream.joins.papers.pcsrj import PcsrjSettings
from semistream.joins.papers.sscj import SscjSettings
from semistream.joins.sweep.join import SweepSettings
from semistream.lookup.bind import LookupPlan, bind
from semistream.lookup.spec import LookupSpec
from semistream.stores import MasterStore
from semistream_lab.arms_core import checksum_of, load_code
from semistream_lab.cells import Cell, enriched
from semistream_lab.data import BenchData
from semistream_lab.errors import BenchmarkError
from semistream_lab.measuring import Feed, Limits, waits
from semistream_lab.memory import MemorySampler, give_back_memory
from semistream_lab.predicting import predicted
from semistream_lab.workloads.zipf import ZipfWorkload

# Joins with other settings than their own, as arms beside them.
VARIANTS: dict[str, tuple[str, Any]] = {
    "pcsrj": ("pcsrj", PcsrjSettings(nodes=2, workers="processes")),
    "pcsrj_one": ("pcsrj", PcsrjSettings(nodes=1, workers="processes")),
    "moij_printed": ("moij", MoijSettings(eviction="printed", inequality="printed")),
}
# Only where a paper's figure asks for it.
PAPER_VARIANTS: dict[str, tuple[str, Any]] = {
    "sscj_half": ("sscj", SscjSettings(cache_share=0.5)),
    "sweep_patient": ("sweep", SweepSettings(wait_seconds=60.0)),
}
ARMS = tuple(dict.fromkeys([*(name for name in JOINS if name != "whole"), *VARIANTS]))
MOST_HELD = 26_000_000  # stream rows that are made before the run; more are made as it goes on
_CHECKED = 2_000
_CHECKED_AT = 10**9


@dataclass(frozen=True)
class Setting:
    """What a join is built from."""

    kind: type[Join]
    settings: JoinSettings | None
    store: MasterStore
    plan: LookupPlan

    @staticmethod
    def of(cell: Cell, store: MasterStore, stream: pa.Schema, on: Any, columns: list[str] | None) -> Setting:
        """The arm of a cell; ``settings`` and ``buffer_share`` of its parameters change it."""
        params = cell.params
        algorithm, settings = {**VARIANTS, **PAPER_VARIANTS}.get(cell.arm, (cell.arm, None))
        kind = JOINS[algorithm]
        make: Any = kind.settings_type
        if "settings" in params:
            settings = make(**params["settings"])
        share = params.get("buffer_share")
        if share is not None and hasattr(kind.settings_type, "buffer_share"):  # inl has no buffer to share
            settings = make(buffer_share=share)
        plan = bind(LookupSpec(on=on, columns=columns, suffix="_master"), stream, store)
        return Setting(kind, settings, store, plan)

    def join(self, budget: Budget) -> Any:
        """The join."""
        return self.kind(self.store, self.plan, budget, self.settings)


def run(
    cell: Cell, data: BenchData, load: Any = None, *, one_match: bool = True, sampled: bool = True
) -> dict[str, Any]:
    """Run one cell in this process, on the papers' Zipf stream or on another load.

    With ``sampled`` the process's memory is watched, and the stream made beforehand so as not to count in it.
    """
    params = cell.params
    plain = load is None
    load = load or ZipfWorkload(params["rows"], skew=params["skew"], shuffled=params["layout"] == "shuffled")
    store = MasterStore.open(data.store(), direct=bool(params.get("direct")))
    limits = Limits.of(params)
    batches: Any = limits.batches(load)
    if plain and (sampled or cell.arm.startswith("pcsrj")) and limits.warm_rows + limits.rows <= MOST_HELD:
        batches = list(batches)
    first = load.stream(0, 1)
    pa.set_cpu_count(1)
    load_code(cell, data)
    give_back_memory()
    columns = enriched(params["columns"]) if plain else getattr(load, "columns", None)
    setting = Setting.of(cell, store, first.schema, "key" if plain else load.on, columns)
    with MemorySampler(os.getpid()) if sampled else nullcontext() as sampler:
        if sampler is not None:
            sampler.mark_idle()
        join = setting.join(Budget(params["memory"], whole=store.bytes))
        feed = Feed(join, batches, limits, params.get("arrival"))
        if hasattr(join, "nodes"):  # nodes tell what they counted when a stream ends: so two streams
            rows = feed.in_two_streams()
        else:
            rows = sum(out.num_rows for out in join.join(feed.stream()))
        if one_match and rows != feed.fed:
            raise BenchmarkError(f"{rows:,} rows came out of {feed.fed:,}; every stream row has one match here")
        waited = waits(join)
        checked = load.stream(_CHECKED_AT if plain else 0, _CHECKED)
        checks = {"last": checksum_of(join.join([checked]))}
        join.check()
    figures = feed.figures()
    if join.stats.sweeps and figures["hit_ratio"] < 1 and not figures["pages_read"]:
        raise BenchmarkError(
            f"{figures['rows']:,} rows were measured, and nothing was read yet for those that wait: the rate would be "
            "that of gathering alone; measure more seconds or rows"
        )
    if waited:
        figures["processing_seconds"] = waited["wait_seconds"] * (1 - figures["hit_ratio"])
    return {
        **figures,
        "checksum": checks,
        "peak_bytes": join.stats.peak_bytes,
        "budget_bytes": join.budget.total,
        "pss_growth_bytes": None if sampler is None else sampler.usage.growth,
        "workers": 1,
        **waited,
        **predicted(setting.kind, setting.settings, store.facts, setting.plan, join.budget.total, params),
    }
