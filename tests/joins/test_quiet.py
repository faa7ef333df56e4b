"""A quiet source holds no rows back: batches without rows, sources that block, rows that trickle."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semistream import join
from semistream.budget import Budget
from semistream.joins import JOINS
from semistream.joins.conditions import Band
from semistream.joins.contract import Join
from semistream.joins.papers.pcsrj import ParallelCacheJoin, PcsrjSettings
from semistream.joins.sweep.join import SweepJoin, SweepSettings
from semistream.lookup.bind import bind
from semistream.lookup.run import make_join
from semistream.lookup.spec import HOWS, How, JoinSpec
from semistream.shedding import Shed
from semistream.stores import MasterStore
from tests.tables import assert_same_rows, model_join, table_of

KEYS, ROWS, MEMORY = 4_000, 50, 200_000
PATIENCE = 120.0  # seconds until a test that hangs fails; nothing is measured by it


@pytest.fixture(scope="module")
def master() -> pa.Table:
    return pa.table(
        {"k": range(0, 2 * KEYS, 2), "v": [n / 4 for n in range(KEYS)], "name": [f"n{n}" * 3 for n in range(KEYS)]}
    )


@pytest.fixture(scope="module")
def store(master: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> MasterStore:
    return MasterStore.build(master, tmp_path_factory.mktemp("quiet") / "store", key="k")


def lot(number: int) -> pa.RecordBatch:
    """Keys far apart, each on a page of its own; a third of them absent."""
    at = range(number * ROWS, (number + 1) * ROWS)
    return pa.record_batch({"k": pa.array([(n * 631) % (3 * KEYS) for n in at]), "row": pa.array(at)})


class Heard:
    """What has come out, and whether that is all of the rows that went in."""

    def __init__(self, how: How, master: pa.Table) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.arrived = threading.Condition()
        self._how, self._master = how, master

    def expected(self, lots: int) -> pa.Table:
        return model_join(pa.Table.from_batches([lot(n) for n in range(lots)]), self._master, "k", self._how)

    def add(self, batch: pa.RecordBatch) -> None:
        with self.arrived:
            self.batches.append(batch)
            self.arrived.notify_all()

    def has(self, lots: int) -> bool:
        return sum(batch.num_rows for batch in self.batches) >= self.expected(lots).num_rows

    def wait_for(self, lots: int) -> bool:
        with self.arrived:
            return self.arrived.wait_for(lambda: self.has(lots), PATIENCE)


def made_of(name: str, store: MasterStore, how: How, now: list[float], **options: Any) -> Join:
    plan = bind(JoinSpec(on="k", how=how, **options), lot(0).schema, store)
    if name == "sweep":
        return SweepJoin(store, plan, Budget(MEMORY), clock=lambda: now[0])
    return JOINS[name](store, plan, Budget(MEMORY))


def asked() -> list[Any]:
    """Every join with one ``how`` in turn, with all of them in the long tests."""
    return [
        pytest.param(name, how, marks=[pytest.mark.long] if (turn + at) % 4 else [])
        for turn, name in enumerate(JOINS)
        for at, how in enumerate(HOWS)
    ]


@pytest.mark.parametrize("name, how", asked())
def test_batches_without_rows_let_all_that_wait_leave(
    store: MasterStore, master: pa.Table, name: str, how: How
) -> None:
    now, heard, late = [0.0], Heard(how, master), []

    def stream() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            yield lot(number)
            now[0] += 1.0  # as long as rows may wait
            yield lot(number).slice(0, 0)
            if name == "pcsrj":  # this runs in a thread of its own
                heard.wait_for(number + 1)
            if not heard.has(number + 1):
                late.append(number)
            yield lot(number).slice(0, 0)

    running = made_of(name, store, how, now)
    for batch in running.join(stream()):
        heard.add(batch)
    assert not late
    assert_same_rows(table_of(heard.batches, running.plan.output), heard.expected(3))
    running.check()


@pytest.mark.parametrize("name, how", asked())
def test_a_source_that_blocks_does_not_hold_rows_back(
    store: MasterStore, master: pa.Table, name: str, how: How
) -> None:
    heard, late = Heard(how, master), []

    def stream() -> Iterator[pa.RecordBatch]:
        for number in range(2):
            yield lot(number)
            if not heard.wait_for(number + 1):
                late.append(number)

    options: dict[str, Any] = {"memory": MEMORY, "how": how, "algorithm": name}
    for batch in join(stream(), store, on="k", wait_seconds=0.01, **options):
        heard.add(batch)
    assert not late
    schema = made_of(name, store, how, [0.0]).plan.output
    assert_same_rows(table_of(heard.batches, schema), heard.expected(2))


@pytest.mark.parametrize("algorithm", ["sweep", "hybrid"])
def test_by_default_too(store: MasterStore, master: pa.Table, algorithm: str) -> None:
    heard = Heard("left", master)

    def stream() -> Iterator[pa.RecordBatch]:
        yield lot(0)
        assert heard.wait_for(1)

    for batch in join(stream(), store, on="k", memory=MEMORY, algorithm=algorithm):
        heard.add(batch)


def test_nodes_that_are_processes(store: MasterStore, master: pa.Table) -> None:
    heard = Heard("left", master)
    plan = bind(JoinSpec(on="k"), lot(0).schema, store)
    running = ParallelCacheJoin(store, plan, Budget(MEMORY), PcsrjSettings(workers="processes"))

    def stream() -> Iterator[pa.RecordBatch]:
        for number in range(2):
            yield lot(number)
            yield lot(number).slice(0, 0)
            assert heard.wait_for(number + 1)

    for batch in running.join(stream()):
        heard.add(batch)
    assert_same_rows(table_of(heard.batches, plan.output), heard.expected(2))


@pytest.mark.parametrize("name", [name for name, kind in JOINS.items() if kind.keeps_order])
def test_in_order(store: MasterStore, name: str) -> None:
    rows: list[int] = []

    def stream() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            yield lot(number)
            yield lot(number).slice(0, 0)
            assert len(rows) == (number + 1) * ROWS

    for batch in made_of(name, store, "left", [0.0], ordered=True).join(stream()):
        rows.extend(batch.column("row").to_pylist())
    assert rows == list(range(3 * ROWS))


@pytest.mark.parametrize("name", [name for name, kind in JOINS.items() if kind.takes_conditions])
def test_under_a_condition(store: MasterStore, name: str) -> None:
    rows: set[int] = set()

    def stream() -> Iterator[pa.RecordBatch]:
        yield lot(0)
        yield lot(0).slice(0, 0)
        assert rows == set(range(ROWS))

    running = make_join(lot(0).schema, store, condition=Band("k", "k", 3), memory=MEMORY, algorithm=name, suffix="_m")
    for batch in running.join(stream()):
        rows.update(batch.column("row").to_pylist())


def test_rows_that_shedding_holds_go_on_too(store: MasterStore, tmp_path: Path) -> None:
    """At one row in a thousand seconds, the second lot has no row to spend: it still does not wait for a third."""
    now = [0.0]
    rows: list[int] = []
    shed = Shed("keep_w", to=tmp_path / "shed", max_rows_per_second=0.001, clock=lambda: now[0])

    def stream() -> Iterator[pa.RecordBatch]:
        for number in range(2):
            yield lot(number)
            yield lot(number).slice(0, 0)
            assert len(rows) == number + 1

    running = make_join(lot(0).schema, store, on="k", memory=MEMORY, algorithm="hybrid", shed=shed)
    for batch in running.join(stream()):
        rows.extend(batch.column("row").to_pylist())
    running.check()
    assert running.stats.shed == 2 * ROWS - 2


def test_sweep_lets_rows_wait_until_their_deadline(store: MasterStore) -> None:
    """Batches without rows from a source that is asked often are no reason to read for a few rows."""
    now = [0.0]
    out: list[int] = []

    def stream() -> Iterator[pa.RecordBatch]:
        yield lot(0)
        for _ in range(9):
            now[0] += 0.5
            yield lot(0).slice(0, 0)
            assert not out
        now[0] += 0.5
        yield lot(0).slice(0, 0)
        assert sum(out) == ROWS

    plan = bind(JoinSpec(on="k"), lot(0).schema, store)
    running = SweepJoin(store, plan, Budget(MEMORY), SweepSettings(wait_seconds=5.0), clock=lambda: now[0])
    assert running.due() == math.inf
    for batch in running.join(stream()):
        out.extend([batch.num_rows])
    assert running.stats.sweeps == 1


@pytest.mark.parametrize("name", ["mesh", "amesh", "rmesh", "hybrid", "ssij", "partition", "sscj", "moij"])
def test_a_busy_stream_is_read_for_as_before(store: MasterStore, name: str) -> None:
    """Whether the stream comes at once or in many batches, R is read as often."""
    whole = pa.concat_batches([lot(number) for number in range(60)])
    reads = []
    for size in (whole.num_rows, ROWS):
        running = made_of(name, store, "left", [0.0])
        batches = [whole.slice(start, size) for start in range(0, whole.num_rows, size)]
        assert sum(batch.num_rows for batch in running.join(iter(batches))) == whole.num_rows
        reads.append(running.stats.sweeps)
    assert reads[1] == pytest.approx(reads[0], rel=0.1)
