"""Time goes on for a join although its source gives nothing; the thread that reads it ends with its reader."""

from __future__ import annotations

import gc
import itertools
import math
import queue
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semistream import MasterStore, join
from semistream.budget import Budget
from semistream.joins.sweep.join import SweepJoin, SweepSettings
from semistream.lookup.bind import bind
from semistream.lookup.pacing import paced
from semistream.lookup.run import make_join
from semistream.lookup.spec import LookupSpec
from tests.waiting import wait_until

WAIT = 5.0


def rows_of(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"k": pa.array(values, pa.int64())})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> MasterStore:
    master = pa.table({"k": range(3_000), "v": range(3_000)})
    return MasterStore.build(master, tmp_path_factory.mktemp("pacing") / "store", key="k")


class Script:
    """A source whose batches come at given seconds of a clock that stands still otherwise."""

    def __init__(self, arrivals: list[tuple[float, pa.RecordBatch]]) -> None:
        self.now = 0.0
        self._left = list(arrivals)

    def clock(self) -> float:
        return self.now

    def get(self, timeout: float | None) -> pa.RecordBatch | None:
        if not self._left:
            if timeout is None:
                return None
            self.now += timeout
            raise queue.Empty
        at, batch = self._left[0]
        if timeout is not None and at > self.now + timeout:
            self.now += timeout
            raise queue.Empty
        self.now = max(self.now, at)
        del self._left[0]
        return batch


def handed_over(arrivals: list[tuple[float, pa.RecordBatch]], working: float = 0.0) -> list[tuple[float, int]]:
    """When the join was handed how many rows, of which it takes some seconds each time."""
    script, found = Script(arrivals), []
    for batch in paced(script.get(None), script.get, WAIT, lambda: None, script.clock):
        found.append((script.now, batch.num_rows))
        script.now += working
    return found


def test_nothing_is_added_while_nobody_waits() -> None:
    assert handed_over([(100.0, rows_of(1))]) == [(100.0, 1), (100.0 + WAIT, 0)]


def test_one_batch_without_rows_after_the_wait_and_no_more() -> None:
    assert handed_over([(0.0, rows_of(1)), (1_000.0, rows_of(2))]) == [(0, 1), (WAIT, 0), (1_000, 1), (1_000 + WAIT, 0)]


def test_rows_that_trickle_wait_no_longer_than_the_first_of_them_may() -> None:
    found = handed_over([(float(second), rows_of(second)) for second in range(12)])
    assert [at for at, rows in found if rows == 0] == [5.0, 11.0]


def test_a_source_that_is_faster_than_the_join_is_never_interrupted() -> None:
    found = handed_over([(0.1 * n, rows_of(n)) for n in range(50)], working=2 * WAIT)
    assert [rows for _, rows in found] == [1] * 50 + [0]


def test_a_batch_without_rows_of_the_source_itself_goes_through() -> None:
    assert handed_over([(0.0, rows_of(1)), (2.0, rows_of())]) == [(0, 1), (2, 0)]


@pytest.mark.parametrize("seed", range(5))
def test_sweep_gives_every_row_out_in_time(store: MasterStore, seed: int) -> None:
    """Whatever comes when: windows that fill up in between, silence, bursts. Nothing here takes any time by itself."""
    chooser = np.random.default_rng(seed)
    times = np.cumsum(chooser.choice([0.0, 0.4, 3.0, 11.0], 60))
    sizes = chooser.choice([1, 5, 400], 60)
    numbers = itertools.count()
    arrivals = [
        (float(at), rows_of(*(next(numbers) * 7 % 4_000 for _ in range(size))))
        for at, size in zip(times, sizes, strict=True)
    ]
    came: dict[int, list[float]] = {}
    for at, batch in arrivals:
        for key in batch.column("k").to_pylist():
            came.setdefault(key, []).append(at)
    script = Script(arrivals)
    plan = bind(LookupSpec(on="k"), rows_of().schema, store)
    running = SweepJoin(store, plan, Budget(60_000), SweepSettings(wait_seconds=WAIT), clock=script.clock)
    count = 0
    for batch in running.join(paced(script.get(None), script.get, WAIT, running.due, script.clock)):
        for key in batch.column("k").to_pylist():
            assert script.now - came[key].pop(0) <= WAIT + 1e-6
            count += 1
    assert count == sizes.sum()
    assert running.stats.sweeps > 5
    running.check()


