"""The file of results: one JSON object a line, written as soon as a cell is done, so a run that was broken off goes on.

A cell that failed is noted with its error and tried again the next time; the newest line of a cell counts.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semistream.joins import FORMER_NAMES
from semistream_lab.cells import PLACE, Cell
from semistream_lab.errors import BenchmarkError

Result = dict[str, Any]
# Student's t for 95 %, by degrees of freedom from 1; above ten the last serves, which is a little wide.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
NOT_JOINING = ("source", "passthrough", "build")  # they add nothing, so their rows are others


def cell_of(result: Result) -> Cell:
    """The cell that a result belongs to."""
    return Cell(result["suite"], result["arm"], result["params"], result["repetition"])


@dataclass
class Results:
    """``results.jsonl`` of a directory."""

    directory: Path
    lines: list[Result] = field(default_factory=list)

    @staticmethod
    def load(directory: Path) -> Results:
        """All results that are there; a last line cut short by a crash is passed over."""
        path = directory / "results.jsonl"
        lines = []
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines() if path.exists() else [], 1):
            try:
                line = json.loads(text)
                lines.append(line | {"arm": FORMER_NAMES.get(line["arm"], line["arm"])})
            except ValueError as error:
                if not text.endswith("}"):
                    continue
                raise BenchmarkError(f"{path}, line {number} is no JSON: {error}") from error
        return Results(directory, lines)

    def add(self, cell: Cell, environment_id: str, result: Result) -> None:
        """Append a result and make it durable."""
        line = {
            "suite": cell.suite,
            "arm": cell.arm,
            "params": cell.params,
            "repetition": cell.repetition,
            **result,
            "environment": environment_id,
        }
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / "results.jsonl"
        broken = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
        with path.open("a", encoding="utf-8") as file:
            file.write(("\n" if broken else "") + json.dumps(line) + "\n")
        self.lines.append(line)

    @property
    def current(self) -> dict[str, Result]:
        """The newest result of every cell."""
        return {cell_of(line).key: line for line in self.lines}

    @property
    def done(self) -> list[Result]:
        """Results that are not errors."""
        return [line for line in self.current.values() if "error" not in line]

    @property
    def failed(self) -> list[Result]:
        """Cells whose newest try failed."""
        return [line for line in self.current.values() if "error" in line]


@dataclass(frozen=True)
class Disagreement:
    """A batch for which arms gave different rows."""

    place: tuple[Any, ...]
    batch: str
    arms: dict[str, list[str]]

    def __str__(self) -> str:
        suite, *values = self.place
        where = ", ".join(f"{name} {value}" for name, value in zip(PLACE, values, strict=True) if value is not None)
        sides = "; ".join(f"{', '.join(arms)}: {checksum}" for checksum, arms in self.arms.items())
        return f"bench {suite}, {where}, batch {self.batch}: {sides}"


def disagreements(results: Iterable[Result]) -> list[Disagreement]:
    """Where two joining arms gave different rows for the same batch; only without any may times be compared."""
    seen: dict[tuple[tuple[Any, ...], str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for result in results:
        if result["arm"] not in NOT_JOINING:
            for batch, checksum in result["checksum"].items():
                seen[cell_of(result).place, batch][checksum].add(result["arm"])
    return [
        Disagreement(place, batch, {checksum: sorted(arms) for checksum, arms in sums.items()})
        for (place, batch), sums in seen.items()
        if len(sums) > 1
    ]


def check_agreement(results: Iterable[Result]) -> None:
    """Fail when two arms gave different rows."""
    found = disagreements(results)
    if found:
        raise BenchmarkError(f"the arms do not agree, so their times mean nothing: {found[0]} ({len(found)} in all)")


@dataclass(frozen=True)
class Group:
    """All repetitions of one arm with the same parameters."""

    suite: str
    arm: str
    params: dict[str, Any]
    results: list[Result]

    def median(self, name: str) -> float | None:
        """The median over the repetitions, None where none has it."""
        values = [result[name] for result in self.results if result.get(name) is not None]
        return statistics.median(values) if values else None

    def spread(self, name: str) -> tuple[float, float]:
        """Smallest and largest value."""
        values = [result[name] for result in self.results]
        return min(values), max(values)

    def interval(self, name: str) -> tuple[float, float] | None:
        """The 95 % confidence interval of the mean: over the repetitions, or over the segments of a single run."""
        values = [result[name] for result in self.results if result.get(name) is not None]
        if len(values) == 1:
            values = self.results[0].get("segments", {}).get(name, [])
        if len(values) < 2:
            return None
        half = _STUDENT[min(len(values) - 1, len(_STUDENT)) - 1] * statistics.stdev(values) / len(values) ** 0.5
        middle = statistics.fmean(values)
        return middle - half, middle + half

    @property
    def rate(self) -> float:
        """Rows a second, the median."""
        return self.median("rows_per_second") or 0.0


def grouped(results: Iterable[Result], wanted: Callable[[Result], bool] = lambda _: True) -> list[Group]:
    """Results by arm and parameters, in the order in which they were run."""
    groups: dict[str, Group] = {}
    for result in results:
        if wanted(result):
            key = json.dumps([result["suite"], result["arm"], result["params"]], sort_keys=True)
            groups.setdefault(key, Group(result["suite"], result["arm"], result["params"], [])).results.append(result)
    return list(groups.values())
