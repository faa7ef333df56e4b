"""Lengths of time as users write them."""

from __future__ import annotations

from semistream.errors import ArgumentError
from semistream.spark.pins import refresh_seconds


def seconds_of(time: str, name: str) -> float:
    """ "2 hours" in seconds; ``name`` is the setting that says so."""
    try:
        found = refresh_seconds(time)
    except ArgumentError:
        found = None
    if not found:
        raise ArgumentError(f"{name}={time!r} is no length of time; give one such as '2 hours'")
    return found
