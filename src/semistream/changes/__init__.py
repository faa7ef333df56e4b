"""From changes to a warehouse's tables, without Spark: changes, duplicates, differences.

Everything here keeps its state in a `MasterStore`, so it is durable, has versions, and is read by the joins.
"""

from semistream.changes.applying import Applied, apply_changes
from semistream.changes.differences import snapshot_differences
from semistream.changes.duplicates import SeenKeys
from semistream.changes.reading import read_changes
from semistream.changes.rows import Changes, Reject

__all__ = ["Applied", "Changes", "Reject", "SeenKeys", "apply_changes", "read_changes", "snapshot_differences"]
