"""`semistream generate`: a workload as files; heavy imports wait until the command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from semistream.commands.command_line import Commands, pairs
from semistream_lab.commands import given

app = Commands()

_TABLES = "Which master: partsupp (with lineitem) or customer (with orders)."


@app.command(rich_help_panel="Workloads")
def generate(
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD", help="zipf, retail, tpch or weather.")],
    out: Annotated[Path, typer.Option("--out", help="Where master/, stream/ and workload.json go.")],
    rows: Annotated[
        int | None, typer.Option("--rows", help="Rows of the master (not for tpch).", show_default="1000000")
    ] = None,
    stream_rows: Annotated[
        int | None, typer.Option("--stream-rows", help="Rows of the stream.", show_default="1000000; of tpch all")
    ] = None,
    file_format: Annotated[
        str, typer.Option("--format", help="parquet, csv, json, or reports: weather in its fixed-width format.")
    ] = "parquet",
    seed: Annotated[int | None, typer.Option("--seed", help="Other rows with the same features.")] = None,
    skew: Annotated[
        float | None, typer.Option("--skew", help="Zipf exponent of the stream's keys: zipf, retail.")
    ] = None,
    master_skew: Annotated[
        float | None, typer.Option("--master-skew", help="Zipf exponent of the rows a key has in the master: zipf.")
    ] = None,
    distinct: Annotated[
        int | None, typer.Option("--distinct", help="Keys of a master with several rows per key.")
    ] = None,
    absent: Annotated[
        float | None, typer.Option("--absent", help="Share of stream rows without a match: zipf, retail.")
    ] = None,
    scale_factor: Annotated[float | None, typer.Option("--scale-factor", help="Of tpch; 1 is about 1 GB.")] = None,
    master_table: Annotated[str | None, typer.Option("--master-table", help=_TABLES)] = None,
    cache: Annotated[
        Path | None, typer.Option("--cache", help="Where tpch keeps its tables.", show_default="OUT/tpch")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other option of the workload.")
    ] = None,
    rows_per_file: Annotated[int, typer.Option("--rows-per-file", help="Rows of a file.")] = 1_000_000,
    replace: Annotated[bool, typer.Option("--replace", help="Replace what an earlier run wrote to OUT.")] = False,
) -> None:
    """Write the master and the stream of a workload as files, the same for the same options.

    [bold]Examples[/]

    [cyan]semistream generate zipf --out data --rows 1000000 --skew 1.2 --absent 0.05[/]

    [cyan]semistream generate zipf --out many --distinct 50000 --master-skew 0.8 --set shift_every=200000[/]

    [cyan]semistream generate retail --out shop --rows 100000 --stream-rows 500000 --format json[/]

    [cyan]semistream generate tpch --out tpch --scale-factor 0.1 --master-table customer[/]

    [cyan]semistream generate weather --out clouds --rows 200000 --format reports[/]
    """
    from semistream.commands.command_line import progress_bars
    from semistream_lab.workloads import make_workload
    from semistream_lab.workloads.files import write_workload

    options: dict[str, Any] = {
        "rows": rows,
        "seed": seed,
        "skew": skew,
        "master_skew": master_skew,
        "distinct": distinct,
        "absent": absent,
        "scale_factor": scale_factor,
        "master_table": master_table,
        "directory": cache or (out / "tpch" if workload == "tpch" else None),
    }
    load = make_workload(workload, **given(options), **pairs(option or []))
    with progress_bars() as progress:
        load.prepare(progress)
        asked = stream_rows if stream_rows is not None else load.stream_rows or 1_000_000
        write_workload(load, out, asked, file_format, rows_per_file=rows_per_file, replace=replace, progress=progress)
    print(f"{out}: {load.master_rows:,} master rows, {asked:,} stream rows")
    keys = " ".join(f"--key {name}" for name in load.key)
    if file_format in ("parquet", "csv"):
        print(f"next: semistream build {out / 'master'} {out / 'store'} {keys}")
