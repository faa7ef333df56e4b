"""Compiled kernels need a place: given, beside the code, at home, or a private temporary one."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import semistream
from semistream.kernels import jit as _jit
from tests.permissions import obey_permissions

CHILD = """
from semistream.kernels import hashing
from semistream.commands.doctor import _kernels
assert hashing.checksum(4) == 8
print(hashing.checksum.stats.cache_path)
print(_kernels().state, _kernels().said)
"""
SMALL = """
from semistream.kernels.jit import kernel

@kernel("int64(int64)")
def checksum(number):
    return number + number
"""  # in place of the module that the doctor looks at, which takes long to compile


@pytest.fixture
def package(tmp_path: Path) -> Iterator[Path]:
    """A copy of the package that cannot be written."""
    copy = tmp_path / "package"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(semistream.__file__).parent, copy / "semistream", ignore=ignored)
    (copy / "semistream/kernels/hashing.py").write_text(SMALL)
    folders = [copy, *(path for path in copy.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    yield copy
    for folder in folders:
        folder.chmod(0o755)


def run(package: Path, **environment: str) -> tuple[Path, str]:
    """Where compiled code was kept, and what the doctor says."""
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "XDG_", "PYTHON"))}
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        env={**usual, "PYTHONPATH": str(package), "HOME": str(package), "PYTHONDONTWRITEBYTECODE": "1", **environment},
        cwd="/",
        preexec_fn=obey_permissions,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    place, said = done.stdout.splitlines()
    return Path(place), said


def test_a_private_temporary_place_where_nothing_else_can_be_written(package: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    place, said = run(package, TMPDIR=str(temporary))
    assert said.startswith("note neither the package nor the home can be written")
    assert "NUMBA_CACHE_DIR" in said
    [private] = temporary.iterdir()
    assert place.is_relative_to(private)
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert list(place.glob("*.nbi")), "compiled once"


def test_a_place_that_others_could_write_to_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = _jit._private_place()
    assert place is not None
    assert place.parent == tmp_path
    assert _jit._private_place() == place, "the same for the next process"
    place.chmod(0o777)
    assert _jit._private_place() != place
    place.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    place.symlink_to(tmp_path / "elsewhere")
    other = _jit._private_place()
    assert other is not None
    assert other.resolve() not in (place.resolve(), tmp_path)
    assert stat.S_IMODE(other.stat().st_mode) == 0o700


def test_the_place_that_is_given(package: Path, tmp_path: Path) -> None:
    given = tmp_path / "given"
    place, said = run(package, NUMBA_CACHE_DIR=str(given), TMPDIR=str(tmp_path))
    assert place.is_relative_to(given)
    assert said.startswith("good")


def test_nowhere_at_all(package: Path) -> None:
    place, said = run(package, TMPDIR=str(package), NUMBA_CACHE_DIR=str(package))
    assert said.startswith(("note no place to keep compiled ones", "note neither"))
    assert not place.is_relative_to(package)
