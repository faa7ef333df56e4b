"""What rows take in memory, guessed from types and a store's means: waiting, in the output, in a cache's cells.

A waiting row is charged for its bytes, its code, and the larger of what putting together takes at a sweep (the widest
column once more, as it goes column by column) and what meeting takes (share by share, see `semistream.joins.window`).
"""

import pyarrow as pa

from semistream.lookup.bind import LookupPlan
from semistream.rows import Projection, RowLayout, varies
from semistream.stores.contract import StoreFacts

_WORK_BYTES = 28  # where rows are met all at once: a place in the order, a code, its group's start, and flags
_CODE_BYTES = 8
SHARE_BYTES = 12  # where they are met share by share: flags, and what the share at work takes, spread over all


def _column_bytes(schema: pa.Schema) -> list[int]:
    """A guess of each column's bytes per row, before the first batch is seen."""
    return [24 if varies(field.type) else max(1, field.type.bit_width // 8) for field in schema]


def stream_row_bytes(schema: pa.Schema) -> int:
    """A guess of a stream row's bytes."""
    return max(1, sum(_column_bytes(schema)))


def charge(batch: pa.RecordBatch) -> int:
    """Bytes that these rows take in the window and while they are swept."""
    sizes = [column.nbytes for column in batch.columns]
    return sum(sizes) + _CODE_BYTES * batch.num_rows + max(*sizes, SHARE_BYTES * batch.num_rows)


def row_charge(schema: pa.Schema) -> int:
    """What one row may be charged at most, guessed from its types."""
    return 2 * stream_row_bytes(schema) + _WORK_BYTES


def waiting_bytes(schema: pa.Schema) -> int:
    """What one row is charged among many."""
    return stream_row_bytes(schema) + _CODE_BYTES + max(*_column_bytes(schema), SHARE_BYTES)


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
