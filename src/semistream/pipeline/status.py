"""What a pipeline has done and what it holds, told from its ledger; it may run meanwhile."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from semistream.budget import format_bytes
from semistream.errors import StateError, counted
from semistream.pipeline.decision import WENT, Decision
from semistream.pipeline.ledger import BATCHES, Ledger
from semistream.stores.paged.manifest import Manifest

_RECENT = 10
_AT_WORK = "working.json"


@contextmanager
def at_work(state: Path, what: str) -> Iterator[None]:
    """Says, while it lasts, what the pipeline works on and since when; what a crash leaves is told by the lock."""
    path = state / _AT_WORK
    draft = state / f".{_AT_WORK}"
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump({"what": what, "since": time.time()}, file)
    draft.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _works_on(state: Path) -> tuple[str, float] | None:
    try:
        found = json.loads((state / _AT_WORK).read_text(encoding="utf-8"))
        return str(found["what"]), float(found["since"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # nothing, or half of it


@dataclass(frozen=True)
class Status:
    name: str
    running: bool
    batches: int
    last: Decision | None
    recent: list[Decision]
    behind: dict[str, int]  # versions of each master that have come since
    works_on: tuple[str, float] | None = None  # and since when

    @property
    def rows_per_second(self) -> float:
        """Rows that came in over the time their batches took, of the last batches."""
        return sum(one.counts["rows_in"] for one in self.recent) / max(1e-9, sum(one.seconds for one in self.recent))

    def lines(self, now: float | None = None) -> list[tuple[str, str]]:
        last, now = self.last, time.time() if now is None else now
        state = "running" if self.running else "stopped"
        if self.running and self.works_on is not None:
            what, since = self.works_on
            clock = time.strftime("%H:%M:%S UTC", time.gmtime(since))
            state = f"running: {what} since {clock}, for {max(0.0, now - since):,.0f} s"
        elif self.running:
            state = "running: it waits for rows"
        if last is None:
            return [("state", state), ("batches", "0, none is loaded yet")]
        totals, rows = last.totals, counted(last.counts["rows_in"], "row")
        lines = [
            ("state", state),
            ("batches", f"{self.batches:,}, the last was loaded {now - last.decided_at:,.0f} s ago with {rows}"),
            ("rate", f"{self.rows_per_second:,.0f} rows/s while batches run"),
            *((name.replace("_", " "), f"{totals.get(name, 0):,}") for name in ("rows_in", *WENT)),
        ]
        if last.held:
            size = format_bytes(sum(segment.bytes for segment in last.held))
            lines.append(("held", f"{totals['held']:,} rows, {size}"))
        for name, seen in last.lookups.items():
            asked = max(1, seen["matched"] + seen["unmatched"])
            newer = f", {self.behind[name]} newer" if self.behind.get(name) else ""
            probes = seen.get("hits", 0) + seen.get("misses", 0)
            cached = f", {seen['hits'] / probes:.0%} of it from memory" if probes else ""
            used = f", {format_bytes(seen['peak_bytes'])} used" if seen.get("peak_bytes") else ""
            told = f"{seen['matched'] / asked:.1%} matched{cached}{used}, version {last.masters[name]}{newer}"
            lines.append((name, told))
        if last.driver_bytes:
            lines.append(("driver", f"{format_bytes(last.driver_bytes)} used for rows that wait, new members and keys"))
        return lines


def status_of(state: Path, name: str, stores: dict[str, Path]) -> Status:
    """Read the ledger of a pipeline."""
    ledger = Ledger(state, name)
    newest, batches, running = ledger.newest(), ledger.next(BATCHES), ledger.locked
    if newest is None and not running:
        raise StateError(f"{name!r} has loaded nothing yet; there is no batch in {state}")
    behind = {
        key: Manifest.versions(path)[-1] - newest.masters[key]
        for key, path in stores.items()
        if newest is not None and key in newest.masters and Manifest.versions(path)
    }
    works_on = _works_on(state) if running else None
    return Status(name, running, batches, newest, ledger.before(batches, _RECENT), behind, works_on)
