"""Packages that only some commands need: looked for before any work is done, and named with what to install.

>>> need("a benchmark", "pyarrow")
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from semistream.errors import SemistreamError

if TYPE_CHECKING:
    from semistream_lab.cells import Cell


_EXTRAS = {
    "deltalake": "pipeline",
    "pandas": "pipeline",
    "pyspark": "pipeline",
    "sqlglot": "pipeline",
}
PIPELINE = ("pyspark", "pandas", "deltalake", "sqlglot")


def need(what: str, *packages: str, otherwise: str = "") -> None:
    """Raise an error that says what to install, when one of the packages is missing."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        extras = ",".join(sorted({_EXTRAS[name] for name in missing if name in _EXTRAS}))
        package = f"'semistream[{extras}]'" if extras else "semistream-lab"
        raise SemistreamError(f"{what} needs {', '.join(missing)}; run: pip install {package}{otherwise}")


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
