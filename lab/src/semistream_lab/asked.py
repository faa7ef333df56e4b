"""Checks of what a benchmark is asked for: what cannot work is refused before anything is made or run.

>>> once((200, 2000, 200))
(200, 2000)
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from semistream.budget import check_bytes, format_bytes, parse_bytes
from semistream.errors import ArgumentError
from semistream_lab.errors import SettingError

if TYPE_CHECKING:
    from semistream_lab.cells import Cell
    from semistream_lab.data import BenchData

T = TypeVar("T")


def once(values: Iterable[T]) -> tuple[T, ...]:
    """Every value once: the same cell twice would be run twice, and compared with itself."""
    return tuple(dict.fromkeys(values))


def check_numbers(least: float, **given: float | None) -> None:
    """Raise an error where a number is less than ``least``, or is none."""
    for name, value in given.items():
        if value is not None and not (math.isfinite(value) and value >= least):
            raise SettingError(f"{name}={value:g} must be at least {least:g}")


def check_seconds(**given: float | None) -> None:
    """Raise an error where a time is not positive."""
    for name, value in given.items():
        if value is not None and not value > 0:
            raise SettingError(f"{name}={value:g} must be more than 0 seconds")


def check_memory(*memory: str) -> None:
    """Raise an error where one is no size and no share."""
    for text in memory:
        try:
            check_bytes(text)
        except ArgumentError as error:
            raise SettingError(str(error)) from None


def check_directories(**given: Path) -> None:
    """Raise an error where one cannot be written to, or made."""
    for name, path in given.items():
        there = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
        if not there.is_dir():
            raise SettingError(f"--{name} {path}: {there} is a file; name a directory")
        if not os.access(there, os.W_OK | os.X_OK):
            raise SettingError(f"--{name} {path}: {there} cannot be written to")


def check_budgets(cells: Iterable[Cell], data: BenchData) -> None:
    """Raise an error where a join of ours cannot work in its memory; the store is there."""
    from semistream.joins import JOINS
    from semistream.lookup.bind import bind
    from semistream.lookup.spec import LookupSpec
    from semistream.stores import MasterStore
    from semistream_lab.cells import algorithm_of, enriched

    store, stream = MasterStore.open(data.store()), data.load.stream(0, 1).schema
    for cell in cells:
        name = algorithm_of(cell.arm)
        if name not in JOINS or "memory" not in cell.params:
            continue
        memory = cell.params["memory"]
        plan = bind(LookupSpec(on="key", columns=enriched(cell.params["columns"])), stream, store)
        given, least = parse_bytes(memory, whole=store.bytes), JOINS[name].least_bytes(store.facts, plan)
        if given < least:
            raise SettingError(
                f"--memory {memory} of a store of {format_bytes(store.bytes)} is {format_bytes(given)}; {cell.arm} "
                f"needs {format_bytes(least)} at least: give more, or more --rows"
            )
