"""semistream: join a fast stream with master data too big for memory, inside a memory budget.

>>> import semistream
>>> "join" in dir(semistream)
True

Spark is loaded only with `semistream.spark`, numba only when a store is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semistream.engine import join, make_join
    from semistream.shedding import Shed
    from semistream.stores import MasterStore

__version__ = "0.1.0"
__all__ = ["MasterStore", "Shed", "__version__", "join", "make_join"]

_HOME = {
    "MasterStore": "semistream.stores",
    "Shed": "semistream.shedding",
    "join": "semistream.engine",
    "make_join": "semistream.engine",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'semistream' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
