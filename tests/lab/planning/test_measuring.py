"""Measuring over whole rounds: a join that gathers and then reads is seen neither too fast nor too slow."""

from __future__ import annotations

import math

from semistream.budget import Budget
from semistream.joins import JOINS
from semistream.joins.contract import Join
from semistream.joins.sweep.join import SweepJoin, SweepSettings
from semistream.lookup.bind import LookupPlan
from semistream.stores import MasterStore
from semistream_lab.measuring import Feed, Limits
from semistream_lab.workloads.zipf import ZipfWorkload

ROWS, BATCH = 60_000, 500


def fed(join: Join, store: MasterStore, rows: int, warm: int = ROWS) -> Feed:
    load = ZipfWorkload(ROWS)
    limits = Limits(warm, rows, math.inf, math.inf, BATCH)
    feed = Feed(join, limits.batches(load), limits)
    assert sum(out.num_rows for out in join.join(feed.stream())) == feed.fed
    assert feed.fed == warm + rows
    return feed


def test_whole_rounds(store: MasterStore, question: LookupPlan) -> None:
    join = SweepJoin(store, question, Budget(store.bytes // 10), SweepSettings(wait_seconds=1e9))
    feed = fed(join, store, 3 * ROWS)
    begin, end = feed.moments[0], feed.moments[-1]
    assert end.stats.sweeps - begin.stats.sweeps >= 3
    assert begin.rows > ROWS
    assert end.rows < feed.fed
    assert feed.figures()["rows"] == end.rows - begin.rows


def test_no_rounds(store: MasterStore, question: LookupPlan) -> None:
    feed = fed(JOINS["inl"](store, question, Budget(store.bytes // 10)), store, 8_000, 4_000)
    assert (feed.moments[0].rows, feed.moments[-1].rows) == (4_000, 12_000)
    assert [one.rows for one in feed.moments] == list(range(4_000, 12_001, 1_000))  # eight segments
