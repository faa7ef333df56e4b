"""The way out of a decision that cannot be carried out: it is withdrawn, if no table shows anything of it.

A decision is a promise: whoever starts the pipeline carries it out first. All that it needs is looked at before it is
written; but a file may be lost afterwards, or a table changed by hand, and then the same error would come at every
start. What nobody has seen may be computed again. So the decision is taken out of the ledger, with the pin of its
batch, and its rows come again: those of Spark's batch with its replay, held ones from the files of the decision before
it, which are kept until this one is carried out, and rows that were sent again from the table in which they still are.
Members that were made for it stay, and get the same keys.
"""

from __future__ import annotations

from pathlib import Path

from semistream.errors import ArgumentError, StateError
from semistream.pipeline.batch import BATCHES, SIDE
from semistream.pipeline.decision import Decision
from semistream.pipeline.ledger import Ledger
from semistream.warehouse.contract import Warehouse


def undo(ledger: Ledger, warehouse: Warehouse, checkpoint: Path, batch: int | None) -> Decision:
    """Withdraw the decision that was made last, or say why it must stay. The caller has the ledger's lock."""
    latest = ledger.latest()
    if not latest:
        raise StateError(f"{ledger.root} has decided nothing, so there is nothing to take back")
    last = latest[-1]
    number = last.writes.batch
    kind = BATCHES if ledger.decided(BATCHES, number) == last else SIDE
    if batch is not None and batch != number:
        raise ArgumentError(
            f"batch={batch} is not the one decided last, which is {number}; only that can be taken back"
        )
    if kind == BATCHES and (checkpoint / "commits" / str(number)).exists():
        raise StateError(
            f"batch {number} of {ledger.name!r} is done, and Spark will not bring its rows again: taking it back would "
            "lose them. If a table was dropped or set back, restore it"
        )
    seen = warehouse.visible(last.writes)
    if seen:
        raise StateError(
            f"batch {number} of {ledger.name!r} is in {', '.join(seen)} of {warehouse.describe()} already: taking it "
            "back would load its rows twice. Start the pipeline, which carries out the rest"
        )
    ledger.withdraw(kind, number)
    return last
