"""The grid of each suite, and running it: every cell a fresh process, arms in another order in each repetition.

Arms of one place (same stream, same batches) follow each other, so that a change of the machine's mood hits all of
them; each repetition starts with another arm. Cells that the file of results has already are not run again.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from semistream_lab.asked import check_budgets
from semistream_lab.cells import GROUPS, Cell, reads_group
from semistream_lab.data import BenchData
from semistream_lab.environment import environment
from semistream_lab.errors import BenchmarkError
from semistream_lab.grid_joins import Grid
from semistream_lab.making import check_room
from semistream_lab.results import Results, cell_of, check_agreement
from semistream_lab.settings import Run, Settings
from semistream_lab.targets import NATIVE

WHOLE = "200%"  # what `whole` gets: the master and room to load it
BUILD_MEMORY = "512MB"
MOST_FILLING = 2_000_000  # rows of a batch that only fills a cache
ONE_THREAD = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
GRIDS: dict[str, Grid] = {
    "full": Grid(),
    "quick": Grid((200_000,), ("10%", "1%"), (1.0, 0.0), ("shuffled",), 200_000, warm_seconds=5.0, seconds=3.0),
}
Place = list[tuple[str, dict[str, Any]]]  # arms and parameters that are compared with each other
Start = Callable[[Cell], None]
End = Callable[[Cell, dict[str, Any]], None]


def cells(settings: Settings) -> list[Cell]:
    """All cells in the order in which they are run."""
    places = {"core": _core_places, "spark": _spark_places, "joins": _joins_places, "peers": _peers_places}
    make = places[settings.suite]
    return in_turns(settings.suite, list(make(settings)), settings.repetitions)


def in_turns(suite: str, places: Sequence[Place], repetitions: int) -> list[Cell]:
    """Arms of a place one after the other, each repetition with another arm first."""
    found = []
    for repetition in range(repetitions):
        for place in places:
            turn = repetition % len(place)
            found += [Cell(suite, arm, params, repetition) for arm, params in place[turn:] + place[:turn]]
    return found


def _core_places(settings: Settings) -> Iterator[Place]:
    first = True  # what changes nothing from place to place, or is known already, is run at the first ones only
    for rows, columns, skew in itertools.product(settings.sizes, settings.columns, settings.skews):
        for size in settings.batch_rows:
            # Three stream rows for each master row fill the cache; arms without one skip most of this.
            filling = max(3, 3 * rows // size)
            common = {"rows": rows, "stream": "narrow", "batch_rows": size, "columns": columns, "skew": skew}
            warm = {**common, "warmup": settings.warmup or filling, "batches": settings.timed_batches(size)}
            for number, memory in enumerate(settings.memory):
                here = first and number == 0
                place = [one for arm in settings.arms for one in _core_arm(settings, arm, warm, memory, here)]
                if place:
                    yield place
            if settings.cold:
                cold = {**common, "warmup": 0, "batches": filling, "cold": True}
                for memory in settings.memory:
                    place = [one for arm in settings.arms for one in _core_arm(settings, arm, cold, memory, False)]
                    if place:
                        yield place
        first = False
    if "build" in settings.arms:
        for rows in settings.sizes:
            yield [("build", {"rows": rows, "memory": BUILD_MEMORY})]


def _core_arm(settings: Settings, arm: str, common: dict[str, Any], memory: str, first: bool) -> Place:
    """An arm in all its ways; ``first`` is True once for each size of batches."""
    params = {**common, "memory": memory}
    if arm.startswith("sweep"):
        if arm.endswith(GROUPS) and params["columns"] == "all":  # a group of all columns is the store itself
            return []
        place = [(arm, {**params, "direct": False, "threads": threads}) for threads in settings.our_threads]
        # With little memory, O_DIRECT reads a page for every fourth row: minutes for what is known already.
        return place + ([(arm, {**params, "direct": True, "threads": 1})] if first and arm == "sweep" else [])
    if arm.startswith("duckdb"):
        return [(arm, {**params, "threads": threads}) for threads in settings.threads]
    if first and arm in ("inl", "whole"):  # more or less memory changes nothing for them
        return [(arm, {**params, "memory": WHOLE if arm == "whole" else memory})]
    return []


def _spark_places(settings: Settings) -> Iterator[Place]:
    for size in settings.batch_rows:
        for stream in settings.streams:
            for columns in settings.columns:
                common = {"rows": settings.rows, "stream": stream, "batch_rows": size, "columns": columns}
                yield [
                    (arm, {**common, **_spark_batches(settings, arm, size, stream), **budget})
                    for arm in settings.arms
                    for budget in ([{"memory": memory} for memory in settings.memory] if arm == "semistream" else [{}])
                ]


def _spark_batches(settings: Settings, arm: str, size: int, stream: str) -> dict[str, int]:
    """Large batches first fill the cache ten times as fast as small ones would; then small ones, until Spark's own code
    is compiled. Arms that scan the master for every batch, whatever came before, need few of either.
    """
    rows = (24 if stream == "narrow" else 16) * settings.rows // 10  # that fill it
    largest = max(settings.batch_rows)
    if settings.warmup is None:  # small batches alone would fill it in hundreds of triggers
        largest = max(largest, min(MOST_FILLING, rows))
    if arm in NATIVE:
        return {"large": 1, "large_rows": largest, "warmup": 2, "batches": settings.batches or 3}
    filling = settings.warmup or max(1, rows // largest)
    return {
        "large": filling,
        "large_rows": largest,
        "warmup": 3 if size >= 1_000_000 else 12,
        "batches": settings.timed_batches(size),
    }


def _joins_places(settings: Settings) -> Iterator[Place]:
    assert settings.grid is not None
    for point in settings.grid.points():
        how = {"warm_seconds": settings.grid.warm_seconds, "seconds": settings.grid.seconds}
        yield [(arm, {**point, **how, "columns": settings.columns[0]}) for arm in settings.arms]


def _peers_places(settings: Settings) -> Iterator[Place]:
    for columns, size, memory in itertools.product(settings.columns, settings.batch_rows, settings.memory):
        params = {"rows": settings.rows, "stream": "narrow", "batch_rows": size, "columns": columns, "memory": memory}
        params |= {"warmup": settings.warmup or max(3, 3 * settings.rows // size), "threads": 1}
        yield [(arm, {**params, "batches": settings.timed_batches(size)}) for arm in settings.arms]


def missing(wanted: Sequence[Cell], results: Results) -> list[Cell]:
    """Cells without a result, or with an error."""
    done = {cell_of(result).key for result in results.done}
    return [cell for cell in wanted if cell.key not in done]


def prepare(settings: Settings, note: Callable[[str], None]) -> None:
    """Make the data before anything is timed; what is there is kept."""
    if settings.grid is not None:
        for rows in sorted({point["rows"] for point in settings.grid.points()}):
            note(f"data: a store of {rows:,} rows")
            BenchData(settings.data, rows).store()
        return
    check_room(settings)
    for rows in settings.sizes:
        _prepare(settings, settings.data_of(rows), note)


def _prepare(settings: Settings, data: BenchData, note: Callable[[str], None]) -> None:
    asked = [cell for cell in cells(settings) if cell.params["rows"] == data.rows]
    steps: list[tuple[str, Callable[[], object]]] = [
        ("the master, unsorted", data.unsorted),
        ("the store", data.store),
    ]
    groups = dict.fromkeys(cell.params["columns"] for cell in asked if reads_group(cell))
    steps += [(f"the store with a column group ({name})", partial(data.store, name)) for name in groups]
    steps.append(("is the memory enough?", lambda: check_budgets(asked, data)))
    if settings.suite == "core":
        if "duckdb_parquet" in settings.arms:
            steps.append(("the master as Parquet", data.master))
        if "duckdb_table" in settings.arms:
            steps.append(("DuckDB's table", data.duckdb_table))
    elif settings.suite == "peers":
        from semistream_lab.peers import peer

        for arm, columns in itertools.product(settings.arms, settings.columns):
            steps.append((f"{arm}'s copy of the master", partial(peer(arm).prepare, data, columns)))
    else:
        steps.append(("the master as Parquet", data.master))
        if "bucketed" in settings.arms:
            make = Cell("spark", "make_bucketed", {"rows": data.rows})
            steps.append(("Spark's bucketed table", lambda: data.bucketed().exists() or run_cell(make, settings)))
        from semistream_lab.arms_spark import stream_plan

        plans = {stream_plan(cell.params) for cell in asked}
        steps += [(f"the stream {plan.name}", partial(data.stream, plan)) for plan in sorted(plans, key=str)]
    for what, step in steps:
        note(f"data of {data.rows:,} rows: {what}")
        step()


def run(settings: Run, wanted: Sequence[Cell], results: Results, start: Start, end: End) -> None:
    """Run some cells; one that breaks is noted and the next run, but arms that do not agree end everything."""
    facts = environment(settings.data)
    settings.out.mkdir(parents=True, exist_ok=True)
    _note_run(settings, facts)
    for cell in wanted:
        start(cell)
        try:
            result = run_cell(cell, settings)
        except BenchmarkError as error:
            result = {"error": str(error)}
        results.add(cell, facts["id"], result)
        end(cell, result)
        check_agreement(line for line in results.done if cell_of(line).place == cell.place)


def run_cell(cell: Cell, settings: Run) -> dict[str, Any]:
    """Run one cell in a fresh process."""
    variables = dict(os.environ)
    if cell.suite not in ("spark", "pipeline"):
        variables |= dict.fromkeys(ONE_THREAD, str(cell.params.get("threads", 1)))
    command = [sys.executable, "-m", "semistream_lab.run_once", str(settings.data), cell.to_json()]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=variables, timeout=settings.timeout_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"{cell.label}: stopped after {settings.timeout_seconds:,.0f} seconds") from None
    if done.returncode != 0:
        last = [line for line in done.stderr.strip().splitlines() if line.strip()][-1:] or ["nothing said"]
        settings.out.mkdir(parents=True, exist_ok=True)
        log = settings.out / f"failed-{cell.suite}-{cell.arm}.log"
        log.write_text(f"{cell.to_json()}\n{done.stderr}", encoding="utf-8")
        raise BenchmarkError(f"{cell.label}: ended with code {done.returncode}: {last[0][:600]} (more in {log.name})")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _note_run(settings: Run, facts: dict[str, Any]) -> None:
    """Add this machine and this command to ``run.json``."""
    path = settings.out / "run.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"environments": {}, "commands": []}
    known["environments"][facts["id"]] = facts
    known["commands"] = list(dict.fromkeys([*known["commands"], settings.command]))
    path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
