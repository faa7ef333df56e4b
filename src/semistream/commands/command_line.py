"""What all commands share: forms of values, local paths, messages of flags where the library speaks of arguments.

The library says ``replace=True`` or ``format='plain'``; whoever typed a command knows ``--replace`` and ``--format``.
A command knows its own options, so its errors are translated here, once for all of them.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.models import OptionInfo, ParameterInfo

from semistream.errors import ArgumentError, SemistreamError, local_path

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
        """As `typer.Typer.command`."""
        register = super().command(*arguments, **settings)

        def add(function: Any) -> Any:
            register(_at_the_command_line(function))
            return function

        return add


def _at_the_command_line(function: Callable[..., None]) -> Callable[..., None]:
    shown = _shown(function)

    @functools.wraps(function)
    def call(**values: Any) -> None:
        try:
            function(**{name: _checked(name, value) for name, value in values.items()})
        except SemistreamError as error:
            error.args = (in_flags(str(error), shown), *error.args[1:])
            raise

    return call


def _checked(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_checked(name, one) for one in value]
    return local_path(name, value) if isinstance(value, Path) else value


def _shown(function: Callable[..., None]) -> dict[str, str]:
    """{name in Python: as it is typed} of a command's parameters."""
    shown = {}
    hints = typing.get_type_hints(function, include_extras=True)
    for name in inspect.signature(function).parameters:
        about = next((one for one in getattr(hints[name], "__metadata__", ()) if isinstance(one, ParameterInfo)), None)
        if isinstance(about, OptionInfo):
            given = [about.default, *(about.param_decls or ())]  # what stands first is taken for a default at first
            flags = [text for text in given if isinstance(text, str) and text.startswith("--")]
            flag = flags[0].partition("/")[0] if flags else f"--{name.replace('_', '-')}"
            shown[name] = shown[flag[2:].replace("-", "_")] = flag
        else:
            shown[name] = (about.metavar if about is not None else None) or name.upper()
    return shown


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
