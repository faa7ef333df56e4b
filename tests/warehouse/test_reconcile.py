"""Shed rows are loaded later, each once: after kills, twice, with the version their batch read."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from semistream import MasterStore, Shed, make_join
from semistream.commands import main as cli
from semistream.errors import ArgumentError, OtherVersionError, SchemaError, SheddingError, StoreNotFoundError
from semistream.shedding.log import batches_in
from semistream.warehouse import DeltaSink, reconcile
from tests.shedding.clocks import Clock, every
from tests.tables import assert_same_rows, model_join, table_of
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
BATCHES, ROWS = 8, 300
MASTER = pa.table({"id": [k for k in range(200) for _ in range(1 + k % 3)], "price": [float(n) for n in range(399)]})

# Reconciles, and dies by SIGKILL when so many batches are in the table: before it goes on, or right before a commit.
KILLED = """
import os, signal, sys
from semistream.warehouse import reconcile
from semistream.warehouse import DeltaSink

shed, table, when, where = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def progress(what, done, of):
    if where == "after" and done == when:
        die()

commit = DeltaSink._commit

def dying(self, table, rows, batch):
    if where == "within" and self.written + self.skipped == when:
        die()
    commit(self, table, rows, batch)

DeltaSink._commit = dying
reconcile(shed, table, progress=progress)
"""


def sales() -> list[pa.RecordBatch]:
    count = BATCHES * ROWS
    table = pa.table({"id": [(n * 7) % 230 for n in range(count)], "n": range(count)})
    return table.to_batches(max_chunksize=ROWS)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A stream of which the table holds what was kept, and the directory ``shed`` the rest."""
    store = MasterStore.build(MASTER, tmp_path / "store", key="id")
    run(tmp_path, store, "topw")
    return tmp_path


def run(place: Path, store: MasterStore, strategy: str, **options: Any) -> None:
    clock = Clock()
    shed = Shed(strategy, max_rows_per_second=100, to=place / "shed", clock=clock)
    batches = sales()
    made = make_join(batches[0].schema, store, on="id", memory="4MB", shed=shed, **options)
    kept = table_of(made.join(every(1.0, batches, clock)), made.plan.output)
    made.check()
    assert made.stats.shed == BATCHES * ROWS - 900
    write_deltalake(place / "table", kept)


def loaded(place: Path) -> pa.Table:
    return DeltaTable(place / "table").to_pyarrow_table()


def model(**options: Any) -> pa.Table:
    return model_join(pa.Table.from_batches(sales()), MASTER, "id", **options)


def test_the_table_becomes_that_of_the_whole_stream(place: Path) -> None:
    done = reconcile(place / "shed", place / "table")
    assert (done.batches, done.rows, done.skipped, done.waiting) == (BATCHES, BATCHES * ROWS - 900, 0, ())
    assert_same_rows(loaded(place), model())
    again = reconcile(place / "shed", place / "table")
    assert (again.batches, again.rows, again.skipped) == (0, 0, BATCHES)
    assert_same_rows(loaded(place), model())


@pytest.mark.parametrize("where", ["after", "within"])
def test_killed_and_started_again(place: Path, where: str) -> None:
    for when in (2, 5):
        said = place / "said"
        with said.open("wb") as out:
            killed = subprocess.run(
                [sys.executable, "-c", KILLED, place / "shed", place / "table", str(when), where],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
                stdout=out,
                stderr=out,
                check=False,
                timeout=PATIENCE,
            )
        assert killed.returncode == -signal.SIGKILL, said.read_text()[-2000:]
    done = reconcile(place / "shed", place / "table")
    assert done.skipped == 5
    assert done.batches == BATCHES - 5
    assert_same_rows(loaded(place), model())


def test_more_is_shed_later(place: Path) -> None:
    reconcile(place / "shed", place / "table", remove=True)
    assert sorted(batches_in(place / "shed")) == [BATCHES - 2, BATCHES - 1]  # a stream needs to know its rate
    before = loaded(place)
    kept = place / "more"
    kept.mkdir()
    shutil.move(place / "shed", kept / "shed")
    run(kept, MasterStore.open(place / "store"), "keep_w")
    write_deltalake(place / "table", loaded(kept), mode="append")
    done = reconcile(kept / "shed", place / "table", remove=True)
    assert (done.batches, done.skipped) == (BATCHES, 2)
    assert_same_rows(loaded(place), pa.concat_tables([before, model()]))


def test_the_stream_commits_in_the_middle_of_a_batch(place: Path) -> None:
    """Neither fails for the other: they add different rows under different marks."""
    stream = DeltaSink(place / "table", "sales")
    query = "0b7f61f3-d9f5-4942-945a-e7a65429d651"
    numbers = iter(range(100))
    extra = loaded(place).slice(0, 5)

    def meanwhile(table: pa.Table) -> pa.Table:
        stream.load(lambda: extra, next(numbers), query)
        return table

    reconcile(place / "shed", place / "table", transform=meanwhile)
    assert stream.written == BATCHES
    # And the other way round: a batch is loaded while the stream has its snapshot already.
    shutil.copytree(place / "shed", place / "copy")

    def reconciled() -> pa.Table:
        assert reconcile(place / "copy", place / "table").skipped == BATCHES
        write_deltalake(place / "table", extra, mode="append")
        return extra

    stream.load(reconciled, next(numbers), query)
    assert_same_rows(loaded(place), pa.concat_tables([model(), *[extra] * (BATCHES + 2)]))


