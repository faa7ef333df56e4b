"""`semistream calibrate`, `plan` and `tune`: the planner on the command line."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semistream.errors import ArgumentError, choose
from semistream.lab.options import listed
from semistream.lab.terminal import progress_bars, show_table

if TYPE_CHECKING:
    import pyarrow as pa

    from semistream.contracts import JoinPlan, Profile
    from semistream.planner.capacity import Capacity
    from semistream.planner.tuning import Trial
    from semistream.stores import MasterStore

Master = Annotated[Path, typer.Option("--master", metavar="STORE", help="The directory of a store.")]
Skew = Annotated[
    float | None, typer.Option("--skew", help="Zipf exponent of the stream's keys.", show_default="1, or the sample's")
]
Sample = Annotated[Path | None, typer.Option("--sample", help="Rows of the stream: Parquet, CSV or Arrow.")]
On = Annotated[str | None, typer.Option("--on", help="The sample's key columns.", show_default="as in the master")]
StreamColumns = Annotated[
    str | None, typer.Option("--columns", help="Master columns to add, separated by commas.", show_default="all")
]
Ranked = Annotated[
    bool, typer.Option("--ranked", help="The master's keys lie in order of popularity, as where new keys are hot.")
]
_SAMPLE_ROWS = 2_000_000
_BATCH = 20_000


def calibrate(
    out: Annotated[
        Path | None, typer.Option("--out", help="Where it is written.", show_default="the user's cache")
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--directory", help="A directory on the disk to measure.", show_default="temporary")
    ] = None,
    joins: Annotated[
        str | None,
        typer.Option("--joins", help="Some joins, separated by commas; others stay as known.", show_default="all"),
    ] = None,
) -> None:
    """Measure what the cost models need to know of this machine; twenty minutes, best while it is idle.

    [bold]Examples[/]

    [cyan]semistream calibrate --directory /data[/]

    [cyan]semistream calibrate --joins sweep[/]
    """
    from semistream.joins import JOINS
    from semistream.planner.calibration import calibrate as run
    from semistream.planner.machine import calibration_path
    from semistream.planner.rates import current_costs

    known, chosen = tuple(JOINS), listed(joins)
    for name in chosen:
        choose("--joins", name, known)
    before = current_costs() if chosen else None
    with progress_bars() as progress:
        costs = run(
            directory, joins=chosen or known, report=lambda _, done, total: progress("calibrating", done, total)
        )
    if before is not None:
        costs = costs.completed_by(before)
    path = out or calibration_path()
    costs.save(path)
    lines = [
        [name, *(f"{1e6 * value:.3g}" for value in (terms.read, terms.page, terms.miss, terms.hit, terms.piece))]
        for name, terms in costs.joins.items()
    ]
    show_table("µs of each join, beside the device", ["join", "a read", "a page", "a miss", "a hit", "a piece"], lines)
    steps = [[name, f"{1e9 * value:,.0f} ns"] for name, value in (*costs.steps.items(), *costs.keys.items())]
    show_table("a tuple: the papers' steps, and encoding a key by its type", [], steps)
    print(f"written to {path}")


def plan(
    master: Master,
    rate: Annotated[float | None, typer.Option("--rate", help="Rows/s that one core must reach.")] = None,
    memory: Annotated[str | None, typer.Option("--memory", help="Memory that is there, such as 256MB or 10%.")] = None,
    skew: Skew = None,
    sample: Sample = None,
    on: On = None,
    columns: StreamColumns = None,
    ranked: Ranked = False,
    row_bytes: Annotated[int, typer.Option("--row-bytes", help="Bytes of a stream row, without a sample.")] = 20,
) -> None:
    """How much memory a rate takes, or which rate some memory gives, and by which join.

    [bold]Examples[/]

    [cyan]semistream plan --master products --rate 200000 --skew 1.0[/]

    [cyan]semistream plan --master products --memory 256MB --sample sales.parquet --on product[/]
    """
    if (rate is None) == (memory is None):
        raise ArgumentError("give either --rate, to learn the least memory, or --memory, to learn the rate")
    from semistream.budget import parse_bytes
    from semistream.planner.capacity import expected, least_memory

    rows = None if sample is None else _batches(sample)
    store, question, profile = _question(master, skew, rows, on, columns, row_bytes, ranked=ranked)
    if rate is not None:
        _say(least_memory(store, question, rate, profile), store)
    else:
        _say(expected(store, question, parse_bytes(str(memory), whole=store.bytes), profile), store)


def tune(
    join: Annotated[str, typer.Argument(metavar="JOIN", help="mesh, tuned_xhybrid or sscj.")],
    master: Master,
    memory: Annotated[str, typer.Option("--memory", help="The budget.")] = "10%",
    rate: Annotated[float | None, typer.Option("--rate", help="mesh only: the least memory for a rate.")] = None,
    skew: Skew = None,
    sample: Sample = None,
    on: On = None,
    columns: StreamColumns = None,
    ranked: Ranked = False,
    row_bytes: Annotated[int, typer.Option("--row-bytes", help="Bytes of a stream row, without a sample.")] = 20,
    measured: Annotated[bool, typer.Option("--measure", help="Run every setting on the sample, too.")] = False,
    threshold: Annotated[bool, typer.Option("--threshold", help="sscj only: measure its thresholds.")] = False,
    seconds: Annotated[float, typer.Option("--seconds", help="Measured seconds of each setting.")] = 1.0,
    plot: Annotated[Path | None, typer.Option("--plot", help="tuned_xhybrid only: draw the surface as SVG.")] = None,
) -> None:
    """Find the best settings of one of the papers' joins, by its model or by measurement.

    [bold]Examples[/]

    [cyan]semistream tune mesh --master products --rate 100000[/]

    [cyan]semistream tune tuned_xhybrid --master products --sample sales.parquet --measure --plot surface.svg[/]
    """
    from semistream.budget import format_bytes, parse_bytes
    from semistream.planner import tuning

    tuning.trials(join)  # refuses what cannot be tuned
    rows = None if sample is None else _batches(sample)
    store, question, profile = _question(master, skew, rows, on, columns, row_bytes, ranked=ranked)
    if rate is not None:
        if join != "mesh":
            raise ArgumentError(f"--rate is for mesh, not for {join}; 'semistream plan' answers it for all joins")
        size, settings = tuning.least_memory_for_mesh(store, question, rate)
        print(f"mesh reaches {rate:,.0f} rows/s a core with {format_bytes(size)}, as {settings}")
        return
    if (measured or threshold) and rows is None:
        raise ArgumentError("a measurement needs a stream; give --sample")
    stream = (lambda: itertools.cycle(rows)) if rows is not None and (measured or threshold) else None
    with progress_bars() as progress:
        trials = tuning.tune(
            join,
            store,
            question,
            parse_bytes(memory, whole=store.bytes),
            profile,
            settings=tuning.thresholds(0.3) if threshold and join == "sscj" else None,
            stream=stream,
            seconds=seconds,
            report=lambda done, total: progress(f"trying settings of {join}", done, total),
        )
    _show_trials(trials)
    if plot is not None:
        from semistream.lab.surface import surface

        plot.write_text(surface(trials), encoding="utf-8")
        print(f"drawn in {plot}")


def _question(
    master: Path,
    skew: float | None,
    sample: list[pa.RecordBatch] | None,
    on: str | None,
    columns: str | None,
    row_bytes: int,
    *,
    ranked: bool,
) -> tuple[MasterStore, JoinPlan, Profile]:
    """The store, the join that is asked about and what is known of the stream."""
    from semistream.contracts import JoinPlan, Profile
    from semistream.planner.capacity import skew_of, stream_schema
    from semistream.stores import MasterStore

    store = MasterStore.open(master)
    if skew is not None and skew < 0:
        raise ArgumentError(f"--skew {skew:g} must be 0 or more")
    names = list(store.key) if on is None else list(listed(on))
    if len(names) != len(store.key):
        raise ArgumentError(f"--on names {len(names)} columns, the key of {master} has {len(store.key)}: {store.key}")
    schema = stream_schema(store, row_bytes) if sample is None else sample[0].schema
    mapping = dict(zip(store.key if sample is None else names, store.key, strict=True))
    wanted = None if columns is None else list(listed(columns))
    question = JoinPlan.make(schema, store.schema, store.codec, mapping, "left", wanted, suffix="_master")
    if skew is None and sample is not None:
        import numpy as np

        codes = [store.codec.encode([b.column(n) for n in question.stream_keys])[0] for b in sample]
        keys = sum(entry.keys for entry in store.manifest.segments)
        skew = skew_of(np.concatenate(codes), keys)
    return store, question, Profile(1.0 if skew is None else skew, ranked)


def _batches(path: Path) -> list[pa.RecordBatch]:
    """The first rows of a sample."""
    from semistream.stores.sources import open_source

    found: list[pa.RecordBatch] = []
    rows = 0
    for batch in open_source(path, None).batches():
        found.extend(batch.slice(start, _BATCH) for start in range(0, batch.num_rows, _BATCH))
        rows += batch.num_rows
        if rows >= _SAMPLE_ROWS:
            break
    if rows == 0:
        raise ArgumentError(f"{path} has no rows; a sample needs some of the stream")
    return found


def _say(capacity: Capacity, store: MasterStore) -> None:
    from semistream.budget import format_bytes
    from semistream.planner.machine import calibration_path

    choice, said = capacity.choice, capacity.choice.prediction
    share = capacity.memory_bytes / max(1, store.bytes)
    reads = "nothing" if said.tuples_per_read == float("inf") else f"once for {said.tuples_per_read:,.0f} tuples"
    by = "measured on this machine" if calibration_path().exists() else "of another machine; run 'semistream calibrate'"
    lines = [
        ["memory", f"{format_bytes(capacity.memory_bytes)}, {share:.1%} of the master"],
        ["algorithm", f"{choice.join.name}: {choice.reason}"],
        ["rate", f"{capacity.rows_per_second:,.0f} rows/s a core, in the join alone"],
        ["stream", f"Zipf exponent {capacity.profile.skew:.2f}"],
        ["hits", f"{said.hit_ratio:.0%} from memory; reads {reads}"],
        ["model", said.remark],
        *[[f"  {name}", format_bytes(size)] for name, size in said.parts.items()],
        ["costs", by],
    ]
    show_table(f"{store.path}, {store.rows:,} rows, {format_bytes(store.bytes)}", [], lines)


def _show_trials(trials: list[Trial]) -> None:
    def number(value: float | None) -> str:
        return "–" if value is None else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"

    header = ["settings", "tuples a page", "rows/s", "measured: tuples a page", "rows/s"]
    lines = [
        [
            ", ".join(f"{name} {value}" for name, value in vars(trial.settings).items()),
            number(trial.tuples_per_page),
            number(trial.rows_per_second),
            number(trial.measured_tuples_per_page),
            number(trial.measured_rows_per_second),
        ]
        for trial in trials[:12]
    ]
    show_table(f"the best of {len(trials)}", header, lines)
