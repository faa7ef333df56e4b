"""The capacity planner: how much memory for a rate, which rate from some memory, and by which join.

>>> round(skew_of(np.repeat(np.arange(100, dtype=np.uint64), 10), 100), 2)  # every key equally often
0.0
"""

import numpy as np
import pyarrow as pa

from semistream.errors import ArgumentError, MemoryBudgetError
from semistream.joins import JOINS
from semistream.joins.contract import Profile
from semistream.joins.costs import Popularity
from semistream.joins.sizes import stream_row_bytes
from semistream.keys import Codes
from semistream.lookup.bind import LookupPlan
from semistream.lookup.choose import Choice, choose_algorithm
from semistream.planner.rates import current_costs
from semistream.stores.contract import Store


def expected(store: Store, plan: LookupPlan, memory_bytes: int, profile: Profile) -> Choice:
    """The join to use with some memory, and its rate."""
    return choose_algorithm("auto", store, plan, memory_bytes, profile=profile, costs=current_costs())


def least_memory(store: Store, plan: LookupPlan, rate: float, profile: Profile) -> Choice:
    """The least memory with which a core is expected to reach ``rate`` rows/s."""
    if rate <= 0:
        raise ArgumentError(f"rate={rate:g} must be more than 0 rows/s")
    low = JOINS["sweep"].least_bytes(store.facts, plan)
    high = 2 * JOINS["whole"].least_bytes(store.facts, plan) + low
    most = expected(store, plan, high, profile)
    if most.rows_per_second < rate:
        cores = int(np.ceil(rate / most.rows_per_second))
        raise MemoryBudgetError(
            f"rate={rate:,.0f} rows/s is more than a core reaches with the whole master in memory "
            f"({most.rows_per_second:,.0f}); spread the stream over at least {cores} cores, for example Spark tasks"
        )
    found = most
    for _ in range(24):
        middle = int(np.sqrt(float(low) * high))
        here = expected(store, plan, middle, profile)  # there is room: low is the least that `sweep` takes
        if here.rows_per_second >= rate:
            found, high = here, middle
        else:
            low = middle
        if high - low <= max(4096, high // 100):
            break
    return found


def stream_schema(store: Store, row_bytes: int = 20) -> pa.Schema:
    """The schema of a stream that is not there yet: the store's key, and as many other columns as make up a row."""
    keys = pa.schema([pa.field(item.name, item.type) for item in store.codec.fields])
    others = max(0, row_bytes - stream_row_bytes(keys)) // 4
    return pa.schema([*keys, *(pa.field(f"_column{i}", pa.int32()) for i in range(others))])


def skew_of(codes: Codes, keys: int) -> float:
    """The Zipf exponent of a sample: the one with which so many rows would have so many different keys."""
    rows = len(codes)
    if rows == 0:
        raise ArgumentError("the sample is empty; give some rows of the stream, or --skew")
    distinct = len(np.unique(codes))
    low, high = 0.0, 4.0  # no stream is as skewed as that
    if distinct >= Popularity(keys, 0.0).distinct(rows):
        return 0.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if Popularity(keys, middle).distinct(rows) > distinct else (low, middle)
    return low
