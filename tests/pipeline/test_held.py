"""Held rows on their own, without Spark: who leaves when, and that nobody is lost or leaves twice."""

from __future__ import annotations

import shutil
import tempfile
import tracemalloc
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semistream import MasterStore
from semistream.budget import Budget
from semistream.errors import MemoryBudgetError, StateError
from semistream.lookup.run import make_join
from semistream.pipeline import held
from semistream.pipeline.decision import HeldFile, Read
from semistream.pipeline.held import Held, Released, new_held_file
from semistream.pipeline.routes import EXPIRED, HELD_TIME, SINCE, held_key
from semistream.pipeline.steps.lookup import Lookup, lookup
from semistream.stores.paged.manifest import Manifest
from semistream.warehouse import StagedFile

COLUMNS = ["sale", "product"]
MEMORY = 16_000_000


def segment(
    directory: Path, name: str, rows: list[tuple[int, str | None]], since: float = 100.0, master: str = "products"
) -> HeldFile:
    """A file of held rows (sale, product), as a task writes it."""
    products = pa.array([product for _, product in rows], pa.string())
    table = pa.table(
        {
            "sale": [sale for sale, _ in rows],
            "product": products,
            held_key(0): products,
            SINCE: pa.array([since] * len(rows), pa.float64()),
        }
    )
    path = directory / f"{name}.parquet"
    pq.write_table(table, path, write_page_checksum=True)
    return new_held_file(master, StagedFile(str(path), len(rows), path.stat().st_size))


def products(names: list[str]) -> pa.Table:
    return pa.table({"id": pa.array(names, pa.string()), "price": [float(len(name)) for name in names]})


def released(found: Released) -> dict[int, bool]:
    """{sale: was its time up}."""
    rows = [row for path in found.files for row in pq.read_table(path).to_pylist()]
    assert len(rows) == found.rows
    return {row["sale"]: row[EXPIRED] for row in rows}


def waiting(segments: tuple[HeldFile, ...]) -> set[int]:
    found = [row["sale"] for one in segments for row in pq.read_table(one.path).to_pylist()]
    assert len(found) == len(set(found)) == sum(one.rows for one in segments)
    return set(found)


