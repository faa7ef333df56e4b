"""A store on a device of fixed cost: where sweep draws its line must not depend on how busy the machine was."""

from __future__ import annotations

from dataclasses import replace

from semistream.stores import MasterStore
from semistream.stores.device import Device, as_numbers

STEADY = Device(request_seconds=1e-6, byte_seconds=8e-11)


def steady(store: MasterStore, device: Device = STEADY) -> MasterStore:
    """The same store on a device, by default a page cache, not with what was measured when it was built."""
    return MasterStore(store.path, replace(store.manifest, device=as_numbers(device, device)))
