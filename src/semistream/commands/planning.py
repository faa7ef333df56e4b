"""`semistream plan`: the planner on the command line."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

import semistream
from semistream.budget import format_bytes, parse_bytes
from semistream.commands.command_line import Commands, listed, show_table
from semistream.errors import ArgumentError, counted

if TYPE_CHECKING:
    import pyarrow as pa

    from semistream.joins.contract import Profile
    from semistream.lookup.bind import LookupPlan
    from semistream.lookup.choose import Choice

app = Commands()

Master = Annotated[Path, Option(metavar="STORE", help="The directory of a store.")]
Skew = Annotated[float | None, Option(help="Zipf exponent of the stream's keys.", show_default="1, or the sample's")]
Sample = Annotated[Path | None, Option(help="Rows of the stream: Parquet, CSV or Arrow.")]
On = Annotated[str | None, Option(help="The sample's key columns.", show_default="as in the master")]
StreamColumns = Annotated[str | None, Option(help="Master columns to add, separated by commas.", show_default="all")]
Ranked = Annotated[
    bool, Option("--ranked", help="The master's keys are in order of popularity, as when new keys are hot.")
]
RowBytes = Annotated[int, Option(help="Bytes of a stream row, without a sample.")]
_SAMPLE_ROWS = 2_000_000
_BATCH = 20_000


@app.command(rich_help_panel="Planning")
def plan(
    master: Master,
    rate: Annotated[float | None, Option(help="Rows/s that one core must reach.")] = None,
    memory: Annotated[str | None, Option(help="Available memory, such as 256MB or 10%.")] = None,
    skew: Skew = None,
    sample: Sample = None,
    on: On = None,
    columns: StreamColumns = None,
    ranked: Ranked = False,
    row_bytes: RowBytes = 20,
) -> None:
    """Show how much memory a rate needs, or which rate some memory allows, and with which join.

    [bold]Examples[/]

    [cyan]semistream plan --master products --rate 200000 --skew 1.0[/]

    [cyan]semistream plan --master products --memory 256MB --sample sales.parquet --on product[/]
    """
    if (rate is None) == (memory is None):
        raise ArgumentError("give either --rate, to learn the least memory, or --memory, to learn the rate")
    from semistream.planner.capacity import expected, least_memory

    rows = None if sample is None else read_sample(sample)
    store, question, profile = question_of(master, skew, rows, on, columns, row_bytes, ranked=ranked)
    if rate is not None:
        _say(least_memory(question.reads(store), question, rate, profile), store)
    else:
        size = parse_bytes(str(memory), whole=store.bytes)
        _say(expected(question.reads(store), question, size, profile), store)


def question_of(
    master: Path,
    skew: float | None,
    sample: "list[pa.RecordBatch] | None",
    on: str | None,
    columns: str | None,
    row_bytes: int,
    *,
    ranked: bool,
) -> "tuple[semistream.MasterStore, LookupPlan, Profile]":
    """The store, the join that is asked about and what is known of the stream."""
    from semistream.joins.contract import Profile
    from semistream.lookup.bind import bind
    from semistream.lookup.spec import LookupSpec
    from semistream.planner.capacity import skew_of, stream_schema

    store = semistream.MasterStore.open(master)
    if skew is not None and skew < 0:
        raise ArgumentError(f"--skew {skew:g} must be 0 or more")
    names = store.key if on is None else listed(on)
    if len(names) != len(store.key):
        raise ArgumentError(
            f"--on names {counted(len(names), 'column')}, the key of {master} has {len(store.key)}: {store.key}"
        )
    schema = stream_schema(store, row_bytes) if sample is None else sample[0].schema
    mapping = dict(zip(store.key if sample is None else names, store.key, strict=True))
    wanted = None if columns is None else listed(columns)
    question = bind(LookupSpec(on=mapping, columns=wanted, suffix="_master"), schema, store)
    if skew is None and sample is not None:
        import numpy as np

        codes = [store.codec.encode([b.column(n) for n in question.stream_keys])[0] for b in sample]
        keys = sum(entry.keys for entry in store.manifest.segments)
        skew = skew_of(np.concatenate(codes), keys)
    return store, question, Profile(1.0 if skew is None else skew, ranked)


def read_sample(path: Path) -> "list[pa.RecordBatch]":
    from semistream.stores.sources import open_source

    found: list[pa.RecordBatch] = []
    for batch in open_source(path, None).batches():
        found.extend(batch.slice(start, _BATCH) for start in range(0, batch.num_rows, _BATCH))
        if sum(part.num_rows for part in found) >= _SAMPLE_ROWS:
            break
    if not found:
        raise ArgumentError(f"{path} has no rows; a sample needs some of the stream")
    return found


def _say(choice: "Choice", store: "semistream.MasterStore") -> None:
    from semistream.planner.machine import calibration_path

    said = choice.prediction
    share = choice.memory_bytes / max(1, store.bytes)
    reads = "nothing" if said.tuples_per_read == float("inf") else f"once per {said.tuples_per_read:,.0f} rows"
    by = "measured on this machine" if calibration_path().exists() else "of another machine; run 'semistream calibrate'"
    lines = [
        ["memory", f"{format_bytes(choice.memory_bytes)}, {share:.1%} of the master"],
        ["algorithm", f"{choice.join.name}: {choice.reason}"],
        ["rate", f"{choice.rows_per_second:,.0f} rows/s per core, in the join alone"],
        ["stream", f"Zipf exponent {choice.profile.skew:.2f}"],
        ["hits", f"{said.hit_ratio:.0%} from memory; reads {reads}"],
        ["model", said.remark],
        *[[f"  {name}", format_bytes(size)] for name, size in said.parts.items()],
        ["costs", by],
    ]
    show_table(f"{store.path}, {store.rows:,} rows, {format_bytes(store.bytes)}", [], lines)
