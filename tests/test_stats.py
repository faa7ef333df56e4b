"""Counters: the accounting rule, sums and differences."""

from __future__ import annotations

from dataclasses import fields

import pytest

from semistream.errors import AccountingError
from semistream.stats import Stats


def test_every_row_is_accounted_for_once() -> None:
    Stats().check()
    Stats(rows_in=7, matched=1, unmatched=2, shed=4).check()
    for wrong in (Stats(rows_in=1), Stats(matched=1), Stats(rows_in=2, matched=1, unmatched=2)):
        with pytest.raises(AccountingError, match=r"sweep: .* rows came in, but .* are accounted for .*report"):
            wrong.check("sweep")


def test_flows_add_up_states_do_not() -> None:
    ones, twos = (Stats(**{field.name: number for field in fields(Stats)}) for number in (1, 2))
    total = (ones + twos).as_dict()
    states = {"cached_rows", "cached_bytes", "peak_bytes", "master_version"}
    assert {name for name, value in total.items() if value == 2} == states
    assert {value for name, value in total.items() if name not in states} == {3}
    assert ones.rows_in == 1


def test_since() -> None:
    stats = Stats(rows_in=5, matched=5, peak_bytes=100, hits=3)
    before = stats.copy()
    stats.rows_in += 2
    stats.unmatched += 2
    stats.peak_bytes = 150
    after = stats.since(before)
    assert (after.rows_in, after.matched, after.unmatched, after.peak_bytes, after.hits) == (2, 0, 2, 150, 0)
    assert before.rows_in == 5
    after.check()


def test_ratios() -> None:
    assert Stats().hit_ratio == 0.0
    stats = Stats(rows_in=4, matched=1, unmatched=3, hits=3, misses=1)
    assert stats.hit_ratio == 0.75
