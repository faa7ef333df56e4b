"""A number that was published never comes again, whoever vacuums, is slow or dies; readers keep what they have open."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from semistream import failpoints
from semistream.errors import ConcurrentWriteError, CorruptStoreError, OtherVersionError, StoreNotFoundError
from semistream.lookup.run import join
from semistream.stores import MasterStore
from semistream.stores.paged.manifest import Listing, Manifest, manifest_path
from semistream.stores.paged.publishing import publish
from tests.stores.busy_writer import KEYS, table

ROOT = Path(__file__).parents[2]


def one(key: int, value: str) -> pa.Table:
    return pa.table({"k": [key], "v": [value]})


@pytest.fixture
def store(tmp_path: Path) -> MasterStore:
    return MasterStore.build(one(0, "built"), tmp_path / "store", key="k")


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], object]], None]:
    """Let something happen when the code reaches a place, once."""

    def arrange(place: str, action: Callable[[], object]) -> None:
        def reached(name: str) -> None:
            if name == place:
                monkeypatch.undo()
                action()

        monkeypatch.setattr(failpoints, "reach", reached)

    return arrange


def others(path: Path, versions: int, keep: int | None = 1) -> None:
    """Another writer's versions, and its vacuum."""
    writer = MasterStore.open(path)
    for number in range(versions):
        writer = writer.upsert(one(100 + number, "other"))
    if keep is not None:
        writer.vacuum(keep)


def files(store: MasterStore) -> set[str]:
    """What there must be for this version alone, but for floors."""
    return {entry.file for entry in store.manifest.segments} | {f"version-{store.version:06d}.json"}


def found(path: Path) -> set[str]:
    return {name for name in os.listdir(path) if not name.startswith("floor-")}


# -- writers -----------------------------------------------------------------------------------------------------------


def test_a_vacuumed_number_is_not_published_again(store: MasterStore) -> None:
    late = store.manifest.next("upsert")
    others(store.path, 3)
    with pytest.raises(ConcurrentWriteError, match=r"version 2 of .* removed by vacuum; version 4 is there"):
        publish(late, store.path)
    assert Manifest.versions(store.path) == [4]
    assert not manifest_path(store.path, 2).exists()


@pytest.mark.parametrize("change", ["upsert", "properties", "merge", "compact", "build"])
def test_a_writer_that_is_overtaken_and_vacuumed(
    store: MasterStore, change: str, at: Callable[[str, Callable[[], object]], None]
) -> None:
    store = store.upsert(one(1, "a")).upsert(one(2, "b"))
    at("store.publish", lambda: others(store.path, 3))
    changes: dict[str, Callable[[], object]] = {
        "upsert": lambda: store.upsert(one(5, "lost")),
        "properties": lambda: store.apply(properties={"a": "b"}),
        "merge": lambda: store.merge_deltas(1),
        "compact": store.compact,
        "build": lambda: MasterStore.build(one(5, "lost"), store.path, key="k", replace=True),
    }
    with pytest.raises(ConcurrentWriteError):
        changes[change]()
    newest = MasterStore.open(store.path)
    assert (newest.version, newest.rows) == (6, 6)
    assert found(store.path) == files(newest), "the late writer took everything back"


def test_a_writer_that_others_built_on_is_not_told_that_it_failed(
    store: MasterStore, at: Callable[[str, Callable[[], object]], None]
) -> None:
    at("store.linked", lambda: others(store.path, 3))
    second = store.upsert(one(5, "kept"))
    assert second.version == 2
    assert second.get(5)["v"].to_pylist() == ["kept"]
    newest = MasterStore.open(store.path)
    assert (newest.version, newest.get(5)["v"].to_pylist()) == (5, ["kept"])
    assert newest.verify() == newest.pages


def test_a_writer_that_slept_for_too_many_versions_is_told_so(
    store: MasterStore, at: Callable[[str, Callable[[], object]], None]
) -> None:
    at("store.linked", lambda: others(store.path, 66))
    with pytest.raises(ConcurrentWriteError, match="66 versions have appeared since, and it cannot be told"):
        store.upsert(one(5, "kept"))
    newest = MasterStore.open(store.path)
    assert newest.get(5)["v"].to_pylist() == ["kept"]
    assert newest.verify() == newest.pages, "nothing that newer versions use was taken back"


