"""Master data: on disk (`MasterStore`) or in memory (`MemoryStore`). `contract` says what a store is to a join."""

from semistream.stores.memory import MemoryStore
from semistream.stores.paged.store import MasterStore

__all__ = ["MasterStore", "MemoryStore"]
