"""What command lines have in common."""

from __future__ import annotations


def listed(text: str | None) -> tuple[str, ...]:
    """The parts of a list that was given with commas."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun.

    >>> counted(1, "page"), counted(2000, "batch", "batches")
    ('1 page', '2,000 batches')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"
