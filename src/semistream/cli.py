"""The command line: every command calls one function of the library and shows what it returns.

Errors of semistream are one message on standard error and exit code 2. Heavy imports wait until a command needs them.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semistream import __version__
from semistream.errors import ArgumentError, SemistreamError, choose
from semistream.lab.commands import bench

if TYPE_CHECKING:
    import pyarrow as pa

    from semistream.stores import MasterStore
    from semistream.stores.paged import Progress

EXAMPLES = """
[bold]Examples[/]

  semistream build products.parquet products --key id
  semistream inspect products
  semistream get products 1001 1002
  semistream upsert products changes.csv
  semistream bench core --quick
"""

app = typer.Typer(
    name="semistream",
    help="Join a fast stream with master data too big for memory, inside a memory budget.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(bench, name="bench")
