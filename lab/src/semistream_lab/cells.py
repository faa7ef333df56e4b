"""A cell: one arm, its parameters and the number of the repetition; one line of the results, one process.

>>> cell = Cell("core", "sweep", {"rows": 1000, "batch_rows": 100}, 0)
>>> Cell.from_json(cell.to_json()) == cell
True
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from semistream.budget import format_bytes
from semistream_lab.errors import SettingError

ENRICHED = ("surrogate", "price", "vendor")  # what a warehouse load takes from the master
# The master's columns that every arm adds, by the name of the choice.
COLUMNS = {
    "narrow": ENRICHED[:2],
    "three": ENRICHED,
    "text": ("description",),
    "all": (*ENRICHED, "updated", "active", "description"),
}
COLUMN_WORDS = {"narrow": "two columns", "three": "three columns", "text": "one text column", "all": "all columns"}
GROUPS = "_groups"  # at the end of an arm whose store has a column group of the columns asked for
# Parameters that decide which rows a batch has, and which come out.
PLACE = ("rows", "stream", "batch_rows", "columns", "skew", "layout", "workload", "options", "domain", "master_skew")

LABELLED = ("buffer_share", "settings", "target", "arrival", "speed")  # what else tells cells of a figure apart


@dataclass(frozen=True)
class Cell:
    """What one process runs."""

    suite: str
    arm: str
    params: dict[str, Any]
    repetition: int = 0

    @property
    def key(self) -> str:
        """The same text for the same cell, whatever the order of its parameters."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def place(self) -> tuple[Any, ...]:
        """Arms at the same place must give the same rows."""
        values = (self.params.get(name) for name in PLACE)
        return (self.suite, *(str(value) if isinstance(value, dict) else value for value in values))

    @property
    def label(self) -> str:
        """The cell in a few words, for a progress bar."""
        params = self.params
        parts = [self.arm]
        if "batch_rows" in params:
            parts.append(f"{params['batch_rows']:,}-row batches")
        if self.suite == "spark" and "stream" in params:
            parts.append(params["stream"])
        if "layout" in params:
            parts.append(f"{params['rows']:,} rows, skew {params['skew']:g}, {params['layout']}")
        if "memory" in params:
            given = params["memory"]
            parts.append(given if isinstance(given, str) else format_bytes(given))
        if self.suite == "lab":
            parts += [f"{name} {params[name]}" for name in LABELLED if name in params]
        if "threads" in params:
            parts.append(f"{params['threads']} thread{'s' if params['threads'] > 1 else ''}")
        if self.suite == "core":
            parts += [f"{params['rows']:,} rows"] if params["rows"] != 10_000_000 else []
            parts += [f"columns {params['columns']}"] if params.get("columns", "three") != "three" else []
            parts += [f"skew {params['skew']:g}"] if params.get("skew", 1.0) != 1.0 else []
            parts += ["from an empty cache"] if params.get("cold") else []
        return ", ".join([*parts, *(["O_DIRECT"] if params.get("direct") else [])])

    def to_json(self) -> str:
        """The cell as one line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Cell:
        """A cell from its line."""
        return Cell(**json.loads(text))


def enriched(columns: str) -> list[str]:
    """The master's columns that every arm adds, by the name of the choice."""
    if columns not in COLUMNS:
        *most, last = (repr(name) for name in COLUMNS)
        raise SettingError(f"columns={columns!r} is not known; choose {', '.join(most)} or {last}")
    return list(COLUMNS[columns])


def reads_group(cell: Cell) -> bool:
    """Does a cell read a store with a column group of the columns asked for?"""
    ours = cell.arm.endswith(GROUPS) or (cell.suite, cell.arm) in (("spark", "semistream"), ("peers", "semistream"))
    return ours and cell.params["columns"] != "all"


def algorithm_of(arm: str) -> str:
    """The join behind an arm of ours: `sweep_each` and `sweep_groups` differ in how it is called, and on which store.

    >>> algorithm_of("sweep_groups"), algorithm_of("inl")
    ('sweep', 'inl')
    """
    return "sweep" if arm == "semistream" else arm.removesuffix("_each").removesuffix(GROUPS)