def test_a_late_writer_that_died_before_it_could_take_its_file_back(store: MasterStore) -> None:
    late = store.manifest.next("upsert")
    others(store.path, 3)
    manifest_path(store.path, 2).write_text(late.text())
    assert Manifest.versions(store.path) == [4]
    with pytest.raises(StoreNotFoundError, match="has no version 2; it has versions 4"):
        MasterStore.open(store.path, 2)
    newest = store.latest()
    assert newest.changed_since(2) is None
    assert newest.upsert(one(7, "")).version == 5
    newest.latest().vacuum(1)
    assert found(store.path) == files(store.latest())


def test_a_store_that_was_built_again_is_not_changed_by_a_writer_of_the_old_one(
    store: MasterStore, at: Callable[[str, Callable[[], object]], None]
) -> None:
    def again() -> None:
        shutil.rmtree(store.path)
        MasterStore.build(one(9, "new"), store.path, key="k")

    old = store.upsert(one(3, ""))
    again()
    MasterStore.open(store.path).upsert(one(4, ""))
    changes: list[Callable[[], object]] = [lambda: old.upsert(one(1, "")), lambda: old.delete(0), old.compact]
    for change in changes:
        with pytest.raises(OtherVersionError, match="another store"):
            change()
    assert old.latest().get([0, 3, 9])["v"].to_pylist() == ["new"], "also at the same number"
    store = store.latest()
    at("store.segment", again)
    with pytest.raises((OtherVersionError, StoreNotFoundError)):
        store.upsert(one(1, ""))
    assert found(store.path) == files(MasterStore.open(store.path))


