"""What all commands share: forms of values, local paths, bars while they work, tables when they are done, and errors.

The library says ``replace=True`` or ``format='plain'``; whoever typed a command knows ``--replace`` and ``--format``.
"""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from semistream.errors import ArgumentError, SemistreamError, local_path

if TYPE_CHECKING:
    from rich.text import Text

    from semistream.stores.paged.store import Progress

Store = Annotated[Path, typer.Argument(metavar="STORE", help="The directory of a store.")]
_VALUE = r"('[^']*'|\"[^\"]*\"|\[[^\]]*\]|[^\s;,:)]+)?"


def listed(text: str | None) -> tuple[str, ...]:
    """The parts of a list that was given with commas."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def pairs(texts: list[str] | None) -> dict[str, str]:
    """NAME=VALUE arguments."""
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ArgumentError(f"--set {text!r} must be NAME=VALUE, such as --set shift_every=200000")
        found[name.strip()] = value
    return found


class Commands(typer.Typer):
    """A group of commands whose paths and messages are those of a command line."""

    def command(self, *arguments: Any, **settings: Any) -> Callable[[Any], Any]:
        register = super().command(*arguments, cls=_Command, **settings)

        def add(function: Callable[..., None]) -> Callable[..., None]:
            @functools.wraps(function)
            def call(**values: Any) -> None:
                function(**{name: _checked(name, value) for name, value in values.items()})

            register(call)
            return function

        return add


class _Command(TyperCommand):
    def invoke(self, ctx: Any) -> Any:
        """Run the command; its errors name what was typed."""
        try:
            return super().invoke(ctx)
        except SemistreamError as error:
            error.args = (in_flags(str(error), self._shown()), *error.args[1:])
            raise

    def _shown(self) -> dict[str, str]:
        """{name in Python: as it is typed} of its parameters."""
        shown = {}
        for parameter in self.params:
            name, typed = str(parameter.name), parameter.opts[0]
            if parameter.param_type_name == "option":
                shown[name] = shown[typed.removeprefix("--").replace("-", "_")] = typed
            else:
                shown[name] = parameter.metavar or name.upper()
        return shown


def _checked(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_checked(name, one) for one in value]
    return local_path(name, value) if isinstance(value, Path) else value


def in_flags(message: str, shown: dict[str, str]) -> str:
    """A message in which a command's arguments are written as they are typed.

    >>> in_flags("the store is there; give replace=True, or keep='all'", {"replace": "--replace", "keep": "--keep"})
    "the store is there; give --replace, or --keep 'all'"
    """
    if not shown:
        return message

    def typed(found: re.Match[str]) -> str:
        name, value = found.groups()
        return shown[name] if value in (None, "True") else f"{shown[name]} {value}"

    return re.sub(rf"(?<![\w.(-])(?:--)?({'|'.join(map(re.escape, shown))})={_VALUE}", typed, message)


@contextmanager
def progress_bars() -> "Iterator[Progress]":
    """A bar for each phase, on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def show(phase: str, done: int, total: int | None) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=total)
            bars.update(tasks[phase], completed=done, total=total)

        yield show


def show_table(title: str, header: Sequence[str], lines: "Sequence[Sequence[str | Text]]") -> None:
    """Print a table; values are shown as they are, whatever brackets they hold."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Text(title) if title else None
    table = Table(*header, title=shown, title_justify="left", box=SIMPLE_HEAD, show_header=bool(header))
    for line in lines:
        table.add_row(*(Text(value) if isinstance(value, str) else value for value in line))
    Console().print(table)
