"""From changes to a warehouse's tables, without Spark: changes, dimensions, duplicates, differences.

Everything here keeps its state in a `MasterStore`, so it is durable, has versions, and is read by the joins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semistream.etl.change_rows import Changes, Reject
    from semistream.etl.changes import Applied, apply_changes
    from semistream.etl.differences import snapshot_differences
    from semistream.etl.dimension import Dimension
    from semistream.etl.duplicates import SeenKeys
    from semistream.etl.reading import read_changes

__all__ = [
    "Applied",
    "Changes",
    "Dimension",
    "Reject",
    "SeenKeys",
    "apply_changes",
    "read_changes",
    "snapshot_differences",
]

_HOME = {
    "Applied": "changes",
    "Changes": "change_rows",
    "Dimension": "dimension",
    "Reject": "change_rows",
    "SeenKeys": "duplicates",
    "apply_changes": "changes",
    "read_changes": "reading",
    "snapshot_differences": "differences",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'semistream.etl' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"semistream.etl.{_HOME[name]}"), name)
