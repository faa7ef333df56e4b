"""What a pipeline remembers between batches, in its state directory, of which docs/pipelines.md has a map.

A batch is visible nowhere before its decision is written, whole, by an exclusive link; afterwards it is carried out as
often as needed and never computed again. So a crash leaves a batch either untouched or decided. Files of the state are
named relative to it, so that it can be moved, and used from any working directory.
"""

import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from semistream.durable import create_once, read_once, rewrite, sync_directory
from semistream.errors import ArgumentError, StateError
from semistream.failpoints import reach
from semistream.pipeline.decision import Decision, Read
from semistream.pipeline.identity import claim
from semistream.warehouse import ForeignCheckpointError, MissingBatchesError, StaleWriterError
from semistream.warehouse.contract import Warehouse
from semistream.warehouse.marks import digits_of

BATCHES, SIDE = "batches", "side"  # what is decided on: Spark's batches, and work beside them
PINS = "pins"
KEPT = 1000  # decisions and pins; Spark keeps 100 batches of its own log


class Ledger:
    """The state directory of one pipeline; `open` takes its lock."""

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        self.name = name
        self._lock: int | None = None
        self._decided: dict[str, int] = {}  # the last number that this driver saw, by kind

    def open(self) -> None:
        """Make the directory and take its lock, for as long as this process lives or until `close`."""
        try:
            for part in ("", PINS, BATCHES, SIDE, "held", "staging"):
                (self.root / part).mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StateError(
                f"state={str(self.root)!r} cannot be used ({error.strerror}: {error.filename}); give a directory in "
                "which this user may write"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            claim(self.root)
        except BlockingIOError:
            self.close()
            raise StaleWriterError(
                f"another driver works with {self.root}; stop it first. `semistream status` tells what it does"
            ) from None
        except BaseException:
            self.close()
            raise

    @property
    def locked(self) -> bool:
        """Whether a driver is at work; asked without disturbing it."""
        try:
            with (self.root / "lock").open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def owner(self) -> str | None:
        """The id of the query whose state this is; None when it is nobody's."""
        found = self._read(self.root / "owner.json")
        if found is not None and found["name"] != self.name:
            raise ForeignCheckpointError(
                f"{self.root} is the state of pipeline {found['name']!r}, not of {self.name!r}; give this one its own"
            )
        return None if found is None else str(found["query"])

    def check_owner(self, query: str, *, replaces: str | None = None) -> None:
        """Refuse a query that is not the owner, unless it may take its place."""
        former = self.owner
        if former is None or former == query or self.last(BATCHES) is None:
            return
        if replaces is None or not former.replace("-", "").startswith(digits_of(replaces)):
            raise ForeignCheckpointError(
                f"{self.root} belongs to query {former}, whose checkpoint is not the one that is there (query "
                f"{query}): Spark would begin anew and load rows again. Restore the checkpoint, or start with a "
                f"new state directory and an empty table; if only new rows come in, use --replaces {former}"
            )

    def owned_by(self, query: str, *, replaces: str | None = None) -> None:
        """Claim the state for Spark's query, or refuse: it belongs to another name or another checkpoint."""
        self.check_owner(query, replaces=replaces)
        former = self.owner
        if former == query:
            return
        if former is not None:
            self._retire(former)
        rewrite(self.root / "owner.json", {"name": self.name, "query": query})

    def _retire(self, former: str) -> None:
        """Put aside, in `former`, what a query that is gone has decided: the numbers of the next one begin again.
        Decisions go first: whoever is killed in between goes on here, and a former query that comes back misses them.
        """
        aside = self.root / "former" / former
        aside.mkdir(parents=True, exist_ok=True, mode=0o700)
        for part in (BATCHES, SIDE, PINS):
            if (self.root / part).exists() and not (aside / part).exists():
                (self.root / part).rename(aside / part)
            (self.root / part).mkdir(exist_ok=True, mode=0o700)
        self._decided.clear()

    def pin(self, kind: str, number: int, masters: dict[str, Read]) -> dict[str, Read]:
        """What a batch reads of the masters: this, unless an earlier attempt has pinned something else."""
        if kind != BATCHES:  # other work does not come again under its number: it is begun anew with what is there then
            return masters
        path = self.path(PINS, number)
        columns = zip(*masters.values(), strict=True) if masters else ((), (), ())
        stores, versions, digests = (dict(zip(masters, column, strict=True)) for column in columns)
        found = self._first(path, {"versions": versions, "stores": stores, "digests": digests})
        missing = sorted(set(versions) - set(found["versions"]))
        if missing:
            raise StateError(
                f"{path} has no version of {missing[0]!r}, which is new in the pipeline: batch {number} was begun "
                f"without it. Run it once with the steps it had, or delete {path} to begin it again"
            )
        stores |= found.get("stores", {})  # pins of before there were ids have none, older ones no digests either
        known = found.get("digests", {})
        return {name: Read(str(stores[name]), int(found["versions"][name]), known.get(name)) for name in masters}

    def unpin(self, kind: str, number: int) -> None:
        """Let a batch of which nothing was written read the newest versions when it is tried again."""
        if kind == BATCHES:
            self.path(PINS, number).unlink(missing_ok=True)

    def check_input(self, number: int, said: str) -> None:
        """Refuse a batch number that stood for other input before; the first to come notes what it stands for."""
        path = self.root / PINS / f"input{number:09d}.json"
        if self._first(path, {"input": said}, "input*.json")["input"] != said:
            raise StateError(
                f"batch {number} of {self.name!r} reads other input than when it was first begun; was an older copy of "
                "the checkpoint put back? Its rows would be taken for loaded. Restore the newest checkpoint, or start "
                "with a new state directory and an empty table"
            )

    def decide(self, kind: str, number: int, decision: Decision) -> None:
        """Write the decision; another driver that was first makes this one stop."""
        path = self.path(kind, number)
        reach("before_decision")
        mine = json.loads(json.dumps(decision.to_json()))
        if self._first(path, {"decision": mine, "writer": os.getpid()}).get("decision") != mine:
            raise StaleWriterError(
                f"{path} was written by another driver while batch {number} was on its way, so this one wrote nothing. "
                "Stop one of the two; a restart goes on where the ledger is"
            )
        self._decided[kind] = number
        reach("after_decision")

    def withdraw(self, kind: str, number: int) -> None:
        """Take the last decision of a kind back, as if it had never been made; it is kept aside, for people."""
        aside = self.root / "withdrawn"
        aside.mkdir(exist_ok=True, mode=0o700)
        path = self.path(kind, number)
        times = len(list(aside.glob(f"{kind}-{path.stem}-*.json")))
        path.rename(aside / f"{kind}-{path.stem}-{times}.json")
        for directory in (path.parent, aside):
            sync_directory(directory)
        self.unpin(kind, number)
        self._decided.pop(kind, None)

    def undo(self, warehouse: Warehouse, checkpoint: Path, batch: int | None) -> Decision:
        """Withdraw the decision that was made last, or say why it must stay: the way out when it cannot be carried out.

        A file may be lost after the decision, or a table changed by hand. What nobody has seen may be computed again:
        its rows come with Spark's replay, from the held files of the decision before it, which are kept until this one
        is carried out, or from the table in which they still are. Members that were made stay, with the same keys.
        """
        latest = self.latest()
        if not latest:
            raise StateError(f"{self.root} has decided nothing, so there is nothing to take back")
        last = latest[-1]
        number = last.writes.batch
        kind = BATCHES if self.decided(BATCHES, number) == last else SIDE
        if batch not in (None, number):
            raise ArgumentError(
                f"batch={batch} is not the one decided last, which is {number}; only that can be taken back"
            )
        if kind == BATCHES and (checkpoint / "commits" / str(number)).exists():
            raise StateError(
                f"batch {number} of {self.name!r} is done, and Spark will not bring its rows again: taking it back "
                "would lose them. If a table was dropped or set back, restore it"
            )
        if seen := warehouse.visible(last.writes):
            raise StateError(
                f"batch {number} of {self.name!r} is in {', '.join(seen)} of {warehouse.describe()} already: taking it "
                "back would load its rows twice. Start the pipeline, which carries out the rest"
            )
        self.withdraw(kind, number)
        return last

    def decided(self, kind: str, number: int) -> Decision | None:
        return self._decision(self.path(kind, number))

    def _decision(self, path: Path) -> Decision | None:
        found = self._read(path)
        if found is None:
            return None
        decision = Decision.from_json(found["decision"], self.root / "held")
        if decision.writes.batch != int(path.stem):
            raise StateError(f"{path} is the decision on batch {decision.writes.batch}: it was renamed; restore it")
        return decision

    def last(self, kind: str) -> int | None:
        files = _numbered(self.root / kind)
        return int(files[-1].stem) if files else None

    def newest(self) -> Decision | None:
        """The decision made last, whatever its kind: it tells totals and held rows."""
        former = [one for one in (self.root / "former").glob("*/*") if one.name in (BATCHES, SIDE)]
        found = self.latest() or self._last_in(former)
        return found[-1] if found else None

    def latest(self) -> list[Decision]:
        """The last decision of each kind, in the order in which they were made: what a crash may have cut short."""
        return self._last_in([self.root / BATCHES, self.root / SIDE])

    def _last_in(self, directories: Iterable[Path]) -> list[Decision]:
        files = [found[-1] for one in directories if (found := _numbered(one))]
        return sorted(filter(None, map(self._decision, files)), key=lambda one: one.sequence)

    def before(self, number: int, most: int) -> list[Decision]:
        """The decisions on the batches before one, the newest first; at most so many."""
        found = (self.decided(BATCHES, one) for one in range(number - 1, max(-1, number - 1 - most), -1))
        return [one for one in found if one is not None]

    def next(self, kind: str) -> int:
        last = self.last(kind)
        return 0 if last is None else last + 1

    def check_not_moved(self, kind: str, number: int) -> None:
        """Refuse a batch that is not the next one: the ledger has gone on, or was set back, or is incomplete."""
        last, mine = self.last(kind), self._decided.get(kind)
        if last is not None and mine is not None and last > mine and last >= number:
            raise StaleWriterError(
                f"{self.root}: this driver decided batch {mine} last, and batch {last} is there. Another run works on "
                "the same state; stop one of the two"
            )
        if last is not None and number < last:
            raise StateError(
                f"batch {number} of {self.name!r} comes again, although batch {last} is decided and what became of "
                f"batch {number} is no longer known; was an older copy of the checkpoint put back? Restore the newest"
            )
        if number > self.next(kind):
            known = "knows of no batch" if last is None else f"ends with batch {last}"
            raise MissingBatchesError(
                f"{self.root} {known}, but Spark's checkpoint is at batch {number}: decisions, and with them rows that "
                "wait, are missing. Restore the state directory as a whole, with its checkpoint"
            )

    def path(self, part: str, number: int) -> Path:
        """Where a decision is, or a pin; whoever deletes that lets the batch read what is there."""
        return self.root / part / f"{number:09d}.json"

    def _first(self, path: Path, content: dict[str, Any], alike: str = "[0-9]*.json") -> dict[str, Any]:
        """What a file holds that is written once, by whoever is first; the oldest of those ``alike`` are forgotten."""
        create_once(path, content)
        for old in sorted(path.parent.glob(alike))[:-KEPT]:
            old.unlink(missing_ok=True)
        return self._read(path) or {}

    def _read(self, path: Path) -> dict[str, Any] | None:
        return read_once(path, (), "start it anew, after you have looked at what the warehouse holds")


def _numbered(directory: Path) -> list[Path]:
    return sorted(directory.glob("[0-9]" * 9 + ".json"))
