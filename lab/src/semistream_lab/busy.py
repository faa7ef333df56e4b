"""How busy others kept the machine while something was measured, and whether its figures are to be believed.

The kernel says how the time of all cores was spent (`/proc/stat`) and what every process used (`/proc/PID/stat`). What
was used and is not that of the measured process or of one below it went to others: other processes, the kernel's own
work, and what the hypervisor gave to other machines (*steal*). Processes are looked at every second, so that one which
ends is lost for that long at most. An arm that says when its timed part began and ended is judged by that part too: a
warm-up of minutes would hide a few seconds in which others had everything.

`verdict` is the one place where a result is called busy.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

LIMIT = 0.1  # of the machine's CPU time; more for others, and a rate is not to be believed
_LOAD_LIMIT = 1.5  # load a core, for results that know of nothing else: our own runs stay below it
_EVERY_SECONDS = 1.0


@dataclass(frozen=True)
class Ticks:
    """CPU time of all cores since the start, in clock ticks."""

    used: int
    stolen: int
    idle: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.used + self.stolen + self.idle


def machine_ticks(stat: str) -> Ticks:
    """From the text of `/proc/stat`; waiting for a disk is idle.

    >>> machine_ticks("cpu  100 5 40 800 20 1 2 32 0 0")
    Ticks(used=148, stolen=32, idle=820)
    """
    user, nice, system, idle, waiting, hard, soft, stolen = map(int, stat.splitlines()[0].split()[1:9])
    return Ticks(user + nice + system + hard + soft, stolen, idle + waiting)


def process_ticks(stat: str) -> tuple[int, int]:
    """(parent, ticks used) from the text of `/proc/PID/stat`; the name in it may hold anything."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[1]), int(fields[11]) + int(fields[12])


def pressure_seconds(text: str) -> float:
    """From the text of `/proc/pressure/cpu`: seconds in which somebody waited for a core.

    >>> pressure_seconds("some avg10=1.00 avg60=0.50 avg300=0.10 total=2500000")
    2.5
    """
    some = next(line for line in text.splitlines() if line.startswith("some"))
    return int(some.rpartition("total=")[2]) / 1e6


def shares(before: Ticks, after: Ticks, ours: int) -> dict[str, float]:
    """Of the machine's CPU time between two moments: what others had, and how much of that was stolen."""
    total = max(1, after.total - before.total)
    stolen = after.stolen - before.stolen
    others = max(0, after.used - before.used - ours) + stolen
    return {"others_share": round(min(1.0, others / total), 4), "steal_share": round(stolen / total, 4)}


def verdict(result: dict[str, Any], cores: int = 1) -> str | None:
    """Why a result is not to be believed, in a sentence; None when nothing speaks against it."""
    if "others_share" not in result:
        load = result.get("load_before", 0)
        return f"busy: it began at a load of {load:.1f}" if load > _LOAD_LIMIT * cores else None
    others, stolen = others_of(result), result.get("steal_share", 0.0)
    if others <= LIMIT:
        return None
    hidden = f", of which the hypervisor took {100 * stolen:.0f} %" if stolen > LIMIT / 2 else ""
    return f"busy: {100 * others:.0f} % of the machine's CPU time went to others{hidden}"


def others_of(result: dict[str, Any]) -> float:
    """What others had, of the whole run or of its timed part, whichever is more."""
    return float(max(result["others_share"], result.get("others_share_timed", 0.0)))


def summary(results: Iterable[dict[str, Any]], environments: dict[str, Any] | None = None) -> str | None:
    """One sentence about some results; None when the machine was quiet."""
    known = environments or {}
    found = list(results)
    cores = [known.get(one.get("environment", ""), {}).get("cores", 1) for one in found]
    busy = [one for one, count in zip(found, cores, strict=True) if verdict(one, count)]
    if not busy:
        return None
    runs = f"in {len(busy)} of {len(found)} runs " if len(found) > 1 else ""
    measured = [100 * others_of(one) for one in busy if "others_share" in one]
    if measured:
        why = f"{runs}{_span(measured, '.0f')} % of its CPU time went to others"
    else:
        why = (
            f"{len(busy)} of {len(found)} runs began at a load of {_span([one['load_before'] for one in busy], '.1f')}"
        )
    return f"the machine was busy: {why}; these rates are not to be believed"


def _span(values: list[float], form: str) -> str:
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} to {high}"


@dataclass
class Watch:
    """Watches the machine and this process with all below it, until the `with` block ends; then `facts` are there."""

    facts: dict[str, Any] = field(default_factory=dict)
    _seen: dict[tuple[int, int], int] = field(default_factory=dict)  # ticks by process and its start
    _looks: list[tuple[float, Ticks, int]] = field(default_factory=list)  # when, all cores, our own
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        if not Path("/proc/stat").exists():
            return self
        self._look()
        self._pressure, self._began = _pressure(), time.monotonic()
        self._thread = threading.Thread(target=self._watch, name="busy", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not Path("/proc/stat").exists():
            return
        self._ended.set()
        self._thread.join()
        self._look()
        self.facts = self._between(self._looks[0], self._looks[-1])
        if self._pressure is not None:
            waited = (_pressure() or 0.0) - self._pressure
            self.facts["cpu_pressure"] = round(min(1.0, waited / max(1e-9, time.monotonic() - self._began)), 4)

    def timed(self, begin: float, end: float) -> dict[str, float]:
        """What others had between two moments of `time.time`, as near as the looks allow."""
        if not self._looks:
            return {}
        before = max((one for one in self._looks if one[0] <= begin), key=itemgetter(0), default=self._looks[0])
        after = min((one for one in self._looks if one[0] >= end), key=itemgetter(0), default=self._looks[-1])
        return {"others_share_timed": self._between(before, after)["others_share"]}

    @staticmethod
    def _between(before: tuple[float, Ticks, int], after: tuple[float, Ticks, int]) -> dict[str, float]:
        return shares(before[1], after[1], after[2] - before[2])

    def _watch(self) -> None:
        while not self._ended.wait(_EVERY_SECONDS):
            self._look()

    def _look(self) -> None:
        parents: dict[int, int] = {}
        found: dict[int, tuple[int, int]] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                text = stat.read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            pid = int(stat.parent.name)
            parents[pid], ticks = process_ticks(text)
            found[pid] = ticks, int(text.rpartition(")")[2].split()[19])
        for pid in below(os.getpid(), parents):
            if pid in found:
                ticks, started = found[pid]
                self._seen[pid, started] = ticks
        self._looks.append((time.time(), _machine(), sum(self._seen.values())))


def below(root: int, parents: dict[int, int]) -> set[int]:
    """A process and all that come from it.

    >>> sorted(below(2, {2: 1, 3: 2, 4: 3, 5: 1}))
    [2, 3, 4]
    """
    found, size = {root}, 0
    while size != len(found):
        size = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found


def _machine() -> Ticks:
    return machine_ticks(Path("/proc/stat").read_text(encoding="ascii"))


def _pressure() -> float | None:
    try:
        return pressure_seconds(Path("/proc/pressure/cpu").read_text(encoding="ascii"))
    except (OSError, StopIteration):
        return None