# -- vacuums -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["vacuum.floor", *(f"vacuum.removed:{n}" for n in range(1, 7))])
def test_a_vacuum_that_is_killed_is_finished_by_the_next(
    store: MasterStore, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = store.upsert(one(1, "a")).upsert(one(2, "b")).compact().upsert(one(3, "c"))
    monkeypatch.setattr(failpoints, "_wanted", failpoints.parse(place))
    child = os.fork()
    if child == 0:
        try:
            store.vacuum(2)
        finally:
            os._exit(0)
    monkeypatch.undo()
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert Manifest.versions(store.path) == [4, 5]
    assert [len(MasterStore.open(store.path, version).get([0, 1, 2, 3])) for version in (4, 5)] == [3, 4]
    with pytest.raises(StoreNotFoundError, match="has no version 3"):
        MasterStore.open(store.path, 3)
    store.vacuum(2)
    assert found(store.path) == files(newest) | files(MasterStore.open(store.path, 4))
    assert newest.latest().upsert(one(4, "d")).version == 6


def test_a_vacuum_that_is_overtaken_by_one_that_goes_further(
    store: MasterStore, at: Callable[[str, Callable[[], object]], None]
) -> None:
    newest = store.upsert(one(1, "a")).upsert(one(2, "b"))
    at("vacuum.floor", lambda: others(store.path, 3))
    newest.vacuum(1)
    assert Listing.of(store.path).floor == 6
    last = MasterStore.open(store.path)
    assert (last.version, last.rows, last.verify()) == (6, 6, last.pages)
    assert found(store.path) == files(last)


def test_a_manifest_that_is_a_broken_link(store: MasterStore) -> None:
    newest = store.upsert(one(1, "")).upsert(one(2, ""))
    before = found(store.path) - {"version-000002.json"}
    manifest_path(store.path, 2).unlink()
    manifest_path(store.path, 2).symlink_to("nowhere")
    with pytest.raises(CorruptStoreError, match=r"version-000002\.json cannot be read"):
        newest.vacuum(2)
    with pytest.raises(CorruptStoreError, match=r"version-000002\.json cannot be read"):
        MasterStore.open(store.path, 2)
    assert before <= found(store.path)


def test_few_floors_are_kept(store: MasterStore) -> None:
    for number in range(5):
        store = store.upsert(one(number, ""))
        store.vacuum(1)
        assert Listing.of(store.path).floor == store.version
    assert Listing.of(store.path).floors == [5, 6]
    assert store.vacuum(1) == []


def test_drafts_of_the_dead_are_removed(store: MasterStore) -> None:
    old = [".segment-0123456789abcdef.pages.4711", ".version-000002.json.abc", ".floor-000002.abc"]
    for name in old:
        (store.path / name).write_text("half")
        os.utime(store.path / name, (0, 0))
    (store.path / ".segment-fedcba9876543210.pages.4711").write_text("of a writer at work")
    assert store.vacuum() == sorted(old)


# -- readers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direct", [False, True])
def test_readers_need_no_names(tmp_path: Path, direct: bool) -> None:
    """The filter, the codes that changed, a check of everything: all through the files that are open."""
    rows = pa.table({"k": range(3_000), "v": ["x" * 50] * 3_000})
    MasterStore.build(rows, tmp_path / "store", key="k").upsert(one(5, "y" * 20_000))
    store = MasterStore.open(tmp_path / "store", direct=direct)
    shutil.rmtree(tmp_path / "store")
    assert len(store.bloom()) > 0
    assert store.verify() == store.pages
    assert store.get([4, 5])["v"].to_pylist() == ["x" * 50, "y" * 20_000]
    assert store.changed_since(1) is None


def test_a_sweep_goes_on_after_a_vacuum(tmp_path: Path) -> None:
    rows = pa.table({"k": range(3_000), "v": ["x" * 50] * 3_000})
    store = MasterStore.build(rows, tmp_path / "store", key="k")
    joined = join(_batches(store), store, on="k", how="inner", algorithm="sweep", memory="4MB")
    assert sum(len(batch) for batch in joined) == 2_000


def _batches(store: MasterStore) -> Iterator[pa.RecordBatch]:
    for number in range(20):  # mostly absent keys: a sweep then asks for the filter
        yield pa.record_batch({"k": range(number, number + 60_000, 30)})
        if number == 1:
            store.upsert(one(1, "")).compact().vacuum(1)


@pytest.mark.parametrize("place", ["store.listed", "store.loaded"])
@pytest.mark.parametrize("version", [None, 1])
def test_a_version_that_is_removed_while_it_is_opened(
    store: MasterStore, place: str, version: int | None, at: Callable[[str, Callable[[], object]], None]
) -> None:
    at(place, lambda: store.upsert(one(1, "")).compact().vacuum(1))
    if version is None:
        assert MasterStore.open(store.path).version == 3
    else:
        with pytest.raises(StoreNotFoundError, match="has no version 1; it has versions 3"):
            MasterStore.open(store.path, version)


@pytest.mark.parametrize("place", ["store.listed", "store.loaded"])
def test_a_store_that_is_removed_while_it_is_opened(
    store: MasterStore, place: str, at: Callable[[str, Callable[[], object]], None]
) -> None:
    at(place, lambda: shutil.rmtree(store.path))
    with pytest.raises(StoreNotFoundError, match="no semistream store at"):
        MasterStore.open(store.path)


def test_what_changed_is_unknown_once_it_is_vacuumed(store: MasterStore) -> None:
    third = store.upsert(one(1, "")).upsert(one(2, ""))
    third.compact().vacuum(1)
    assert third.changed_since(1) is None
    assert third.changed_since(3) is not None


def test_a_store_is_opened_while_another_process_vacuums(tmp_path: Path) -> None:
    """Whatever the moment, an open gives one whole version, and never an older one than before."""
    path = tmp_path / "store"
    MasterStore.build(table(1), path, key="k")
    command = [sys.executable, "-m", "tests.stores.busy_writer", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        opens = newest = 0
        while opens < 2_000 or newest < 20:
            assert writer.poll() is None, "the writer ended by itself"
            opened = MasterStore.open(path)
            assert opened.version >= newest
            newest = opened.version
            opens += 1
            if opens % 20 == 0:
                assert opened.get(range(KEYS))["v"].to_pylist() == [newest] * KEYS
                assert Manifest.versions(path)[-1] >= newest
                try:
                    MasterStore.open(path, newest)
                except StoreNotFoundError as error:
                    assert f"has no version {newest}" in str(error)  # noqa: PT017
        last, _ = writer.communicate("")
    assert writer.returncode == 0
    assert MasterStore.open(path).version == int(last)
