"""MESHJOIN's figure 11: how much of the join's result is left when the stream is faster than the join.

Of every interval's ρ·w tuples the join can take w. TOPW takes those with most matches in R, keep-w any. No join is run:
the matches of a tuple are known, and the share of the result follows from the tuples that were taken. The strategies
are those of `semistream.shedding` where it is there, else the paper's definitions.
"""

from __future__ import annotations

import importlib.util
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from semistream_lab.cells import Cell
from semistream_lab.workloads.zipf import ZipfWorkload

# arm: strategy, and the skew of R
ARMS = {"topw_01": ("topw", 0.1), "topw_05": ("topw", 0.5), "topw_1": ("topw", 1.0), "keep_w": ("keep_w", 0.5)}
_STREAMS = 10
_KEPT = 20_000  # tuples of a stream that the join can take
_INTERVAL = 1_000  # w


def run(cell: Cell) -> dict[str, Any]:
    """The mean share of join results over ten streams."""
    params = cell.params
    strategy, master_skew = ARMS[cell.arm]
    begun = time.perf_counter()
    domain = params["rows"]
    # As Zipf's law says, not as drawn from it: chance alone would make the values of a uniform R differ. Popular values
    # are popular on both sides.
    matches = np.arange(1, domain + 1) ** -master_skew
    arriving = round(params["speed"] * _INTERVAL)
    shares = []
    for number in range(_STREAMS):
        load = ZipfWorkload(domain, skew=params["skew"], seed=100 + number, shuffled=False)
        stream = matches[load.keys(0, _KEPT // _INTERVAL * arriving)].reshape(-1, arriving)
        shares.append(float(_kept(strategy, stream).sum() / stream.sum()))
    seconds = time.perf_counter() - begun
    return {
        "results_kept": float(np.mean(shares)),
        "segments": {"results_kept": shares},
        "rows_per_second": _STREAMS * len(stream) * arriving / seconds,
        "checksum": {},
    }


def _kept(strategy: str, stream: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Matches of the w tuples that are taken from each interval."""
    if importlib.util.find_spec("semistream.shedding") is not None:
        chosen = importlib.import_module("semistream.shedding").STRATEGIES[strategy]()
        chance = np.random.default_rng(1)
        rows = [chosen.keep(len(one), _INTERVAL, one, chance).rows for one in stream]
        return np.take_along_axis(stream, np.array(rows), axis=1)
    if strategy == "topw":
        return np.partition(stream, stream.shape[1] - _INTERVAL, axis=1)[:, -_INTERVAL:]
    return stream[:, :_INTERVAL]