class Shelf:
    """A store of products and the lookup that waits for them."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.root = root
        self.store = MasterStore.build(products(["a"]), root / "products", key="id")
        self.lookup: Lookup = lookup(root / "products", on={"product": "id"}, on_miss="hold", **options)

    def release(self, segments: list[HeldFile], before: Read | int | None, now: float = 100.0) -> Released:
        held = Held(segments, [self.lookup], COLUMNS, Budget(MEMORY))
        if isinstance(before, int):
            there = before in Manifest.versions(self.store.path)
            before = Read.of(Manifest.load(self.store.path, before)) if there else Read("", before)
        known = {} if before is None else {"products": before}
        return held.release({"products": self.store}, known, now, self.root)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path, hold_for="1 hour")


class TestRelease:
    def test_only_those_whose_key_arrived(self, shelf: Shelf) -> None:
        rows = [segment(shelf.root, "x", [(1, "b"), (2, "c"), (3, None)]), segment(shelf.root, "y", [(4, "c")])]
        before = shelf.store.version
        shelf.store = shelf.store.upsert(products(["b", "d"]))
        found = shelf.release(rows, before)
        assert released(found) == {1: False}
        assert waiting(found.left) == {2, 3, 4}
        assert rows[1] in found.left  # a file that nobody leaves stays as it is
        again = shelf.release(list(found.left), shelf.store.version)
        assert (again.rows, again.left) == (0, found.left)

    def test_more_rows_than_fit_are_read_in_pieces(self, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = [segment(shelf.root, "x", [(n, f"{n:0500}") for n in range(6000)])]
        before = Read.of(shelf.store)
        store = shelf.store.upsert(products([f"{n:0500}" for n in range(0, 6000, 1000)]))
        sizes = []
        among = held._Arrived.among

        def measured(arrived: held._Arrived, table: pa.Table) -> Any:
            sizes.append(table.nbytes)
            return among(arrived, table)

        monkeypatch.setattr(held._Arrived, "among", measured)
        budget = Budget(4_000_000)
        found = Held(rows, [shelf.lookup], COLUMNS, budget).release(
            {"products": store}, {"products": before}, 100.0, shelf.root
        )
        assert released(found) == dict.fromkeys(range(0, 6000, 1000), False)
        assert waiting(found.left) == set(range(6000)) - set(range(0, 6000, 1000))
        assert len(sizes) > 8
        assert max(sizes) <= 2 * 4_000_000 // held.PIECES
        assert max(sizes) < budget.peak <= budget.total
        assert budget.used == 0

    def test_changed_keys_are_searched_where_they_are(self, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
        """They are granted once, so a lookup must not copy them."""
        store = shelf.store.upsert(products(["b"]))
        changed = store.changed_since(1)
        assert changed is not None
        keys = np.union1d(changed, np.arange(1, 2_000_000, dtype=np.uint64))
        monkeypatch.setattr(MasterStore, "changed_since", lambda *_: keys)
        arrived = held._Arrived(shelf.lookup, store, Read.of(shelf.store), Budget("64MB"))
        rows = pq.read_table(segment(shelf.root, "x", [(1, "b"), (2, "c")]).path)
        tracemalloc.start()
        try:
            assert arrived.among(rows).tolist() == [True, False]
            assert tracemalloc.get_traced_memory()[1] < keys.nbytes // 2
        finally:
            tracemalloc.stop()

    def test_a_master_too_large_for_the_driver(self, shelf: Shelf) -> None:
        """Rows whose key has changed go through the steps, where lookups have memory: those that miss are held again,
        since when they were.
        """
        names = [f"{n:0100}" for n in range(20_000)]
        before = shelf.store.upsert(products(names))
        store = before.upsert(products(["b"])).delete(["a"])
        rows = segment(shelf.root, "x", [(1, "a"), (2, "b"), (3, "c"), (4, None)])
        with pytest.raises(MemoryBudgetError):  # for its index and a page
            make_join(products([]).schema, store, on={"id": "id"}, how="semi", memory=30_000)
        held = Held([rows], [shelf.lookup], COLUMNS, Budget(30_000))
        found = held.release({"products": store}, {"products": Read.of(before)}, 200.0, shelf.root)
        assert released(found) == {1: False, 2: False}
        assert pq.read_table(found.files[0]).column(SINCE).to_pylist() == [100.0, 100.0]
        assert waiting(found.left) == {3, 4}

    def test_nothing_is_read_while_the_master_stays(self, shelf: Shelf) -> None:
        rows = segment(shelf.root, "x", [(1, "b")])
        Path(rows.path).unlink()
        assert shelf.release([rows], shelf.store.version).left == (rows,)

    def test_keys_that_changed_in_between_are_found(self, shelf: Shelf) -> None:
        """Deleted and inserted again, and merged: the keys since the version that was read last."""
        rows = [segment(shelf.root, "x", [(1, "a"), (2, "b"), (3, "c")])]
        before = shelf.store.version
        shelf.store = shelf.store.delete(["a"]).upsert(products(["b"])).merge_deltas(1).upsert(products(["a"]))
        assert released(shelf.release(rows, before)) == {1: False, 2: False}

    def test_everything_is_looked_up_when_the_changes_are_not_known(self, shelf: Shelf) -> None:
        rows = [segment(shelf.root, "x", [(1, "a"), (2, "z")])]
        shelf.store = shelf.store.upsert(products(["q"]))
        assert released(shelf.release(rows, None)) == {1: False}
        assert released(shelf.release(rows, 99)) == {1: False}  # a store that was built anew

    def test_a_store_that_was_built_again(self, shelf: Shelf) -> None:
        """It has the same path and the same number, and other rows."""
        rows = [segment(shelf.root, "x", [(1, "b"), (2, "z")])]
        before = Read.of(shelf.store)
        shutil.rmtree(shelf.store.path)
        shelf.store = MasterStore.build(products(["b"]), shelf.store.path, key="id")
        assert before.number == shelf.store.version
        assert Held(rows, [shelf.lookup], COLUMNS, Budget(MEMORY)).due(
            {"products": Read.of(shelf.store)}, {"products": before}, now=100.0
        )
        assert released(shelf.release(rows, before)) == {1: False}

    @pytest.mark.parametrize("later", [0, 1])
    def test_a_store_that_was_restored(self, shelf: Shelf, later: int) -> None:
        """From a backup: the same store, and its number came to mean other rows."""
        rows = [segment(shelf.root, "x", [(1, "b"), (2, "z")])]
        backup = shutil.copytree(shelf.store.path, shelf.root / "backup")
        before = Read.of(shelf.store.upsert(products(["c"])))
        shutil.rmtree(shelf.store.path)
        shutil.copytree(backup, shelf.store.path)
        shelf.store = MasterStore.open(shelf.store.path).upsert(products(["b"]))
        for _ in range(later):
            shelf.store = shelf.store.upsert(products(["d"]))
        assert (before.store, before.number) == (shelf.store.manifest.store_id, shelf.store.version - later)
        assert Held(rows, [shelf.lookup], COLUMNS, Budget(MEMORY)).due(
            {"products": Read.of(shelf.store)}, {"products": before}, now=100.0
        )
        assert released(shelf.release(rows, before)) == {1: False}

    def test_as_of(self, tmp_path: Path) -> None:
        """The key is there, but not for that time: the row waits on."""
        day = [datetime(2026, 1, n) for n in range(1, 29)]
        history = pa.schema(
            {
                "id": pa.string(),
                "price": pa.float64(),
                "valid_from": pa.timestamp("us"),
                "valid_to": pa.timestamp("us"),
            }
        )
        store = MasterStore.build(
            pa.Table.from_pylist([{"id": "a", "price": 1.0, "valid_from": day[10], "valid_to": None}], history),
            tmp_path / "products",
            key="id",
        )
        step = lookup(tmp_path / "products", on={"product": "id"}, on_miss="hold", as_of="sold")
        table = pa.table(
            {
                "sale": [1, 2],
                "product": ["b", "b"],
                held_key(0): ["b", "b"],
                HELD_TIME: pa.array([day[3], day[20]], pa.timestamp("us")),
                SINCE: [100.0, 100.0],
            }
        )
        pq.write_table(table, tmp_path / "x.parquet")
        rows = new_held_file("products", StagedFile(str(tmp_path / "x.parquet"), 2, 10))
        late = store.upsert(
            pa.Table.from_pylist([{"id": "b", "price": 2.0, "valid_from": day[15], "valid_to": None}], history)
        )
        found = Held([rows], [step], COLUMNS, Budget(MEMORY)).release(
            {"products": late}, {"products": Read.of(store)}, 100.0, tmp_path
        )
        assert released(found) == {2: False}
        assert waiting(found.left) == {1}


class TestBounds:
    def test_time_is_up(self, shelf: Shelf) -> None:
        rows = [segment(shelf.root, "x", [(1, "b")], since=100.0), segment(shelf.root, "y", [(2, "b")], since=200.0)]
        held = Held(rows, [shelf.lookup], COLUMNS, Budget(MEMORY))
        version = {"products": Read.of(shelf.store)}
        assert not held.due(version, version, 3600.0)
        assert held.due(version, version, 3800.0)
        assert held.due({"products": Read.of(shelf.store.upsert(products(["q"])))}, version, 3600.0)
        found = shelf.release(rows, shelf.store.version, now=3750.0)
        assert released(found) == {1: True}
        assert waiting(found.left) == {2}

    def test_a_clock_that_was_ahead(self, shelf: Shelf) -> None:
        """Rows that were held by a clock of a later year wait as long as others from when it is put right."""
        rows = [segment(shelf.root, "x", [(1, "b")], since=9e9)]
        found = shelf.release(rows, shelf.store.version, now=1000.0)
        assert (found.rows, waiting(found.left)) == (0, {1})
        assert shelf.release(list(found.left), shelf.store.version, now=4500.0).left == found.left
        assert released(shelf.release(list(found.left), shelf.store.version, now=4700.0)) == {1: True}

    def test_the_oldest_make_room(self, tmp_path: Path) -> None:
        files = [segment(tmp_path, f"x{n}", [(n, "b")], since=100.0 - n) for n in range(4)]
        shelf = Shelf(tmp_path, hold_bytes=files[0].bytes * 2)
        found = shelf.release(files, shelf.store.version)
        assert released(found) == {2: True, 3: True}
        assert waiting(found.left) == {0, 1}

    def test_it_is_told_that_nobody_waits_for_it_any_more(self, shelf: Shelf) -> None:
        rows = segment(shelf.root, "x", [(1, "b")], master="goods")
        with pytest.raises(StateError, match=r"1 rows wait for 'goods', .*x.parquet"):
            shelf.release([rows], shelf.store.version)

    def test_a_new_column_of_the_source(self, shelf: Shelf) -> None:
        """Rows that were held before there was such a column come without it."""
        rows = segment(shelf.root, "x", [(1, "b")])
        before = Read.of(shelf.store)
        store = shelf.store.upsert(products(["b"]))
        found = Held([rows], [shelf.lookup], ["sale", "product", "colour"], Budget(MEMORY)).release(
            {"products": store}, {"products": before}, 100.0, shelf.root
        )
        assert pq.read_table(found.files[0]).column_names == ["sale", "product", SINCE, EXPIRED]


class TestDamage:
    @pytest.mark.parametrize("kind", ["gone", "cut", "flipped", "fewer rows"])
    def test_is_told(self, shelf: Shelf, kind: str) -> None:
        rows = segment(shelf.root, "x", [(n, f"b{n}") for n in range(200)])
        path = Path(rows.path)
        data = bytearray(path.read_bytes())
        if kind == "gone":
            path.unlink()
        elif kind == "cut":
            path.write_bytes(data[: len(data) // 2])
        elif kind == "flipped":
            data[200] ^= 16  # in the first page
            path.write_bytes(data)
        else:
            pq.write_table(pq.read_table(path).slice(1), path)
        with pytest.raises(StateError, match=r"x\.parquet"):
            shelf.release([rows], None)


KEYS = st.sampled_from(["a", "b", "c", "d", None])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("hold"), st.lists(KEYS, min_size=1, max_size=4)),
        st.tuples(st.just("arrive"), st.sampled_from(["a", "b", "c", "d"])),
        st.tuples(st.just("leave"), st.sampled_from(["a", "b", "c", "d"])),
        st.tuples(st.just("wait"), st.sampled_from([1000.0, 4000.0])),
        st.tuples(st.just("batch"), st.none()),
    ),
    max_size=12,
)


@given(STEPS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_against_a_dict(steps: list[tuple[str, Any]]) -> None:
    """Whatever comes in whatever order: rows leave when their key has arrived or their time is up, each once."""
    with tempfile.TemporaryDirectory() as name:
        shelf = Shelf(Path(name), hold_for="1 hour")
        present, now, number = {"a"}, 100.0, 0
        segments: list[HeldFile] = []
        model: dict[int, tuple[str | None, float]] = {}
        before = shelf.store.version
        for kind, what in steps:
            if kind == "arrive":
                shelf.store = shelf.store.upsert(products([what]))
                present.add(what)
            elif kind == "leave":
                shelf.store = shelf.store.delete([what])
                present.discard(what)
            elif kind == "wait":
                now += what
            elif kind == "hold":  # they missed in the version that the last batch read
                missed = [key for key in what if key not in present and shelf.store.version == before]
                rows = [(number + place, key) for place, key in enumerate(missed)]
                number += len(rows)
                if rows:
                    segments.append(segment(shelf.root, f"held{number}", rows, since=now))
                    model |= {sale: (key, now) for sale, key in rows}
            else:
                found = shelf.release(segments, before, now)
                up = {sale for sale, (_, since) in model.items() if since < now - 3600}
                arrived = {sale for sale, (key, _) in model.items() if key in present}
                assert released(found) == {sale: sale in up for sale in up | arrived}
                model = {sale: row for sale, row in model.items() if sale not in up | arrived}
                segments, before = list(found.left), shelf.store.version
                assert waiting(found.left) == set(model)
