"""OPTOFFLINESHED: the least loss that any strategy can have, knowing the whole stream (MESHJOIN paper, section 4.2).

A bound to compare others with, not a strategy for a running stream. A buffer takes up to w rows. When it is full and
the join has asked for rows, it is handed over, and the join asks again c_loop rows later; while it is full and the join
has not asked, rows are lost. What is best from row i on depends only on r, the rows until the join asks (0: it has
asked), and sb, the rows in the buffer:

    loss(i, r, sb < w)      = min(loss(i+1, r', sb) + f_R(i), loss(i+1, r', sb+1))      with r' = max(r-1, 0)
    loss(i, r > 0, sb = w)  = loss(i+1, r', w) + f_R(i)
    loss(i, 0, sb = w)      = loss(i, c_loop, 0)

Departures. The printed listing forgets f_R(i) in its line 11, lets sb run past the buffer, and keeps a table for every
request time up to the stream's end, where only r from 0 to c_loop matters. Here a table is kept for every √|S|-th row
and those between are made again: O(|S|·c_loop·w) time, O(√|S|·c_loop·w) space.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from semistream.errors import ArgumentError
from semistream.shedding.strategy import Numbers, Positions

_Table = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Optimum:
    """The least loss, and rows that reach it."""

    loss: float
    rows: Positions


def optimal_offline(counts: npt.ArrayLike, loop_rows: int, most: int) -> Optimum:
    """The best there is for f_R of every row of a stream; ``loop_rows`` is c_loop, ``most`` is w.

    >>> best = optimal_offline([1, 1, 1, 1, 3, 3, 3, 3], loop_rows=4, most=2)
    >>> best.loss, best.rows.tolist()
    (2.0, [0, 1, 4, 5, 6, 7])
    """
    given = np.asarray(counts, np.float64)
    if given.ndim != 1 or not np.isfinite(given).all() or (given < 0).any():
        raise ArgumentError("counts must be one number for each row of the stream, 0 or more")
    for name, value in (("loop_rows", loop_rows), ("most", most)):
        if type(value) is not int or value < 1:
            raise ArgumentError(f"{name}={value!r} must be a whole number of rows, at least 1")
    size = len(given)
    step = max(1, math.isqrt(size))
    last = np.zeros((loop_rows + 1, most + 1))
    saved = {size: last}
    for row in range(size - 1, -1, -1):
        last = _before(last, given[row])
        if row % step == 0:
            saved[row] = last
    kept = _follow(given, saved, step)
    return Optimum(float(last[0, 0]), kept)


def _before(after: _Table, lost: float) -> _Table:
    """The table of row i from that of row i + 1: [r, sb] -> loss."""
    moved = after[np.maximum(np.arange(len(after)) - 1, 0)]
    table = np.empty_like(after)
    np.minimum(moved[:, :-1] + lost, moved[:, 1:], out=table[:, :-1])
    table[1:, -1] = moved[1:, -1] + lost
    table[0, -1] = table[-1, 0]
    return table


def _follow(counts: Numbers, saved: dict[int, _Table], step: int) -> Positions:
    """Go through the stream again, along the choices that the tables call best."""
    size = len(counts)
    loop_rows, full = (length - 1 for length in saved[size].shape)
    kept = []
    until, stored = 0, 0
    for start in range(0, size, step):
        end = min(start + step, size)
        tables = [saved[end]]
        for row in range(end - 1, start, -1):
            tables.append(_before(tables[-1], counts[row]))
        for row in range(start, end):
            after = tables.pop()
            if stored == full and until == 0:
                until, stored = loop_rows, 0
            until_next = max(until - 1, 0)
            if stored < full and after[until_next, stored + 1] <= after[until_next, stored] + counts[row]:
                kept.append(row)
                stored += 1
            until = until_next
    return np.array(kept, np.int64)
