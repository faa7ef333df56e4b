"""Ways to make a running pipeline fail, and the eight bugs that the verifier must find. For tests only."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from semistream import MasterStore
from semistream.pipeline import batch, held, ledger
from semistream.pipeline.batch import Batches
from semistream.pipeline.decision import Decision, Masters, find_newest
from semistream.pipeline.layout import Layout
from semistream.pipeline.ledger import Ledger
from semistream.warehouse import delta_tables
from semistream.warehouse import marks as _marks
from semistream.warehouse.delta import open_table
from semistream.warehouse.delta_tables import DeltaWarehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VARIABLE = "SHOP_BUG"  # read by the tests' driver, and by nothing else
Patch = Callable[[Any, str, Any], None]  # as pytest's monkeypatch.setattr


class CrashError(Exception):
    """Stands for the death of a driver: what follows in the batch does not happen."""


def at(patch: Patch, what: dict[str, Callable[[], None]], state: Path | None = None, number: int = 0) -> None:
    """Do something, once, when the pipeline reaches a failpoint; with ``state`` not before batch ``number`` is decided.

    A run begins by carrying out once more what was decided last, and reaches failpoints there too.
    """
    left = dict(what)

    def reach(name: str) -> None:
        if name in left and (state is None or (Ledger(state, "sales").last("batches") or 0) >= number):
            left.pop(name)()

    for module in (batch, ledger, delta_tables):
        patch(module, "reach", reach)


def crash() -> None:
    """For `at`."""
    raise CrashError


# -- the bugs ----------------------------------------------------------------------------------------------------------


def no_ledger_check(patch: Patch) -> None:
    """A batch that comes again is computed and written again."""

    def decide(self: Ledger, kind: str, number: int, decision: Decision) -> None:
        self.path(kind, number).unlink(missing_ok=True)
        keep(self, kind, number, decision)

    def run(self: Batches, frame: DataFrame, job: batch.BatchId, *, again: str = "", share: float = 1.0) -> Decision:
        decision = self._decide(frame, job, self.clock(), again, share)
        self.ledger.decide(job.kind, job.number, decision)
        self.carry_out(decision)
        return decision

    keep = Ledger.decide
    patch(Ledger, "decide", decide)
    patch(Batches, "run", run)
    patch(_marks.Streams, "holds", lambda *_, **__: False)
    patch(DeltaWarehouse, "_table_for", lambda self, *rest: open_table(self._path(rest[-1].table)))


def equality_instead_of_at_least(patch: Patch) -> None:
    """Only changes of the version right after the one that was read are looked for, not all since."""
    whole = MasterStore.changed_since
    patch(MasterStore, "changed_since", lambda self, _: whole(self, self.version - 1))


def no_pin(patch: Patch) -> None:
    """A batch reads whatever version is the newest when it gets to it."""
    apply_steps = Layout.apply_steps

    def newest(self: Layout, rows: DataFrame, masters: Masters, *rest: Any) -> DataFrame:
        versions = {name: one.number for name, one in find_newest(self.lookups, None).items()}
        there = replace(masters, stores={}, versions=masters.versions | versions)  # not as they were pinned
        return apply_steps(self, rows, there, *rest)

    patch(Layout, "apply_steps", newest)


def misses_never_dropped(patch: Patch) -> None:
    """A key that missed once is taken to miss for ever."""
    patch(held._Arrived, "among", lambda _, table: np.zeros(table.num_rows, np.bool_))


def held_after_the_commit(patch: Patch) -> None:
    """Rows that wait are written down only once the batch is in the warehouse."""
    decide, carry_out = Ledger.decide, Batches.carry_out

    def without(self: Ledger, kind: str, number: int, decision: Decision) -> None:
        decide(self, kind, number, replace(decision, held=()))

    def later(self: Batches, decision: Decision, **more: bool) -> bool:
        new = carry_out(self, decision, **more)
        kind = "side" if ".side" in decision.writes.app else "batches"
        self.ledger.path(kind, decision.writes.batch).unlink()
        decide(self.ledger, kind, decision.writes.batch, decision)
        return new

    patch(Ledger, "decide", without)
    patch(Batches, "carry_out", later)
    patch(Batches, "_sweep", lambda *_: None)


def unfenced_second_driver(patch: Patch) -> None:
    """Nobody asks whether another driver is at work."""

    def open_it(self: Ledger) -> None:
        for part in ("", "pins", "batches", "side", "held", "staging"):
            (self.root / part).mkdir(parents=True, exist_ok=True)

    patch(Ledger, "open", open_it)


def null_key_dropped(patch: Patch) -> None:
    """Rows whose key is NULL are gone before anybody counts them."""
    compute = Batches._compute

    def some(self: Batches, frame: DataFrame, *rest: Any) -> Any:
        return compute(self, frame.filter("customer IS NOT NULL"), *rest)

    patch(Batches, "_compute", some)


def swallowed_exception(patch: Patch) -> None:
    """A batch that fails returns as if it had not, and Spark counts it as done."""
    run = Batches.run

    def quiet(self: Batches, frame: DataFrame, job: batch.BatchId, **more: Any) -> Decision:
        with suppress(CrashError):
            return run(self, frame, job, **more)
        last = self.ledger.newest()
        assert last is not None
        return last

    patch(Batches, "run", quiet)


BUGS: dict[str, Callable[[Patch], None]] = {
    bug.__name__: bug
    for bug in (
        no_ledger_check,
        equality_instead_of_at_least,
        no_pin,
        misses_never_dropped,
        held_after_the_commit,
        unfenced_second_driver,
        null_key_dropped,
        swallowed_exception,
    )
}


def plant() -> None:
    """The bug that the environment names, if it names one."""
    if name := os.environ.get(VARIABLE):
        BUGS[name](setattr)
