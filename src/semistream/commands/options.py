"""What command lines have in common: options that several commands take, and the forms in which values are typed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from semistream.errors import ArgumentError

Store = Annotated[Path, typer.Argument(metavar="STORE", help="The directory of a store.")]


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
