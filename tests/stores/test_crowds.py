"""Many at one store: writers, vacuums, readers, builds; and directories that are links or cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from semistream.errors import ConcurrentWriteError, StoreError
from semistream.stores import MasterStore
from tests.permissions import obey_permissions
from tests.stores.test_crashes import run


def table(value: int, rows: int = 5_000) -> pa.Table:
    return pa.table({"k": range(rows), "v": [value] * rows})


@pytest.mark.parametrize("seed", [1, 2])
def test_writers_vacuums_and_readers_at_once(tmp_path: Path, seed: int) -> None:
    """Random histories of three writing processes and a reading one: every published change is there exactly once."""
    assert f"seed {seed}: version" in run("crowd", tmp_path, seed, 3, 15)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 20))
def test_long_histories_of_a_crowd(tmp_path: Path, seed: int) -> None:
    assert f"seed {seed}: version" in run("crowd", tmp_path, seed, 4, 60)


@pytest.mark.parametrize("replace", [False, True])
def test_two_builds_into_one_path(tmp_path: Path, replace: bool) -> None:
    """One wins, the others are told so by name, and nothing of theirs is left."""
    path = tmp_path / "store"
    if replace:
        MasterStore.build(table(0), path, key="k")
    gate = threading.Barrier(4)
    won: list[MasterStore] = []
    lost: list[BaseException] = []

    def build(number: int) -> None:
        batches = table(number).to_batches(500)
        gate.wait()
        try:
            won.append(MasterStore.build(batches, path, key="k", memory="1MB", replace=replace))
        except BaseException as error:  # noqa: BLE001 - judged below
            lost.append(error)

    threads = [threading.Thread(target=build, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [error for error in lost if not isinstance(error, StoreError)] == []
    assert all(isinstance(error, ConcurrentWriteError) or "holds a store already" in str(error) for error in lost)
    assert len(won) + len(lost) == 4
    if not replace:
        assert len(won) == 1, "the others were told"
    newest = MasterStore.open(path)
    for store in won:
        assert len({value for batch in store.scan(["v"]) for value in batch.column("v").to_pylist()}) == 1
    assert newest.manifest.identity in [store.manifest.identity for store in won]
    newest.vacuum(1)
    left = {name for name in os.listdir(path) if not name.startswith("floor-")}
    assert left == {newest.manifest.segments[0].file, f"version-{newest.version:06d}.json"}


def test_a_store_behind_a_link(tmp_path: Path) -> None:
    """Reached by two names, it is one store; the link itself stays."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    store = MasterStore.build(table(0, 10), tmp_path / "link", key="k")
    there = MasterStore.open(tmp_path / "disk")
    assert there.manifest.identity == store.manifest.identity
    changed = there.upsert(table(1, 1))
    with pytest.raises(ConcurrentWriteError, match="version 2 is there"):
        store.upsert(table(2, 1))
    assert store.latest().manifest.identity == changed.manifest.identity
    store.latest().compact().vacuum(1)
    assert MasterStore.open(tmp_path / "disk").version == 3
    assert (tmp_path / "link").is_symlink()
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StoreError, match="broken"):
        MasterStore.open(tmp_path / "broken")
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "broken", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match=f"{path} cannot be made a directory"):
            MasterStore.build(table(0, 10), path, key="k")


CHANGES = """
import sys
import pyarrow as pa
from semistream.errors import StoreIOError
from semistream.stores import MasterStore

path, table = sys.argv[1], pa.table({"k": [1], "v": [1]})
store = MasterStore.open(path)
assert store.latest() is store and store.get([0, 1]).num_rows == 2 and store.verify()
for change in (
    lambda: store.upsert(table),
    lambda: store.delete(1),
    lambda: store.apply(properties={"a": "b"}),
    lambda: store.merge_deltas(1),
    store.compact,
    lambda: store.vacuum(1),
    lambda: MasterStore.build(table, path, key="k", replace=True),
    lambda: MasterStore.build(table, path + "/below", key="k"),
):
    try:
        change()
    except StoreIOError as error:
        assert "Permission denied" in str(error) and path in str(error), error
        assert "make the directory writable" in str(error), error
        assert isinstance(error.__cause__, PermissionError)
    else:
        raise AssertionError("it was changed")
"""


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    """It can be read; every change is refused with the remedy, and nothing is left."""
    path = tmp_path / "store"
    MasterStore.build(table(0, 10), path, key="k").upsert(table(1, 1)).upsert(table(2, 1))
    before = sorted(os.listdir(path))
    path.chmod(0o500)
    command = [sys.executable, "-c", CHANGES, str(path)]
    done = subprocess.run(command, preexec_fn=obey_permissions, capture_output=True, text=True, check=False)
    path.chmod(0o700)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert sorted(os.listdir(path)) == before