# -- the thread --------------------------------------------------------------------------------------------------------


def reading() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "semistream-source"]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    wait_until(lambda: not reading())


def endless(pulled: list[int]) -> Iterator[pa.RecordBatch]:
    for number in itertools.count():
        pulled.append(number)
        yield rows_of(number)


def test_batches_are_read_when_they_are_asked_for_and_not_before(store: MasterStore) -> None:
    pulled: list[int] = []
    given = 0
    for batch in join(endless(pulled), store, on="k", algorithm="inl", memory="1MB"):
        given += batch.num_rows
        assert len(pulled) == given
        if given == 20:
            break


def test_an_error_of_the_source_is_raised_where_the_rows_are_read(store: MasterStore) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield rows_of(1)
        raise ConnectionError("the broker is gone")

    with pytest.raises(ConnectionError, match="the broker is gone") as caught:
        list(join(failing(), store, on="k"))
    assert "failing" in [entry.name for entry in caught.traceback]
    with pytest.raises(ConnectionError, match="at once"):
        join((_ for _ in [1] if _fail("at once")), store, on="k")


def _fail(words: str) -> bool:
    raise ConnectionError(words)


def test_a_thread_ends_with_its_stream_its_reader_and_its_error(store: MasterStore) -> None:
    list(join(iter([rows_of(1)]), store, on="k"))
    left: Any = join(endless([]), store, on="k", algorithm="inl", memory="1MB")
    next(left)
    left.close()
    wait_until(lambda: not reading())
    begun = join(endless([]), store, on="k")
    assert len(reading()) == 1
    del begun
    gc.collect()
    wait_until(lambda: not reading())
    with pytest.raises(ValueError, match="no_such"):
        join(endless([]), store, on="no_such")


@pytest.mark.parametrize("algorithm", ["sweep", "hybrid", "pcsrj"])
def test_a_reader_can_leave_a_source_that_blocks(store: MasterStore, algorithm: str) -> None:
    gone = threading.Event()

    def blocking() -> Iterator[pa.RecordBatch]:
        yield rows_of(1, 2)
        gone.wait()

    left: Any = join(blocking(), store, on="k", algorithm=algorithm, memory=100_000, wait_seconds=0.01)
    next(left)
    left.close()
    gone.set()


@pytest.mark.parametrize("wait", [None, 3.0])
def test_what_lies_in_memory_needs_no_thread(store: MasterStore, wait: float | None) -> None:
    for source in ([rows_of(1)], (rows_of(1),), pa.Table.from_batches([rows_of(1)])):
        assert sum(batch.num_rows for batch in join(source, store, on="k", wait_seconds=wait)) == 1
        assert not reading()


def test_without_a_deadline_the_source_is_read_in_the_callers_thread(store: MasterStore) -> None:
    def stream() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            seen.add(threading.current_thread())
            yield rows_of(number)

    for wait, here in ((math.inf, True), (None, False)):
        seen: set[threading.Thread] = set()
        assert len(list(join(stream(), store, on="k", algorithm="inl", memory="1MB", wait_seconds=wait))) == 3
        assert (seen == {threading.current_thread()}) == here
        assert len(seen) == 1


def test_the_argument_reaches_the_join(store: MasterStore) -> None:
    def made(**options: Any) -> Any:
        return make_join(rows_of().schema, store, on="k", memory=100_000, **options)

    assert made(algorithm="sweep", wait_seconds=7).settings.wait_seconds == 7
    settings = SweepSettings(wait_seconds=2.0, cache_share=0.5)
    assert made(algorithm="sweep", settings=settings).settings == settings
    assert made(algorithm="sweep", settings=settings, wait_seconds=7).settings == SweepSettings(7, cache_share=0.5)
    assert made(algorithm="hybrid", wait_seconds=7).due() is None
