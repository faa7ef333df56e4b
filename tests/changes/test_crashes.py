"""A loader that is killed and started again loads everything once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kills", [15, pytest.param(200, marks=pytest.mark.long)])
def test_killed_loaders_load_everything_once(tmp_path: Path, kills: int) -> None:
    """kill -9 at random moments; it does not show what a power cut would do."""
    command = [sys.executable, "-m", "tests.changes.killed_loaders", str(tmp_path), str(kills)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert said.returncode == 0, f"{said.stdout[-2000:]}\n{said.stderr[-3000:]}"
    assert f"{kills} kills" in said.stdout