def test_the_version_that_the_batch_read(place: Path) -> None:
    store = MasterStore.open(place / "store")
    changed = store.upsert(pa.table({"id": [0], "price": [-1.0]}))
    reconcile(place / "shed", place / "table")
    assert_same_rows(loaded(place), model())
    write_deltalake(place / "other", loaded(place).slice(0, 0))
    changed.compact().vacuum(keep=1)
    with pytest.raises(StoreNotFoundError, match=r"batch 0 was shed with version 1 of the master: .*--latest"):
        reconcile(place / "shed", place / "other")
    reconcile(place / "shed", place / "other", latest=True)
    assert -1.0 in DeltaTable(place / "other").to_pyarrow_table().column("price").to_pylist()


def test_another_store_at_the_path(place: Path) -> None:
    rows = pa.Table.from_batches(MasterStore.open(place / "store").scan())
    shutil.rmtree(place / "store")
    MasterStore.build(rows, place / "store", key="id")
    with pytest.raises(OtherVersionError, match=r"batch 0 was shed with version 1 .*built again.*--latest"):
        reconcile(place / "shed", place / "table")
    reconcile(place / "shed", place / "table", latest=True)
    assert_same_rows(loaded(place), model())


def test_the_store_has_moved(place: Path) -> None:
    (place / "store").rename(place / "elsewhere")
    with pytest.raises(StoreNotFoundError, match="--master"):
        reconcile(place / "shed", place / "table")
    reconcile(place / "shed", place / "table", master=place / "elsewhere")
    assert_same_rows(loaded(place), model())


def test_defaults_suffixes_and_kinds_of_join(tmp_path: Path) -> None:
    store = MasterStore.build(MASTER, tmp_path / "store", key="id")
    run(tmp_path, store, "keep_w", defaults={"price": 3.5})
    reconcile(tmp_path / "shed", tmp_path / "table")
    assert_same_rows(loaded(tmp_path), model(defaults={"price": 3.5}))


def test_as_of_multiple_and_status(tmp_path: Path) -> None:
    master = MASTER.append_column("valid_from", pa.array([n % 700 for n in range(MASTER.num_rows)]))
    master = master.append_column("valid_to", pa.array([None if n % 3 else 1200 for n in range(MASTER.num_rows)]))
    store = MasterStore.build(master, tmp_path / "store", key="id")
    options: dict[str, Any] = {"multiple": "first", "status": "found", "columns": ["price"]}
    run(tmp_path, store, "topw", as_of="n", **options)
    reconcile(tmp_path / "shed", tmp_path / "table")
    times = ("n", "valid_from", "valid_to")
    expected = model_join(pa.Table.from_batches(sales()), master, "id", as_of=times, **options)
    assert_same_rows(loaded(tmp_path), expected)


def test_weights_of_loaded_rows_are_zero(tmp_path: Path) -> None:
    store = MasterStore.build(MASTER, tmp_path / "store", key="id")
    run(tmp_path, store, "sample_w")

    def estimate() -> float:
        return float(pa.compute.sum(loaded(tmp_path).column("_weight")).as_py())

    before = estimate()
    reconcile(tmp_path / "shed", tmp_path / "table")
    assert estimate() == before  # sums with weights stay what they were, sums without are exact
    assert_same_rows(loaded(tmp_path).drop_columns(["_weight"]), model())


def test_a_table_with_fewer_or_other_columns(place: Path) -> None:
    write_deltalake(place / "fewer", loaded(place).select(["price", "n"]))
    reconcile(place / "shed", place / "fewer")
    assert_same_rows(DeltaTable(place / "fewer").to_pyarrow_table(), model().select(["price", "n"]))
    doubled = loaded(place).append_column("double", pa.compute.multiply(loaded(place).column("price"), 2))
    write_deltalake(place / "more", doubled)
    with pytest.raises(SchemaError, match=r"column 'double'.*transform="):
        reconcile(place / "shed", place / "more")

    def double(table: pa.Table) -> pa.Table:
        return table.append_column("double", pa.compute.multiply(table.column("price"), 2))

    reconcile(place / "shed", place / "more", transform=double)
    assert_same_rows(DeltaTable(place / "more").to_pyarrow_table(), double(model()))


def test_damage_loads_nothing_of_its_batch(place: Path) -> None:
    [path] = batches_in(place / "shed")[3]
    path.write_bytes(path.read_bytes()[:-20])
    before = loaded(place)
    with pytest.raises(SheddingError, match=str(path)):
        reconcile(place / "shed", place / "table")
    assert_same_rows(loaded(place), before)


def test_the_command(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["semistream", "reconcile", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    code, out, _ = call(place / "shed", "--master", place / "store", "--to", place / "table")
    assert code == 0
    assert "1,500 shed rows of 8 batches loaded; 0 batches skipped" in " ".join(out.split())
    assert_same_rows(loaded(place), model())
    code, _, err = call(place / "nowhere", "--to", place / "table")
    assert code == 2
    assert "there is no directory" in err


def test_wrong_arguments(place: Path) -> None:
    with pytest.raises(ArgumentError, match="there is no directory"):
        reconcile(place / "nowhere", place / "table")
    with pytest.raises(ArgumentError, match="memory='lots'"):
        reconcile(place / "shed", place / "table", memory="lots")
    (place / "none").mkdir()
    with pytest.raises(ArgumentError, match="memory='lots'"):
        reconcile(place / "none", place / "table", memory="lots")
