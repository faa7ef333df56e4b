"""Streams and masters for tests, demos and benchmarks, all with one contract and in one registry.

>>> from semistream.workloads import WORKLOADS, make_workload
>>> sorted(WORKLOADS)
['retail', 'tpch', 'weather', 'zipf']
>>> load = make_workload("zipf", rows=1000, skew=1.2)
>>> load.on, load.stream(0, 5).num_rows
({'key': 'key'}, 5)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semistream.workloads.contract import Workload
    from semistream.workloads.registry import WORKLOADS, make_workload

__all__ = ["WORKLOADS", "Workload", "make_workload"]

# Loaded when asked for: the command line shows its help without Arrow and numpy.
_HOME = {"WORKLOADS": "registry", "Workload": "contract", "make_workload": "registry"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'semistream.workloads' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"semistream.workloads.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
