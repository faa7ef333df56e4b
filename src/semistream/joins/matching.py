"""Which pairs of a stream row and a master row with equal codes are matches: the one place where that is decided.

The real keys must be equal where the codes are hashes, the master's row must have been valid at the stream row's moment
(`semistream.as_of`), and ``multiple`` says what becomes of a stream row with more than one match.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.errors import FanOutError
from semistream.keys import Mask
from semistream.lookup.bind import LookupPlan

Indices = npt.NDArray[np.int64]


def matching(
    plan: LookupPlan, stream: pa.RecordBatch, left: Indices, before: Mask, column: Callable[[str], pa.Array]
) -> Mask:
    """Which of the pairs count; ``column`` gives the master's column beside ``stream.take(left)``.

    The pairs of a stream row stand together, in the store's order; ``before`` says whether it had a match in an
    earlier piece.
    """
    taken = pa.array(left)
    if plan.codec.exact:
        keep = np.ones(len(left), np.bool_)
    else:
        ours = [stream.column(name).take(taken) for name in plan.stream_keys]
        keep = plan.codec.same(ours, [column(item.name) for item in plan.codec.fields])
    if plan.as_of is not None:
        moments = stream.column(plan.as_of.stream).take(taken)
        keep &= plan.as_of.covers(moments, *(column(name) for name in plan.as_of.master_columns))
    return keep if plan.multiple == "all" else _firsts(plan, stream, left, before, keep)


def _firsts(plan: LookupPlan, stream: pa.RecordBatch, left: Indices, before: Mask, keep: Mask) -> Mask:
    kept = np.flatnonzero(keep)
    of = left[kept]
    new = np.ones(len(of), np.bool_)
    new[1:] = of[1:] != of[:-1]
    new &= ~before[kept]
    if plan.multiple == "error" and not new.all():
        raise FanOutError(_several(plan, stream, int(of[~new][0])))
    result = np.zeros(len(keep), np.bool_)
    result[kept[new]] = True
    return result


def _several(plan: LookupPlan, stream: pa.RecordBatch, row: int) -> str:
    row_words = ", ".join(f"{name}={stream.column(name)[row].as_py()!r}" for name in plan.matching_columns)
    rows = "rows of this key" if plan.as_of is None else f"versions of this key with {plan.as_of}"
    return (
        f"multiple='error': the stream row with {row_words} has more than one match; the master has several {rows}. "
        "Repair the master, or use multiple='all' for all of them or 'first' for one"
    )
