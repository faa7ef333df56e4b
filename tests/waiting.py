"""Waiting for what must happen, however slow the machine is: by conditions, with one limit against hanging."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, TypeVar

T = TypeVar("T")

# Seconds after which something hangs and is not just slow; less than pytest's own limit, which tells less.
PATIENCE = 600.0


def wait_until(what: Callable[[], T | Literal[False] | None]) -> T:
    """The first true answer."""
    end = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < end, f"nothing happened within {PATIENCE:.0f} s"
        time.sleep(0.02)
    return found
