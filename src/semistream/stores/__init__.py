"""Master data on disk. `MasterStore` (paged) is the only kind so far."""

from semistream.stores.paged.store import MasterStore

__all__ = ["MasterStore"]
