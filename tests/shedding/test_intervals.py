"""How many rows of an interval may be kept, by a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.shedding.intervals import TimedIntervals, share_of_blocks
from tests.shedding.clocks import Clock, every


def rows(*counts: int) -> list[pa.RecordBatch]:
    """Batches of numbered rows."""
    starts = [sum(counts[:place]) for place in range(len(counts))]
    return [pa.record_batch({"n": range(start, start + count)}) for start, count in zip(starts, counts, strict=True)]


def shape(intervals: Iterable[tuple[pa.RecordBatch, int]]) -> list[tuple[int, int]]:
    return [(batch.num_rows, most) for batch, most in intervals]


class TestGivenRate:
    def test_no_more_rows_than_time_allows(self) -> None:
        clock = Clock()
        found = shape(TimedIntervals(100, clock)(every(0.5, rows(200, 200, 200, 10, 200), clock)))
        # A second's worth to begin with; what the fourth leaves over, the fifth may use.
        assert found == [(200, 150), (200, 50), (200, 50), (10, 10), (200, 90)]

    def test_a_pause_is_no_licence_beyond_a_second(self) -> None:
        clock = Clock()
        found = shape(TimedIntervals(100, clock)(every(0.01, rows(*[1] * 500, 900), clock)))
        assert found[:500] == [(1, 1)] * 500
        assert found[500] == (900, 101)

    def test_a_slow_stream_is_left_alone(self) -> None:
        clock = Clock()
        assert shape(TimedIntervals(100, clock)(every(1.0, rows(90, 90, 90), clock))) == [(90, 90)] * 3

    def test_what_cannot_keep_one_row_is_put_together(self) -> None:
        clock = Clock()
        batches = rows(*[2] * 40)
        found = shape(TimedIntervals(1.0, clock)(every(0.25, batches, clock)))
        assert found[:3] == [(2, 1), (6, 1), (8, 1)]
        assert sum(count for count, _ in found) == 80
        assert found[-1][1] == 1

    def test_long_intervals_are_cut(self) -> None:
        clock = Clock()
        found = shape(TimedIntervals(10, clock, most_rows=40)(every(1.0, rows(100), clock)))
        assert found == [(40, 8), (40, 8), (20, 4)]
        few = shape(TimedIntervals(0.5, clock, most_rows=40)(every(1.0, rows(100), clock)))
        assert few == [(40, 1), (40, 1), (20, 1)]  # none goes unseen, or a sample would not be one


class TestServiceRate:
    def polls(self, clock: Clock, arrivals_a_second: int, seconds: float, polls: int) -> Iterator[pa.RecordBatch]:
        """All that has arrived since the last time, at least every so many seconds."""
        last = clock.now
        for _ in range(polls):
            clock.now = max(clock.now, last + seconds)
            count = int((clock.now - last) * arrivals_a_second)
            last = clock.now
            yield rows(count)[0]

    def test_keeps_what_the_join_can_do(self) -> None:
        clock = Clock()
        kept: list[tuple[int, int]] = []
        for batch, most in TimedIntervals(None, clock)(self.polls(clock, 1000, 1.0, 12)):
            kept.append((batch.num_rows, most))
            clock.now += most / 500  # the join does 500 rows a second
        assert kept[0] == (1000, 1000)  # nothing is known yet
        for arrived, most in kept[1:]:
            assert abs(most / arrived - 0.5) < 0.02

    def test_a_join_that_keeps_up_gets_everything(self) -> None:
        clock = Clock()
        for batch, most in TimedIntervals(None, clock)(self.polls(clock, 1000, 1.0, 12)):
            assert most == batch.num_rows
            clock.now += most / 2000


@settings(max_examples=100, deadline=None)
@given(
    counts=st.lists(st.integers(0, 60), min_size=1, max_size=12),
    share=st.floats(0, 1),
    block_rows=st.integers(1, 50),
)
def test_blocks_do_not_depend_on_batches(counts: list[int], share: float, block_rows: int) -> None:
    cut = list(share_of_blocks(rows(*counts), share, block_rows))
    whole = list(share_of_blocks(rows(sum(counts)), share, block_rows))
    assert [(block.to_pydict(), most) for block, most in cut] == [(b.to_pydict(), most) for b, most in whole]
    assert sum(block.num_rows for block, _ in cut) == sum(counts)
    assert all(1 <= most <= block.num_rows for block, most in cut)
    kept = sum(most for _, most in cut)
    assert kept <= share * sum(counts) + len(cut)
