"""The tutorial does what it says: its commands are run in order in an empty directory, and print what it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial.md"
_BLOCKS = re.compile(r"^```(bash|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_END = "=== end of block ==="


def blocks() -> list[tuple[str, list[str]]]:
    """The commands, and the lines that each of them is said to print."""
    found: list[tuple[str, list[str]]] = []
    for kind, text in _BLOCKS.findall(TUTORIAL.read_text(encoding="utf-8")):
        if kind == "bash":
            found.append((text, []))
        else:
            found[-1][1].extend(text.splitlines())
    return found


def words(line: str) -> str:
    """A line without the spaces of a table."""
    return " ".join(line.split())


def test_until_spark_starts(tmp_path: Path) -> None:
    found = blocks()
    first = next(number for number, (code, _) in enumerate(found) if "semistream run" in code)
    assert first >= 4
    follow(found[:first], tmp_path)


@pytest.mark.long
def test_all_of_it(tmp_path: Path) -> None:
    follow(blocks(), tmp_path)


def follow(steps: list[tuple[str, list[str]]], tmp_path: Path) -> None:
    """Run the commands in one shell, and look for what they are said to print."""
    script = "set -euo pipefail\n" + "".join(f"{{\n{code}}}\necho '{_END}'\n" for code, _ in steps)
    place = tmp_path / "shop"
    place.mkdir()
    tools = tmp_path / "tools"  # the commands of this Python, under the names that a user types
    tools.mkdir()
    for name, call in (("python", '"$@"'), ("semistream", '-c "from semistream.cli import main; main()" "$@"')):
        (tools / name).write_text(f"#!/bin/sh\nexec {sys.executable} {call}\n", encoding="utf-8")
        (tools / name).chmod(0o755)
    variables = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "COLUMNS": "200"}
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=place,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    said = [[words(line) for line in part.splitlines()] for part in done.stdout.split(_END)]
    for (code, shown), printed in zip(steps, said, strict=False):
        for line in shown:
            assert words(line) in printed, f"{code}\ndid not print\n{line}\nbut\n" + "\n".join(printed)
