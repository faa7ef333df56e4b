"""A failpoint kills at the right moment, and only there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from semistream.errors import ArgumentError
from semistream.failpoints import parse

ROOT = Path(__file__).parents[1]
STEPS = """
from semistream.failpoints import reach
for step in range(4):
    reach("one")
    reach("two")
    print(step, flush=True)
"""


@pytest.mark.parametrize(
    "point, said",
    [(None, "0123"), ("", "0123"), ("one", ""), ("two:1", ""), ("one:3", "01"), ("two:9", "0123"), ("three", "0123")],
)
def test_where_it_dies(point: str | None, said: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SEMISTREAM_FAILPOINT"}
    environment |= {"PYTHONPATH": str(ROOT / "src")} | ({} if point is None else {"SEMISTREAM_FAILPOINT": point})
    done = subprocess.run([sys.executable, "-c", STEPS], env=environment, capture_output=True, check=False)
    assert done.stdout.decode().split() == list(said)
    assert done.returncode == (0 if said == "0123" else -signal.SIGKILL)


@pytest.mark.parametrize("point", [":", ":1", "one:0", "one:-1", "one:x"])
def test_what_is_no_failpoint(point: str) -> None:
    with pytest.raises(ArgumentError, match="NAME:K"):
        parse(point)
