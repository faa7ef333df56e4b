"""One run of a suite: which cells, which data, and the command that repeats it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from semistream.errors import choose
from semistream_lab.cells import Cell
from semistream_lab.errors import SettingError
from semistream_lab.papers import SUITES
from semistream_lab.papers.figures import Figure, Scale, places_of
from semistream_lab.suites import in_turns


@dataclass(frozen=True)
class LabRun:
    """What a run is asked for."""

    suite: str
    out: Path
    data: Path
    scale: str = "quick"
    repetitions: int = 1
    figures: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()
    direct: bool | None = None
    rows: int | None = None
    timeout_seconds: float = 6 * 3600.0

    def __post_init__(self) -> None:
        choose("SUITE", self.suite, tuple(SUITES))
        choose("scale", self.scale, ("quick", "full"))
        if self.repetitions < 1:
            raise SettingError(f"--repetitions {self.repetitions} must be at least 1")
        if self.rows is not None and self.rows < 1000:
            raise SettingError(f"--rows {self.rows} must be at least 1000")
        known = tuple(figure.name for figure in SUITES[self.suite].figures(self._scale()))
        for name in self.figures:
            choose("--figures", name, known)
        drawn = tuple(dict.fromkeys(arm for figure in self.wanted for arm in figure.arms))
        for name in self.arms:
            choose("--arms", name, drawn)

    def _scale(self) -> Scale:
        return SUITES[self.suite].scale(self.scale, direct=self.direct, rows=self.rows)

    @property
    def wanted(self) -> list[Figure]:
        """The figures that are run."""
        found = SUITES[self.suite].figures(self._scale())
        return [figure for figure in found if not self.figures or figure.name in self.figures]

    @property
    def cells(self) -> list[Cell]:
        """All cells in the order in which they are run."""
        places = places_of(self.wanted)
        chosen = [[one for one in place if not self.arms or one[0] in self.arms] for place in places]
        return in_turns("lab", [place for place in chosen if place], self.repetitions)

    @property
    def command(self) -> str:
        """How to run this again; where data and results go is left out."""
        parts = [f"semistream lab run {self.suite} --{self.scale}"]
        parts += [f"--figures {','.join(self.figures)}"] if self.figures else []
        parts += [f"--arms {','.join(self.arms)}"] if self.arms else []
        parts += [f"--repetitions {self.repetitions}"] if self.repetitions > 1 else []
        parts += [f"--rows {self.rows}"] if self.rows else []
        parts += [] if self.direct is None else ["--direct" if self.direct else "--cached"]
        return " ".join(parts)

    def prepare(self, note: Callable[[str], None]) -> None:
        """Make the data before anything is timed; what is there is kept."""
        from semistream_lab.papers import arms
        from semistream_lab.papers.workload import LabData

        seen = set()
        for cell in self.cells:
            if "layout" not in cell.params:
                continue
            where = LabData(self.data, cell.params["rows"], cell.params).directory
            if where not in seen:
                seen.add(where)
                note(f"data: {where.name}")
                arms.prepare(cell.params, self.data)
