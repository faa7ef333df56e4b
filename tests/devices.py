"""A store on a device of fixed cost: where sweep draws its line must not depend on how busy the machine was."""

from __future__ import annotations

from dataclasses import replace

from semistream.stores import MasterStore

_COSTS = {"request_seconds": 1e-6, "byte_seconds": 8e-11}


def steady(store: MasterStore) -> MasterStore:
    """The same store, with what a read costs in a page cache, not with what was measured when it was built."""
    device = {f"{way}_{name}": value for way in ("cached", "direct") for name, value in _COSTS.items()}
    return MasterStore(store.path, replace(store.manifest, device=device))
