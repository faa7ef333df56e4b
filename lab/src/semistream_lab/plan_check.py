"""`semistream bench plan`: ask the planner, run what it recommends, compare.

Every setting is drawn at random: rows of the master, memory or rate, skew. The planner is asked as a user would ask it;
the join it names runs in a process of its own with the memory it names, on a stream of that skew. None of these
settings was used to calibrate. Each is run several times, in rounds over all of them, and the median counts: what a
machine shared with others does in one moment is not what it does. Before and after each run stands one that is always
the same: where the machine is slower than when it was calibrated, less is expected of the planner's join too.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from semistream_lab.cells import enriched
from semistream_lab.data import BenchData
from semistream_lab.errors import BenchmarkError

_ROWS = (100_000, 200_000, 400_000, 700_000, 1_500_000, 2_000_000)


def settings(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Random settings; half of them name a memory, half a rate."""
    chooser = np.random.default_rng(seed)
    for number in range(count):
        yield {
            "rows": int(chooser.choice(_ROWS)),
            "skew": round(float(chooser.uniform(0, 1.2)), 2),
            # Shares of the master, or of what a core does with the whole of it in memory.
            "share": round(float(np.exp(chooser.uniform(np.log(0.01), np.log(0.4)))), 3),
            "asks": "memory" if number % 2 == 0 else "rate",
        }


def run_one(setting: dict[str, Any], data: Path, seconds: float) -> dict[str, Any]:
    """Ask and run, in this process."""
    import pyarrow as pa

    from semistream.budget import Budget
    from semistream.joins import JOINS
    from semistream.joins.contract import Profile
    from semistream.lookup.bind import bind
    from semistream.lookup.spec import LookupSpec
    from semistream.planner.capacity import expected, least_memory
    from semistream.planner.rates import current_costs
    from semistream.stores import MasterStore
    from semistream_lab.busy import Watch, verdict
    from semistream_lab.measuring import endless, measure
    from semistream_lab.pace import PACE_ROWS, pace
    from semistream_lab.workloads.zipf import ZipfWorkload

    pa.set_cpu_count(1)
    load = ZipfWorkload(setting["rows"], skew=setting["skew"], seed=5)
    store = MasterStore.open(BenchData(data, setting["rows"]).store())
    schema = load.stream(0, 1).schema
    plan = bind(LookupSpec(on="key", columns=enriched("three")), schema, store)
    profile = Profile(setting["skew"])
    if setting["asks"] == "memory":
        said = expected(store, plan, int(store.bytes * setting["share"]), profile)
    else:
        whole = expected(store, plan, 4 * store.bytes, profile).rows_per_second
        said = least_memory(store, plan, whole * min(0.9, 2 * setting["share"]), profile)
    kind: Any = JOINS[said.join.name]
    join = kind(store, plan, Budget(said.memory_bytes))
    same = MasterStore.open(BenchData(data, PACE_ROWS).store())
    before = pace(same)
    with Watch() as watch:
        seen = measure(join, endless(load), warm_rows=3 * setting["rows"], warm_seconds=30, seconds=seconds)
    now, then = (before + pace(same)) / 2, current_costs().pace
    return {
        **setting,
        "algorithm": said.join.name,
        "memory_bytes": said.memory_bytes,
        "expected_rows_per_second": said.rows_per_second,
        "rows_per_second": seen.rows_per_second,
        "pace": now / then if then else 1.0,
        "expected_hit_ratio": said.prediction.hit_ratio,
        "hit_ratio": seen.stats.hit_ratio,
        "expected_tuples_per_page": said.prediction.tuples_per_page,
        "tuples_per_page": seen.tuples_per_page,
        **watch.facts,
        "busy": verdict(watch.facts),
    }


def run(
    count: int, seed: int, data: Path, seconds: float, out: Path, repetitions: int, report: Callable[[int, int], None]
) -> list[dict[str, Any]]:
    """All settings, each in a fresh process; every run goes to ``out/plan.jsonl``. Returns the median of each."""
    out.mkdir(parents=True, exist_ok=True)
    asked = list(settings(count, seed))
    runs: list[list[dict[str, Any]]] = [[] for _ in asked]
    with (out / "plan.jsonl").open("w", encoding="utf-8") as lines:
        for number in range(count * repetitions):
            setting = asked[number % count]
            BenchData(data, setting["rows"]).store()
            told = json.dumps({"setting": setting, "data": str(data), "seconds": seconds})
            done = subprocess.run(
                [sys.executable, "-m", __name__, told], check=False, capture_output=True, text=True, timeout=600
            )
            if done.returncode:
                said = done.stderr.strip().splitlines()[-1:] or ["nothing said"]
                raise BenchmarkError(f"setting {setting} ended with code {done.returncode}: {said[0][:600]}")
            runs[number % count].append(json.loads(done.stdout))
            lines.write(done.stdout.strip() + "\n")
            lines.flush()
            report(number + 1, count * repetitions)
    return [middle(some) for some in runs]


def middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run in the middle, with medians of what was reached: at the machine's pace, and as it came."""
    medians = {
        "rows_per_second": statistics.median(one["rows_per_second"] for one in runs),
        "at_pace": statistics.median(map(reached, runs)),
        "as_it_came": statistics.median(reached(one, pace=False) for one in runs),
    }
    return sorted(runs, key=reached)[len(runs) // 2] | medians


def reached(result: dict[str, Any], *, pace: bool = True) -> float:
    """The share of what was expected, of the machine at its pace of that moment or at that of its calibration."""
    return float(result["rows_per_second"] / result["expected_rows_per_second"] / (result["pace"] if pace else 1.0))


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(run_one(given["setting"], Path(given["data"]), given["seconds"])))
