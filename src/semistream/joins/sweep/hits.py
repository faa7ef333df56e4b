"""Output of rows that the cache answers, copied while the cache may not change."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.joins.output import Output
from semistream.joins.sweep.cache import TupleCache
from semistream.keys import Codes


def pairs_of_hits(
    cache: TupleCache,
    output: Output,
    stream: pa.RecordBatch,
    codes: Codes,
    values: npt.NDArray[np.int64],
    *,
    simple: bool,
) -> list[pa.RecordBatch]:
    """Stream rows beside the cached rows at ``values``, as `TupleCache.probe` gives them.

    Some values are changed: a damaged hit becomes a miss (0), one of another key with the same code no match (1).
    ``simple`` says that every value is one row of fixed width.
    """
    if output.sure and not output.wants_rows:
        return []
    if simple and output.sure:
        from semistream.kernels.cache_values import found_values

        left, their, rows = np.empty(len(values), np.int64), np.empty_like(codes), np.empty_like(values)
        count = found_values(values, codes, left, their, rows)
        if count == len(values):
            return [output.pairs(stream, None, codes, values)]
        return [output.pairs(stream, left[:count], their[:count], rows[:count])] if count else []
    hit_rows = np.flatnonzero(values > 1)
    if len(hit_rows) == 0:
        return []
    left, rows, kept = hit_rows, values[hit_rows], None
    if not simple:
        index, rows, kept = cache.spread(rows)
        left = hit_rows[index]
    if len(np.unique(left)) < len(hit_rows):  # a value whose cells were damaged: read it again
        values[np.setdiff1d(hit_rows, left)] = 0
    if not output.sure:
        same = output.matching(stream, left, rows, np.zeros(len(left), np.bool_))
        found = np.zeros(len(values), np.bool_)
        found[left[same]] = True
        values[left[~found[left]]] = 1
        left, rows = left[same], rows[same]
    made = list(output.bounded_pairs(stream, left, codes[left], rows)) if output.wants_rows else []
    del kept
    return made
