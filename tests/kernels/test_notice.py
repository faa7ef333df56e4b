"""Whoever waits for the compiler is told so, once; whoever finds compiled code, or cannot read it, is told nothing."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

from semistream.kernels import NOTICE

# The smallest thing to compile: all kernels take most of a minute.
LIBRARY = """
from numba import types
from semistream.kernels.memory import words_at
words_at.compile((types.int64, types.int64))
words_at.compile((types.int64, types.int32))
"""
COMMAND_LINE = f"""
import contextlib, sys
from semistream.commands.main import main
sys.argv[1:] = ["--version"]
with contextlib.suppress(SystemExit):
    main()
assert "numba" not in sys.modules, "the command line is slow to start"
{LIBRARY}
"""


def said(code: str, place: Path, stderr: int = subprocess.PIPE) -> str:
    """What a new process says on standard error; compiled code is kept in ``place``."""
    variables = {**os.environ, "NUMBA_CACHE_DIR": str(place)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, stdout=subprocess.DEVNULL, stderr=stderr, text=True, check=True
    )
    return done.stderr or ""


def test_the_command_line_says_it_once(tmp_path: Path) -> None:
    assert said(COMMAND_LINE, tmp_path / "new").count(NOTICE) == 1
    assert NOTICE not in said(COMMAND_LINE, tmp_path / "new")


def test_a_library_says_it_to_a_terminal_only(tmp_path: Path) -> None:
    assert said(LIBRARY, tmp_path / "new") == ""
    ours, theirs = pty.openpty()
    try:
        said(LIBRARY, tmp_path / "another", theirs)
        assert os.read(ours, 1000).decode().split("\r\n") == [NOTICE, ""]
    finally:
        os.close(ours)
        os.close(theirs)
