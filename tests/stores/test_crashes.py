"""Writers that are killed, disks that fill up, drafts that were left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from semistream.stores import MasterStore
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


def run(module: str, *arguments: object) -> str:
    command = [sys.executable, "-m", f"tests.stores.{module}", *map(str, arguments)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert said.returncode == 0, f"exit code {said.returncode}\n{said.stdout[-3000:]}\n{said.stderr[-3000:]}"
    return said.stdout


@pytest.mark.parametrize("change", ["build", "upsert"])
def test_killed_writers_leave_whole_versions(tmp_path: Path, change: str) -> None:
    """kill -9, about ten times; it does not show what a power cut would do."""
    assert "12 kills" in run("killed_writers", tmp_path, change, 12)


def test_a_killed_first_build_can_be_repeated(tmp_path: Path) -> None:
    """Whatever a writer that is no more has left in the directory, the same command works the second time."""
    path = tmp_path / "store"
    path.mkdir(mode=0o700)
    (path / ".segment-0123456789abcdef.pages.4711").write_bytes(b"SEMISTRM, but half of it")
    (path / "segment-fedcba9876543210.pages").write_bytes(b"complete, but never published")
    (path / ".version-000001.json.4711").write_text("{")
    store = MasterStore.build(pa.table({"k": [1]}), path, key="k")
    assert (store.version, store.rows) == (1, 1)


def test_a_draft_of_a_dead_process_with_our_number_is_no_obstacle(tmp_path: Path) -> None:
    """Process numbers repeat, in containers all the time."""
    store = MasterStore.build(pa.table({"k": [1, 2]}), tmp_path / "store", key="k")
    (store.path / f".version-000002.json.{os.getpid()}").write_text("{")
    assert store.delete(1).version == 2


@pytest.mark.parametrize(
    "change",
    ["build", "upsert", "apply", "large manifest", "merge", "compact", "spill", "project", "upsert in groups"],
)
def test_a_full_disk_publishes_nothing(tmp_path: Path, change: str) -> None:
    """Files may grow to a limit only, at every place where a write can be cut; with room again, the same works."""
    assert run("full_disk", tmp_path, change).endswith("ok\n")
