"""The tutorial does what it says: its commands are run in order in an empty directory, and print what it shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / "docs" / "tutorial.md"
CHECKOUT = "./semistream"
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


@pytest.mark.long
@pytest.mark.timeout(1800)  # PySpark is downloaded and built where pip has not kept it
def test_as_installed(tmp_path: Path) -> None:
    """In a clean environment, from a wheel, with the packages that the tutorial names and no others."""
    call(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("semistream-*.whl")
    call(sys.executable, "-m", "venv", tmp_path / "clean")
    tools = tmp_path / "clean" / "bin"
    locks = [part for name in ("requirements.lock", "requirements-java.lock") for part in ("-c", ROOT / name)]
    wanted = [f"{wheel}{word.removeprefix(CHECKOUT)}" if word.startswith(CHECKOUT) else word for word in packages()]
    call(tools / "python", "-m", "pip", "install", "--quiet", *locks, *wanted)
    call(tools / "python", "-m", "pip", "check")
    without = ("PYTHONPATH", "PYSPARK_PYTHON", "JAVA_HOME")
    follow(blocks(), tmp_path, tools, {name: value for name, value in os.environ.items() if name not in without})


def packages() -> list[str]:
    """What the tutorial has installed: names with their extras."""
    (line,) = re.findall(r"^pip install (.+)$", TUTORIAL.read_text(encoding="utf-8"), re.MULTILINE)
    return shlex.split(line, comments=True)


def call(*command: object) -> None:
    """A command that must succeed."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"


def tools_of_this_python(place: Path) -> Path:
    """The commands of this Python, under the names that a user types."""
    place.mkdir()
    for name, line in (
        ("python", '"$@"'),
        ("semistream", '-c "from semistream.commands.main import main; main()" "$@"'),
    ):
        (place / name).write_text(f"#!/bin/sh\nexec {sys.executable} {line}\n", encoding="utf-8")
        (place / name).chmod(0o755)
    return place


def follow(
    steps: list[tuple[str, list[str]]],
    tmp_path: Path,
    tools: Path | None = None,
    variables: Mapping[str, str] = os.environ,
) -> None:
    """Run the commands in one shell, and look for what they are said to print."""
    script = "set -euo pipefail\n" + "".join(f"{{\n{code}}}\necho '{_END}'\n" for code, _ in steps)
    place = tmp_path / "shop"
    place.mkdir()
    tools = tools or tools_of_this_python(tmp_path / "tools")
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=place,
        env={**variables, "PATH": f"{tools}:{variables['PATH']}", "COLUMNS": "200"},
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
