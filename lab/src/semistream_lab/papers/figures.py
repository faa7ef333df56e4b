"""A paper's figure as data: what is varied, what is compared, what is drawn, what the paper states.

A suite makes its figures for a scale, quick or full: sizes and budgets keep their proportion to each other, so that
shapes stay as they are where R is smaller. A point of the horizontal axis and an arm make a cell; cells that two
figures share are run once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from semistream_lab.measuring import MOST_WARM
from semistream_lab.papers.claims import Claim
from semistream_lab.report import is_busy
from semistream_lab.results import Group
from semistream_lab.suites import Place

PAPER_ROW_BYTES = 120
STORE_ROW_BYTES = 134  # a row in our store, page headers and spare room included
_QUICK_BATCH = 5_000  # a slow join ends soon after its time is over
Value = TypeVar("Value")
Kind = Literal["lines", "bars", "surface"]


@dataclass(frozen=True)
class Scale:
    """How large a suite is run: ``rows`` stand for ``paper_rows``, the paper's largest R."""

    name: str
    rows: int
    paper_rows: int
    warm_seconds: float
    seconds: float
    direct: bool

    def size(self, paper_rows: float) -> int:
        """Rows of R where the paper has so many."""
        return round(paper_rows * self.rows / self.paper_rows)

    def memory(self, paper_bytes: float) -> int:
        """A budget that is to our R as the paper's is to its own."""
        return round(paper_bytes / PAPER_ROW_BYTES * STORE_ROW_BYTES * self.rows / self.paper_rows)

    def some(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """All values of an axis, or in a quick run the first, the middle and the last."""
        return tuple(values) if self.name == "full" else (values[0], values[len(values) // 2], values[-1])

    def cell(self, **more: Any) -> dict[str, Any]:
        """Parameters of a cell; skew 1 over shuffled keys and a tenth of R, unless they say otherwise."""
        how = {"warm_seconds": self.warm_seconds, "seconds": self.seconds, "direct": self.direct}
        if self.name == "quick":
            how |= {"stream_batch": _QUICK_BATCH, "warm_rows": more.get("rows", self.rows)}
        place = {"workload": "zipf", "rows": self.rows, "memory": "10%", "skew": 1.0, "layout": "shuffled"}
        made = {**place, "columns": "three", **how, **more}
        if made["rows"] <= MOST_WARM:
            return made
        # A window of a tenth of a large R is not full after the benchmarks' twenty million rows, and a sweep that
        # serves as many must not be measured by a part of it: the seconds end a run, not the rows.
        return made | {"warm_rows": made["rows"], "measured_rows": 4 * made["rows"]}


@dataclass(frozen=True)
class Panel:
    """One drawing: a measure upwards; ``model`` is the measure that a model gives for it."""

    measure: str
    title: str
    log: bool = True
    model: str = ""


RATE = Panel("rows_per_second", "service rate, tuples per second")
PAGES = Panel("tuples_per_page", "stream tuples per page read")


@dataclass(frozen=True)
class Point:
    """A value of the horizontal axis, and the parameters that it stands for."""

    label: str
    params: dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """One figure of a paper."""

    name: str
    title: str
    across: str
    points: tuple[Point, ...]
    arms: tuple[str, ...]
    says: str
    claims: tuple[Claim, ...]
    panels: tuple[Panel, ...] = (RATE, PAGES)
    kind: Kind = "lines"
    note: str = ""  # what a reader must know: a departure, what stands in for missing data
    stand_in: bool = False  # its data are not the paper's, so it says nothing of the paper
    names: dict[str, str] = field(default_factory=dict)  # of arms, where the paper's differs

    def places(self) -> list[Place]:
        """The cells, those of a point together."""
        return [[(arm, point.params) for arm in self.arms] for point in self.points]

    def name_of(self, arm: str) -> str:
        """The arm as the figure names it."""
        return self.names.get(arm, arm.replace("_", " "))


@dataclass(frozen=True)
class Suite:
    """The figures of one paper."""

    name: str
    title: str
    paper: str
    paper_rows: int
    make: Callable[[Scale], Sequence[Figure]]
    quick: int = 500_000  # with fewer, a hundredth of R holds next to nothing
    full: int = 0  # rows; the paper's where it is not said

    def scale(self, name: str, *, direct: bool | None = None, rows: int | None = None) -> Scale:
        """Quick, out of the page cache, or full, past it; unless ``direct`` says otherwise."""
        if name == "quick":
            return Scale("quick", rows or self.quick, self.paper_rows, 5.0, 2.0, bool(direct))
        return Scale("full", rows or self.full or self.paper_rows, self.paper_rows, 240.0, 30.0, direct is not False)

    def figures(self, scale: Scale) -> list[Figure]:
        """All figures at a scale."""
        return list(self.make(scale))


def places_of(figures: Iterable[Figure]) -> list[Place]:
    """Cells of several figures, each once."""
    seen: list[tuple[str, dict[str, Any]]] = []
    found = []
    for figure in figures:
        for place in figure.places():
            new = [one for one in place if one not in seen]
            seen += new
            if new:
                found.append(new)
    return found


class Drawn:
    """A figure with what was measured for it."""

    def __init__(self, figure: Figure, groups: Iterable[Group], machines: dict[str, Any] | None = None) -> None:
        """``machines`` has the facts of each environment by its id, as run.json does."""
        self.figure = figure
        self._machines = machines or {}
        labels = {_key(arm, point.params): (arm, point.label) for point in figure.points for arm in figure.arms}
        self.found = {labels[key]: group for group in groups if (key := _key(group.arm, group.params)) in labels}

    @property
    def labels(self) -> list[str]:
        """The horizontal axis."""
        return [point.label for point in self.figure.points]

    @property
    def missing(self) -> int:
        """Cells without a result."""
        return len(self.figure.points) * len(self.figure.arms) - len(self.found)

    @property
    def busy(self) -> bool:
        """Did others work on the machine while this was measured? Then its times say nothing."""
        return any(is_busy(result, self._machines) for group in self.found.values() for result in group.results)

    @property
    def cold(self) -> int:
        """Cells whose warm-up the clock ended before all its rows had come: caches may not have been full."""
        return sum(
            any(result.get("warm_rows", 0) < group.params["warm_rows"] for result in group.results)
            for group in self.found.values()
            if "warm_rows" in group.params
        )

    def at(self, arm: str, label: str) -> Group | None:
        """What an arm did at a point."""
        return self.found.get((arm, label))

    def value(self, arm: str, label: str, measure: str) -> float | None:
        """A measure of an arm at a point."""
        group = self.at(arm, label)
        return None if group is None else group.median(measure)


def _key(arm: str, params: dict[str, Any]) -> str:
    return f"{arm} {sorted(params.items(), key=str)}"
