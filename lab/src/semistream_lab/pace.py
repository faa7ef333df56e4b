"""How fast the machine is at this moment, by one run that is always the same.

A machine that is shared with others does the same work in 0.6 of the time a quarter of an hour later. What was measured
at two moments can be compared when this run's rate is known for both.
"""

from __future__ import annotations

from semistream.budget import Budget
from semistream.joins import JOINS
from semistream.lookup.bind import bind
from semistream.lookup.spec import LookupSpec
from semistream.stores import MasterStore
from semistream_lab.measuring import endless, measure
from semistream_lab.workloads.zipf import ZipfWorkload

PACE_ROWS = 200_000  # of the master
_SECONDS = 0.5


def pace(store: MasterStore) -> float:
    """Rows/s of `sweep` with a tenth of a store, a Zipf master of `PACE_ROWS`, in memory; the stream has exponent 1."""
    load = ZipfWorkload(store.rows, skew=1.0)
    plan = bind(LookupSpec(on="key", columns=["surrogate", "price"]), load.stream(0, 1).schema, store)
    seen = measure(
        JOINS["sweep"](store, plan, Budget(store.bytes // 10)),
        endless(load),
        warm_rows=2 * store.rows,
        warm_seconds=2 * _SECONDS,
        seconds=_SECONDS,
    )
    return seen.rows_per_second
