"""semistream: join a fast stream with master data too big for memory, inside a memory budget.

>>> import semistream
>>> "join" in dir(semistream)
True

Spark is loaded only with `semistream.spark`, numba only when a store is opened.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semistream.lookup.run import join, make_join
    from semistream.shedding import Shed
    from semistream.stores import MasterStore

__version__ = "0.1.0"
__all__ = ["MasterStore", "Shed", "__version__", "join", "make_join"]
_PLACES = {"MasterStore": "stores", "Shed": "shedding", "join": "lookup.run", "make_join": "lookup.run"}


def __getattr__(name: str) -> object:
    """Loaded when asked for: the command line shows its help without Arrow and numpy."""
    if name not in _PLACES:
        raise AttributeError(f"module 'semistream' has no attribute {name!r}")
    return getattr(import_module(f"semistream.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
