"""Packages that the cells of a benchmark need: looked for before any work is done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from semistream.commands.needs import PIPELINE, need

if TYPE_CHECKING:
    from semistream_lab.cells import Cell


def need_for(cells: Iterable[Cell]) -> None:
    """Raise an error that says what to install, for cells and for the report at their end."""
    need("the report of a benchmark", "matplotlib")
    for cell in cells:
        otherwise = ", or name other arms by --arms" if cell.arm.startswith("duckdb") else ""
        need(f"{cell.arm} of `bench {cell.suite}`", *_packages(cell), otherwise=otherwise)


def _packages(cell: Cell) -> Iterator[str]:
    if cell.suite in ("spark", "pipeline"):
        yield from PIPELINE
    if cell.arm.startswith("duckdb"):
        yield "duckdb"
