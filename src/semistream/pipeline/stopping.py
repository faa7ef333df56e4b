"""Why a run stopped, in one line; the stacks of Python and Java, often a hundred lines, go to the pipeline's log."""

from __future__ import annotations

import os
import re
import time
import traceback
from pathlib import Path

from semistream.errors import SemistreamError, StateError

# What Spark puts around the error of a batch: each says only that there is one.
_WRAPPERS = ("STREAM_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR", "JOB_ABORTED", "PYTHON_EXCEPTION")
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]+)\](?:(?!\[[A-Z][A-Z0-9_.]+\]).)+")
_RAISED = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Invalid|Interrupt|Exit)\w*(?:: .*)?)$", re.MULTILINE)


def stopped(name: str, error: BaseException | None, failure: BaseException, log: Path) -> SemistreamError:
    """What to raise when Spark's query ended by ``failure`` because a batch raised ``error``."""
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8") as file:
        file.write(time.strftime("%Y-%m-%d %H:%M:%S UTC\n", time.gmtime()))
        file.writelines(traceback.format_exception(error or failure))
    if isinstance(error, SemistreamError):
        found = error
    elif isinstance(error, OSError):
        found = StateError(f"{name} stopped: {error}. No row is lost; see to the disk and start again")
        found.__cause__ = error
    else:
        text = str(error or failure)
        if error is not None and len(text.splitlines()) < 2:  # of Python alone: a KeyError is nothing but its key
            text = f"{type(error).__name__}: {text}".rstrip(": ")
        found = SemistreamError(f"{name} stopped: {reason(text)}")
        found.__cause__ = failure
    found.exit_code = 1  # it is what came in that stopped it, not how it was called
    found.add_note(f"the stack is in {log}")
    return found


def reason(text: str) -> str:
    """The line of a stack that says what happened: of tasks in Python the last, of Spark its condition.

    >>> reason(
    ...     "An error occurred while calling o1.x.\\n: org.apache.spark.X: [DIVIDE_BY_ZERO] Use try_divide.\\n\\tat y"
    ... )
    '[DIVIDE_BY_ZERO] Use try_divide.'
    """
    conditions = [found.group() for found in _CONDITION.finditer(text) if found.group(1) not in _WRAPPERS]
    if conditions:
        return conditions[0].strip()
    if "Traceback (most recent call last)" in text:
        raised = _RAISED.findall(text.partition("Traceback (most recent call last)")[2])
        if raised:
            return str(raised[0])
    lines = [line.lstrip(": ") for line in text.strip().splitlines()]
    said = [line for line in lines if not line.startswith("An error occurred while calling")]
    return said[0] if said else "no reason was given"
