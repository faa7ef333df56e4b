"""What command lines have in common."""

from __future__ import annotations

from semistream.errors import ArgumentError


def listed(text: str | None) -> tuple[str, ...]:
    """The parts of a list that was given with commas."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def pairs(texts: list[str]) -> dict[str, str]:
    """NAME=VALUE arguments."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ArgumentError(f"--set {text!r} must be NAME=VALUE, such as --set shift_every=200000")
        found[name.strip()] = value
    return found
