"""What a pipeline has done and what it holds, told from its ledger; it may run meanwhile."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from semistream.budget import format_bytes
from semistream.errors import StateError
from semistream.pipeline.batch import BATCHES
from semistream.pipeline.decision import WENT, Decision
from semistream.pipeline.ledger import Ledger
from semistream.stores.manifest import Manifest

_RECENT = 10


@dataclass(frozen=True)
class Status:
    """One look at a pipeline."""

    name: str
    running: bool
    batches: int
    last: Decision
    recent: list[Decision]
    behind: dict[str, int]  # versions of each master that have come since

    @property
    def rows_per_second(self) -> float:
        """Rows that came in over the time their batches took, of the last batches."""
        return sum(one.counts["rows_in"] for one in self.recent) / max(1e-9, sum(one.seconds for one in self.recent))

    def lines(self) -> list[tuple[str, str]]:
        """For people."""
        last, totals = self.last, self.last.totals
        ago = time.time() - last.decided_at
        held = sum(segment.bytes for segment in last.held)
        lines = [
            ("state", "running" if self.running else "stopped"),
            ("batches", f"{self.batches:,}, the last {ago:,.0f} s ago with {last.counts['rows_in']:,} rows"),
            ("rate", f"{self.rows_per_second:,.0f} rows/s while batches run"),
            *((name.replace("_", " "), f"{totals.get(name, 0):,}") for name in ("rows_in", *WENT)),
        ]
        if last.held:
            lines.append(("held", f"{totals['held']:,} rows, {format_bytes(held)}"))
        for name, seen in last.lookups.items():
            asked = max(1, seen["matched"] + seen["unmatched"])
            newer = f", {self.behind[name]} newer" if self.behind.get(name) else ""
            probes = seen.get("hits", 0) + seen.get("misses", 0)
            cached = f", {seen['hits'] / probes:.0%} of it from memory" if probes else ""
            used = f", {format_bytes(seen['peak_bytes'])} used" if seen.get("peak_bytes") else ""
            told = f"{seen['matched'] / asked:.1%} matched{cached}{used}, version {last.masters[name]}{newer}"
            lines.append((name, told))
        return lines


def status_of(state: Path, name: str, stores: dict[str, Path]) -> Status:
    """Read the ledger of a pipeline."""
    ledger = Ledger(state, name)
    newest, number = ledger.newest(), ledger.last(BATCHES)
    if newest is None:
        raise StateError(f"{name!r} has loaded nothing yet; there is no batch in {state}")
    numbers = range(max(0, (number or 0) - _RECENT + 1), (number or 0) + 1)
    recent = [one for one in (ledger.decided(BATCHES, n) for n in numbers) if one is not None]
    behind = {
        key: Manifest.versions(path)[-1] - newest.masters[key]
        for key, path in stores.items()
        if key in newest.masters and Manifest.versions(path)
    }
    return Status(name, ledger.locked, 0 if number is None else number + 1, newest, recent, behind)
