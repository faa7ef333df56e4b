"""What people are told of a pipeline: what it does, has done and holds, by its ledger; why it stopped, in one line."""

import json
import re
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from semistream.budget import format_bytes
from semistream.durable import private
from semistream.errors import SemistreamError, StateError, counted
from semistream.pipeline.decision import WENT, Decision
from semistream.pipeline.ledger import BATCHES, Ledger
from semistream.stores.paged.manifest import Manifest

_RECENT = 10
_AT_WORK = "working.json"
# What Spark puts around the error of a batch: each says only that there is one.
_WRAPPERS = ("STREAM_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR", "JOB_ABORTED", "PYTHON_EXCEPTION")
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]+)\](?:(?!\[[A-Z][A-Z0-9_.]+\]).)+")
_RAISED = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Invalid|Interrupt|Exit)\w*(?:: .*)?)$", re.MULTILINE)


@contextmanager
def at_work(state: Path, what: str) -> Iterator[None]:
    """Says, while it lasts, what the pipeline works on and since when; what a crash leaves is told by the lock."""
    path = state / _AT_WORK
    draft = state / f".{_AT_WORK}"
    with open(draft, "w", encoding="utf-8", opener=private) as file:
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
    running: bool
    batches: int
    last: Decision | None
    recent: list[Decision]
    behind: dict[str, int]  # versions of each master that have come since
    works_on: tuple[str, float] | None  # and since when; None while it waits for rows or does not run

    def lines(self, now: float | None = None) -> list[tuple[str, str]]:
        last, now = self.last, time.time() if now is None else now
        state = "running: it waits for rows" if self.running else "stopped"
        if self.works_on is not None:
            what, since = self.works_on
            clock = time.strftime("%H:%M:%S UTC", time.gmtime(since))
            state = f"running: {what} since {clock}, for {max(0.0, now - since):,.0f} s"
        if last is None:
            return [("state", state), ("batches", "0, none is loaded yet")]
        totals, rows = last.totals, counted(last.counts["rows_in"], "row")
        rate = sum(one.counts["rows_in"] for one in self.recent) / max(1e-9, sum(one.seconds for one in self.recent))
        lines = [
            ("state", state),
            ("batches", f"{self.batches:,}, the last was loaded {now - last.decided_at:,.0f} s ago with {rows}"),
            ("rate", f"{rate:,.0f} rows/s while batches run"),
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
    return Status(running, batches, newest, ledger.before(batches, _RECENT), behind, works_on)


def stopped(name: str, error: BaseException | None, failure: BaseException, log: Path) -> SemistreamError:
    """What to raise when Spark's query ended by ``failure`` because a batch raised ``error``."""
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(log, "a", encoding="utf-8", opener=private) as file:
        file.write(time.strftime("%Y-%m-%d %H:%M:%S UTC\n", time.gmtime()))
        file.writelines(traceback.format_exception(error or failure))
    if isinstance(error, SemistreamError):
        found = error
    elif isinstance(error, OSError):
        found = StateError(f"{name} stopped: {error}. No row is lost; see to the disk and start again")
        found.__cause__ = error
    else:
        text = str(error or failure)
        if error is not None and len(text.splitlines()) < 2:  # of Python alone: a KeyError is nothing but its key
            text = f"{type(error).__name__}: {text}".rstrip(": ")
        found = SemistreamError(f"{name} stopped: {reason(text)}")
        found.__cause__ = failure
    found.exit_code = 1  # it is what came in that stopped it, not how it was called
    found.add_note(f"the stack is in {log}")
    return found


def reason(text: str) -> str:
    """The line of a stack that says what happened: of tasks in Python the last, of Spark its condition.

    >>> reason("An error occurred while calling o1.x.\\n: org.spark.X: [DIVIDE_BY_ZERO] Use try_divide.\\n\\tat y")
    '[DIVIDE_BY_ZERO] Use try_divide.'
    """
    conditions = [found.group() for found in _CONDITION.finditer(text) if found.group(1) not in _WRAPPERS]
    if conditions:
        return conditions[0].strip()
    if raised := _RAISED.search(text.partition("Traceback (most recent call last)")[2]):
        return raised.group(1)
    lines = [line.lstrip(": ") for line in text.strip().splitlines()]
    said = [line for line in lines if not line.startswith("An error occurred while calling")]
    return said[0] if said else "no reason was given"
