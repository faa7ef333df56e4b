"""A package that is missing is named before any work is done, with what to install; never a traceback."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from semistream.commands.main import app
from semistream.errors import SemistreamError
from semistream_lab.needs import PIPELINE, need_for
from semistream_lab.settings import Settings
from semistream_lab.suites import cells


@pytest.mark.parametrize(
    "command, package, extra",
    [
        (["bench", "core", "--quick"], "duckdb", "semistream-lab"),
        (["bench", "core", "--quick", "--arms", "sweep"], "matplotlib", "semistream-lab"),
        (["bench", "joins", "--quick"], "matplotlib", "semistream-lab"),
        *[(["bench", "spark", "--quick"], package, "'semistream[pipeline]'") for package in PIPELINE],
        *[(["bench", "pipeline", "--quick"], package, "'semistream[pipeline]'") for package in PIPELINE],
        (["lab", "run", "meshjoin"], "matplotlib", "semistream-lab"),
        (["demo", "--quick"], "pandas", "'semistream[pipeline]'"),
    ],
)
def test_it_is_named(
    command: list[str], package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, package, None)
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, SemistreamError), done.exception
    assert f"needs {package}; run: pip install {extra}" in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_arms_that_do_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    need_for(cells(Settings("core", rows=1_000, out=tmp_path, data=tmp_path, arms=("sweep", "inl"))))
