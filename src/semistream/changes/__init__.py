"""From changes to a warehouse's tables, without Spark: changes, duplicates, differences.

Everything here keeps its state in a `MasterStore`, so it is durable, has versions, and is read by the joins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semistream.changes.applying import Applied, apply_changes
    from semistream.changes.differences import snapshot_differences
    from semistream.changes.duplicates import SeenKeys
    from semistream.changes.reading import read_changes
    from semistream.changes.rows import Changes, Reject

__all__ = [
    "Applied",
    "Changes",
    "Reject",
    "SeenKeys",
    "apply_changes",
    "read_changes",
    "snapshot_differences",
]


def __getattr__(name: str) -> object:
    """Loaded when asked for: the command line shows its help without Arrow and numpy."""
    if name in ("Applied", "apply_changes"):
        from semistream.changes import applying

        return getattr(applying, name)
    if name in ("Changes", "Reject"):
        from semistream.changes import rows

        return getattr(rows, name)
    if name == "SeenKeys":
        from semistream.changes import duplicates

        return getattr(duplicates, name)
    if name == "read_changes":
        from semistream.changes import reading

        return getattr(reading, name)
    if name == "snapshot_differences":
        from semistream.changes import differences

        return getattr(differences, name)
    raise AttributeError(f"module 'semistream.changes' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
