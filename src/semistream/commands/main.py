"""The command line: commands call the library and show what it returns; heavy imports wait until one needs them."""

import sys
from importlib.metadata import entry_points
from typing import Annotated

import typer

from semistream import __version__, kernels
from semistream.commands import changes, doctor, pipelines, planning, stores
from semistream.commands.command_line import Commands
from semistream.errors import ArgumentError, SemistreamError

EXAMPLES = """[bold]Examples[/]

[cyan]semistream build products.parquet products --key id[/]

[cyan]semistream get products 1001 1002[/]

[cyan]semistream upsert products changes.csv[/]

[cyan]semistream plan --master products --rate 200000[/]

[cyan]semistream run sales.toml[/]

[bold]Exit codes[/]

0: done. 1: something was wrong with data, a store, a state or the machine. 2: the command or its file is wrong.
"""
app = Commands(
    name="semistream",
    help="Join a fast stream with master data too big for memory, inside a memory budget.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for group in (stores, changes, planning, pipelines, doctor):
    app.add_typer(group.app)
others = entry_points(group="semistream.commands")  # of other distributions, such as semistream-lab
for found in others:
    app.add_typer(found.load())


def of_the_laboratory(context: typer.Context) -> None:
    """Where semistream-lab is not installed, its commands say what to install."""
    raise ArgumentError(
        f"'semistream {context.info_name}' is a command of semistream-lab; run: pip install ./semistream/lab"
    )


if "lab" not in {found.name for found in others}:
    anything = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    for name in ("bench", "calibrate", "demo", "generate", "lab", "tune"):
        app.command(name, hidden=True, context_settings=anything)(of_the_laboratory)


def main() -> None:
    """Entry point: run the command, turn our errors into one message."""
    kernels.speak_always()
    try:
        app()
    except (SemistreamError, OSError) as error:
        print("\n".join([f"semistream: {error}", *getattr(error, "__notes__", ())]), file=sys.stderr)
        sys.exit(error.exit_code if isinstance(error, SemistreamError) else 1)


@app.callback(invoke_without_command=True)
def options(version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False) -> None:
    """Options that stand before a command."""
    if version:
        print(f"semistream {__version__}")
        raise typer.Exit
