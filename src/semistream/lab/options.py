"""What command lines have in common."""

from __future__ import annotations


def listed(text: str | None) -> tuple[str, ...]:
    """The parts of a list that was given with commas."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())
