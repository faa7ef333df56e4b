"""What rows take in memory, guessed from the store's means: in the output while it is made, and in a cache's cells."""

from __future__ import annotations

from semistream.joins.window import stream_row_bytes
from semistream.lookup.bind import LookupPlan
from semistream.rows import Projection, RowLayout
from semistream.stores.contract import StoreFacts


def projected(facts: StoreFacts, plan: LookupPlan) -> RowLayout:
    """The layout of the rows as a join needs them."""
    return Projection(facts.layout, plan.needed).target


def text_bytes(facts: StoreFacts, layout: RowLayout) -> float:
    """Mean bytes of the text of a row in this layout, which has some of the store's columns."""
    texts, of_store = int((layout.widths == 0).sum()), int((facts.layout.widths == 0).sum())
    return facts.text_bytes * texts / max(1, of_store)


def output_row_bytes(facts: StoreFacts, plan: LookupPlan) -> int:
    """What a row of output takes while it is made, with a copy of the master's row."""
    layout = projected(facts, plan)
    text = 0.0 if layout.fixed else facts.text_bytes
    return int(2 * stream_row_bytes(plan.stream) + 2 * layout.head + text + 64)


def cell_bytes(facts: StoreFacts, layout: RowLayout, rows: float = 1.0, room: float = 1.5) -> int:
    """The bytes of a cell for a key's rows: exact for one of fixed width, else with room for more than the mean."""
    if layout.fixed and rows == 1.0:
        return max(1, layout.head)
    return min(int(rows * (layout.head + text_bytes(facts, layout)) * room) + 1, facts.page_bytes)
