"""What the cost models of the papers' joins share: Zipf shares, and tuples a read of a queue join."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from semistream.contracts import JoinPlan, Prediction
from semistream.joins._stream_table import slot_bytes
from semistream.joins._waiting_join import buffer_bytes

TUPLE_SECONDS = 0.5e-6  # encode, insert, delete and output of a stream tuple
PROBE_SECONDS = 0.02e-6  # a probe of a table for a row of R
_MODEL_PARTITIONS = 20_000


def zipf_share(first: float, keys: int, skew: float) -> float:
    """Share of a Zipf stream that falls on its ``first`` most frequent keys."""
    if first <= 0:
        return 0.0

    def harmonic(n: float) -> float:
        exact = min(n, 1000.0)
        head = float(np.sum(np.arange(1, int(exact) + 1, dtype=np.float64) ** -skew))
        if n <= exact:
            return head
        if abs(skew - 1) < 1e-9:
            return head + math.log((n + 0.5) / (exact + 0.5))
        return head + ((n + 0.5) ** (1 - skew) - (exact + 0.5) ** (1 - skew)) / (1 - skew)

    return min(1.0, harmonic(first) / harmonic(keys))


def tuples_per_read(slots: float, partitions: int, keys: int, skew: float, cached: int = 0) -> float:
    """w of HYBRIDJOIN: solve h_S = Σ p_i/(1+p_i·T)·(T + p_i·T²/2) for T; then w = 1/Σ(p_i/(1+p_i·T)).

    Keys are shuffled over the partitions; the ``cached`` most frequent never wait.
    """
    n = max(1, min(partitions, _MODEL_PARTITIONS))
    ranks = np.arange(cached + 1, cached + 1 + min(keys - cached, 200_000), dtype=np.float64)
    weights = ranks**-skew
    chooser = np.random.default_rng(1)
    p = np.bincount(chooser.integers(0, n, len(ranks)), weights, n).astype(np.float64)
    tail = keys - cached - len(ranks)
    if tail > 0:
        p = p + float(np.sum(np.linspace(ranks[-1] + 1, keys, 1000) ** -skew)) / 1000 * tail / n
    p = p / p.sum()
    low, high = 0.0, 1e15
    for _ in range(100):
        middle = (low + high) / 2 if high < 1e14 else max(1.0, low * 2)
        waiting = float(np.sum(p / (1 + p * middle) * (middle + p * middle**2 / 2)))
        if waiting > slots:
            high = middle
        else:
            low = middle
        if high - low < 1e-6 * max(1.0, low):
            break
    return 1 / float(np.sum(p / (1 + p * low))) * partitions / n if low > 0 else 1.0


def hybrid_prediction(kind: Any, store: Any, plan: JoinPlan, memory_bytes: int, skew: float, cached: int) -> Prediction:
    """Rate and division of a queue join whose ``cached`` most frequent keys are answered from memory."""
    spare = max(0, memory_bytes - kind.least_bytes(store, plan))
    buffer = buffer_bytes(store, spare, kind.buffer_share)
    cache_bytes = int(cached * (store.row_bytes + 24))
    rest = max(0, memory_bytes - store.index_bytes - buffer - cache_bytes)
    slots = max(1, rest // slot_bytes(plan.stream))
    keys = max(1, sum(entry.keys for entry in store.manifest.segments))
    cached = min(cached, keys - 1)
    partitions = max(1, -(-store.pages * store.page_bytes // max(1, buffer)))
    hits = zipf_share(cached, keys, skew)
    w = tuples_per_read(slots, partitions, keys, skew, cached)
    rows = buffer / max(1.0, store.row_bytes)
    loop = store.device.seconds(1, buffer) + rows * PROBE_SECONDS + w * TUPLE_SECONDS
    rate = w / max(1e-9, 1 - hits) / (loop + w * hits / max(1e-9, 1 - hits) * TUPLE_SECONDS / 4)
    parts = {"index": store.index_bytes, "disk buffer": buffer, "cache": cache_bytes, "stream table": rest}
    return Prediction(rate, hits, parts, f"{w / max(1e-9, 1 - hits):.1f} tuples a read on a Zipf stream of {skew:g}")
