"""Places where a process can be made to die, so that a test shows what a crash right there leaves behind.

``SEMISTREAM_FAILPOINT=warehouse.committed`` kills the process (SIGKILL: nothing is flushed, no handler runs) when it
reaches that place, ``warehouse.committed:3`` when it does so for the third time. Without the variable a place costs one
comparison.
"""

import os
import signal

from semistream.errors import ArgumentError

VARIABLE = "SEMISTREAM_FAILPOINT"


def parse(text: str | None) -> tuple[str, int] | None:
    """The place and how often it must be reached.

    >>> parse("warehouse.committed:3"), parse("warehouse.committed"), parse("")
    (('warehouse.committed', 3), ('warehouse.committed', 1), None)
    """
    if not text:
        return None
    name, _, times = text.partition(":")
    if not name or (times and (not times.isdecimal() or int(times) < 1)):
        raise ArgumentError(f"{VARIABLE}={text!r} is no failpoint; write NAME or NAME:K, K from 1 on")
    return name, int(times or 1)


_wanted = parse(os.environ.get(VARIABLE))
_reached = 0


def reach(name: str) -> None:
    """Die here when the environment says so."""
    global _reached  # noqa: PLW0603 - a process dies once, wherever it is reached from
    if _wanted is None or _wanted[0] != name:
        return
    _reached += 1
    if _reached >= _wanted[1]:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("a killed process went on")
